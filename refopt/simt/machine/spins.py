"""Distinguishes threads that spin forever from those whose atomics happen to change nothing.

A maximum over a million zeros changes nothing either, but its threads make progress: their variables change. A spin
repeats itself. So the threads are inspected periodically, and it is a deadlock if over many inspections memory is
unchanged and no thread reaches a new combination of position and variables. A variable in which a loop only counts,
such as its tries, is ignored. A spin that also changes a count in memory is stopped by a time limit.
"""

from __future__ import annotations

import ast
import sys
import time
import zlib
from functools import cache
from types import CodeType, FrameType
from typing import Any

import numpy as np

from ..base.errors import Deadlock
from ..base.places import here, is_internal
from ..base.source import around, covers
from ..base.state import current
from ..base.threads import Thread
from ..base.variables import idle as idle_in
from ..base.watchdog import limits
from ..memory import buffers as memory
from ..memory.observed import ObservedArray

# Between two inspections: atomics and fences in a row that change nothing, and turns of each thread, so that all had
# some; or fewer atomics, if barriers between them released threads often enough.
UNCHANGED, TURNS, POLLS = 1_000, 2, 20
ATOMICS = 10_000_000  # atomics of any kind without a thread finishing, before the time limit is checked
LOOKS = 12
_TIMES = 6  # multiple of the limit in seconds for which threads may execute atomics


class Spins:
    """The states of a launch's threads seen since one last finished."""

    def __init__(self, exited: int) -> None:
        self.exited = exited
        self.seen: set[tuple] = set()
        self.digest = -1
        self.looks = 0
        self.since = time.monotonic()

    def look(self, launch: Any) -> None:
        """Raise Deadlock if the threads have reached no new state for long."""
        states = {_state(thread) for block in launch.resident for thread in block.threads if thread.greenlet}
        digest = _digest(launch)
        if digest != self.digest or not states <= self.seen:
            self.seen |= states
            self.digest, self.looks = digest, 0
        self.looks += 1
        if self.looks > LOOKS:
            raise _deadlock(launch, "spinning on atomics without progress")
        self.watch_the_clock(launch)

    def watch_the_clock(self, launch: Any) -> None:
        """Raise Deadlock if this has lasted long."""
        seconds = _TIMES * limits.seconds
        if time.monotonic() - self.since > seconds:
            what = f"still executing atomics after {seconds:g} s ({_TIMES} times simt.limits.seconds)"
            raise _deadlock(launch, what)


def _deadlock(launch: Any, what: str) -> Deadlock:
    kind = "cooperative launch" if launch.cooperative else "launch whose blocks run one after another"
    who = "1 thread is" if launch.unfinished == 1 else f"{launch.unfinished} threads are"
    error = Deadlock(f"{who} {what}, in a {kind}", here())
    error.in_turn = not launch.cooperative
    return error


def _digest(launch: Any) -> int:
    """A checksum of all memory."""
    digest = 0
    for reference in memory.allocations().values():
        buffer = reference()
        if buffer is not None:
            digest = zlib.crc32(buffer.data.data, digest)
    for block in launch.resident:
        for array in block.shared.values():
            digest = zlib.crc32(_bytes(array), digest)
    return digest


def _bytes(array: Any) -> bytes:
    return np.asarray(array._data if isinstance(array, ObservedArray) else array).tobytes()


def _state(thread: Thread) -> tuple:
    """The variables and positions of a thread, in the kernel and the functions that it has called."""
    frame: FrameType | None = thread.greenlet.gr_frame
    if frame is None and thread is current.thread:  # the running greenlet has no gr_frame
        frame = sys._getframe()
    parts: list[Any] = [thread.block.number, thread.rank]
    while frame is not None:
        kernels = frame.f_code is current.kernel_code
        if kernels or not is_internal(frame.f_code.co_filename):
            idle = _idle(frame.f_code, frame.f_lineno or 0)
            parts += frame.f_lasti, *(_value(value) for name, value in frame.f_locals.items() if name not in idle)
        frame = None if kernels else frame.f_back
    return tuple(parts)


@cache
def _idle(code: CodeType, line: int) -> frozenset[str]:
    """Variables whose values say nothing about a thread's progress on a line, since its loops only count in them."""
    function = around(code.co_filename, line)
    loops = [part for part in ast.walk(function or ast.Pass()) if isinstance(part, ast.For | ast.While)]
    idle = next((idle_in(loop) for loop in loops if covers(loop, line)), set())  # of the outermost
    return frozenset(idle | {name for name in code.co_varnames if idle and name.startswith("_simt_t")})


def _value(value: Any) -> Any:
    """A key that is equal only if the values of a variable are."""
    if isinstance(value, np.ndarray | ObservedArray):
        return zlib.crc32(_bytes(value))
    if isinstance(value, bool | int | float | complex | str | np.generic):
        return repr(value)
    if isinstance(value, tuple | list):
        return tuple(map(_value, value))
    return id(value)
