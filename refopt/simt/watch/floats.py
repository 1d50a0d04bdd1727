"""The record of `observe(floats=True)`: the lines where NaN, infinities, overflow and subnormal numbers arise."""

from __future__ import annotations

import linecache
import math
import os
from typing import Any, NamedTuple

import numpy as np

from ..base.errors import Place
from ..base.places import here
from ..base.state import current
from ..memory.buffers import Buffer

# NumPy's names of the IEEE 754 exceptions, and the kind of result of each
_ARISES = {"invalid value": "nan", "divide by zero": "inf", "overflow": "overflow", "underflow": "subnormal"}
_ENDLESS = "nan", "inf", "overflow"
_TINY: dict[Any, float] = {np.dtype(t): float(np.finfo(t).tiny) for t in (np.float16, np.float32, np.float64)}
_HOW = {"arises": "arises", "store": "is stored", "load": "is loaded"}


class FloatEvent(NamedTuple):
    """A floating-point event on a line.

    Attributes:
        kernel, filename, line: where.
        what: nan, inf, overflow (a finite number rounded to inf) or subnormal (also one rounded to 0).
        how: arises (from operands of another kind), store or load.
        array: the array that is loaded from or stored to; None where the value arises.
        times: how often, over all threads.
        first: the block and thread that did it first.
    """

    kernel: str
    filename: str
    line: int
    what: str
    how: str
    array: str | None
    times: int
    first: Place


class Floats:
    """Events by line, in order of first occurrence.

    NumPy's scalars signal what arises, so an exact subnormal result is noticed only when it is stored. Loaded and
    stored elements are examined in the type that their array was allocated with.

    Attributes:
        first: the first NaN or infinity. If it was loaded, it was in memory before the launch.
    """

    def __init__(self) -> None:
        self.first: FloatEvent | None = None
        self._events: dict[tuple[str, str, int, str, str, str | None], list[Any]] = {}
        self._stored: tuple[Buffer, int, int, Place] | None = None  # examined once the store has happened

    @property
    def events(self) -> list[FloatEvent]:
        """All events, one for each combination of line, what, how and array."""
        return [FloatEvent(*key, *value) for key, value in self._events.items()]

    # How the executor reports

    def begin(self) -> None:
        """A block becomes resident: NumPy is told to call `_arises`, in the context of the launch's threads."""
        context = current.launch.context
        context.run(np.seterr, all="call")
        context.run(np.seterrcall, self._arises)

    def look_at_store(self) -> None:
        """The last store has happened: another access follows, or the launch has ended."""
        if self._stored is not None:
            buffer, offset, nbytes, place = self._stored
            self._stored = None
            for what in _seen(buffer, offset, nbytes):
                self._add(what, "store", buffer.label, place)

    def load(self, buffer: Buffer, offset: int, nbytes: int) -> None:
        """The running thread loads."""
        self.look_at_store()
        for what in _seen(buffer, offset, nbytes):
            self._add(what, "load", buffer.label, here())

    def store(self, buffer: Buffer, offset: int, nbytes: int) -> None:
        """The running thread is about to store."""
        self.look_at_store()
        if buffer.dtype.kind == "f":
            self._stored = buffer, offset, nbytes, here()

    def _arises(self, error: str, flag: int) -> None:
        """Called by NumPy when an operation signals an exception."""
        self.look_at_store()
        self._add(_ARISES[error], "arises", None, here())

    def _add(self, what: str, how: str, array: str | None, place: Place) -> None:
        key = place.kernel or "", place.filename or "", place.line or 0, what, how, array
        event = self._events.setdefault(key, [0, place])
        event[0] += 1
        if self.first is None and what in _ENDLESS:
            self.first = FloatEvent(*key, *event)

    def __str__(self) -> str:
        lines = []
        for event in self.events:
            source = linecache.getline(event.filename, event.line).strip()
            where = f"{os.path.basename(event.filename)}:{event.line}"
            array = f" ({event.array})" if event.array else ""
            threads = f"block {event.first.block}, thread {event.first.thread}"
            what = f"{event.what} {_HOW[event.how]}{array}"
            lines.append(f"{where}: {what}, times: {event.times}, first in {threads}: {source}")
        return "\n".join(lines)


def _seen(buffer: Buffer, offset: int, nbytes: int) -> list[str]:
    """The special values among some bytes of an array: nan, inf, subnormal."""
    kind: Any = buffer.dtype
    if kind not in _TINY or nbytes % kind.itemsize:
        return []
    if nbytes == kind.itemsize and offset % nbytes == 0:
        size = abs(buffer.views[kind][0].item(offset // nbytes))
        if size == 0 or _TINY[kind] <= size < math.inf:  # by far the most common case
            return []
    values = buffer.data[offset : offset + nbytes].view(kind)
    with np.errstate(all="ignore"):
        size = np.abs(values)
        tests = {"nan": values != values, "inf": size == np.inf, "subnormal": (size > 0) & (size < _TINY[kind])}
    return [what for what, where in tests.items() for _ in range(int(np.count_nonzero(where)))]
