"""What the executor reports, and how a report names the place."""

from __future__ import annotations

import linecache
from typing import Any, NamedTuple


class Place(NamedTuple):
    """Where in a kernel something happened; `via` is the kernel's own line when a helper did it.

    Block and thread are None where a report is about a whole kernel.
    """

    kernel: str | None
    filename: str | None
    line: int | None
    block: tuple[int, int, int] | None
    thread: tuple[int, int, int] | None
    via: str | None = None

    @property
    def source(self) -> str:
        """The line itself, on a line of its own; empty if it cannot be read."""
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
    array (its name), index, offset (in bytes), address, order (of the threads, in which a watched launch showed it),
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
    """A kernel, or a function that it calls, that Numba does not compile for CUDA: it is not launched.

    Attributes: column (from 1, of the line), reason, and instead, what to write (empty where Numba itself has spoken).
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
    """A scalar or vector access at an address that is no multiple of its size."""


class UninitializedRead(SimtError):
    """A read of memory that nobody has written, or a store of what a shuffle gave for a lane that takes no part."""


class IntegerError(SimtError, ArithmeticError):
    """An integer that is divided by zero, or one that an int32 does not hold."""


class DataRace(SimtError):
    """Two unordered accesses to one byte, at least one of them a non-atomic write."""


class BarrierDivergence(SimtError):
    """A barrier or warp operation that some of its threads never reach, or reach in another place."""


class Unsupported(SimtError, AttributeError, NotImplementedError):
    """Something of `numba.cuda` that the executor does not have."""


class Deadlock(SimtError):
    """Threads that spin on a value that nobody will change.

    Attributes: in_turn, whether blocks ran one after another, so that one may have waited for a later one.
    """

    in_turn = True


class TimeLimitExceeded(Deadlock):
    """A thread that runs on for longer than `simt.limits.seconds` without a barrier, an atomic, a fence or its end."""
