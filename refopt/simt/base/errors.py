"""The errors that the executor reports, and the source locations that they name."""

from __future__ import annotations

import linecache
from typing import Any, NamedTuple


class Place(NamedTuple):
    """Where in a kernel something happened; `via` is the kernel's own line if that was in a helper function.

    Block and thread are None if a report concerns a whole kernel.
    """

    kernel: str | None
    filename: str | None
    line: int | None
    block: tuple[int, int, int] | None
    thread: tuple[int, int, int] | None
    via: str | None = None

    @property
    def source(self) -> str:
        """The source line, preceded by a line break; empty if it cannot be read."""
        line = linecache.getline(self.filename, self.line).strip() if self.filename and self.line else ""
        return f"\n    {line}" if line else ""

    def __str__(self) -> str:
        if self.kernel is None:
            return f"host code at {self.filename}:{self.line}"
        via = f" (called from {self.via})" if self.via else ""
        where = f"{self.filename}:{self.line}{via}"
        who = "" if self.block is None else f", block {self.block}, thread {self.thread}"
        return f"kernel {self.kernel} at {where}{who}"


_NOWHERE = Place(None, None, None, None, None)


class SimtError(Exception):
    """Base of all errors of the executor.

    Attributes: kernel, filename, line, block, thread (of the access at fault), and, as far as they apply,
    array (its name), index, offset (in bytes), address, order (the schedule with which a watched launch exposed it),
    and for a race first and second, each a `Place`.
    """

    order: str | None = None
    array: str | None
    first: Place | None
    second: Place | None

    __module__ = "refopt.simt"  # where users import it from: a traceback shows it

    def __init_subclass__(cls) -> None:
        cls.__module__ = SimtError.__module__

    def __init__(self, message: str, place: Place | None = None, **details: Any) -> None:
        super().__init__(f"{message}\n  in {place}{place.source}" if place else message)
        self.place = place
        self.kernel, self.filename, self.line, self.block, self.thread, _ = place or _NOWHERE
        for name in ("array", "index", "offset", "address", "first", "second"):
            setattr(self, name, details.get(name))


class LaunchError(SimtError, ValueError):
    """A launch, or a call, that CUDA would refuse."""


class CompileError(SimtError):
    """Numba does not compile the kernel, or a function that it calls, for CUDA: it is not launched.

    Attributes: column (from 1), reason, and instead, what to write (empty where the reason is Numba's own).
    """

    def __init__(self, reason: str, place: Place, column: int = 0, source: str = "", instead: str = "") -> None:
        message = f"Numba does not compile this for CUDA: {reason}"
        at = f"{place.filename}:{place.line}" + (f", column {column}" if column else "")
        lines = [message, f"  in {place.kernel} at {at}"]
        if source.strip():
            lines.append(f"    {source.strip()}")
        if column and source.strip():
            lines.append("    " + " " * (column - 1 - (len(source) - len(source.lstrip()))) + "^")
        super().__init__("\n".join([*lines, *([f"  {instead}"] if instead else [])]))
        self.place, self.kernel, self.filename, self.line = place, place.kernel, place.filename, place.line
        self.column, self.reason, self.instead = column, reason, instead


class OutOfBounds(SimtError, IndexError):
    """An access outside an array, or at an address that no live allocation contains."""


class MisalignedAddress(SimtError):
    """A scalar or vector access at an address that is not a multiple of its size."""


class UninitializedRead(SimtError):
    """A read of unwritten memory, or a store of a value shuffled from a lane that does not take part."""


class IntegerError(SimtError, ArithmeticError):
    """A division of an integer by zero, or a number that the integer type it is stored in cannot represent."""


class DataRace(SimtError):
    """Two unordered accesses to one byte, not both reads or both atomic."""


class BarrierDivergence(SimtError):
    """A barrier or warp operation that some of its threads never reach, or reach at another place."""


class Unsupported(SimtError, AttributeError, NotImplementedError):
    """A feature of `numba.cuda` that the executor does not support."""


class Deadlock(SimtError):
    """Threads that spin on a value that no thread will change.

    Attributes: in_turn, whether blocks ran one after another, so that one may have waited for a later one.
    """

    in_turn = True


class TimeLimitExceeded(Deadlock):
    """A thread that runs for more than `simt.limits.seconds` without a barrier, an atomic or a fence, or ending."""
