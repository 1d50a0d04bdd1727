"""Tells threads that spin in vain from those that do atomics which happen to change nothing.

A maximum over a million zeros changes nothing either, but its threads have got somewhere: a variable of theirs is
new. A spin repeats itself. So the threads are looked at now and then, and it is a deadlock when for many looks no
thread is where it was not before with the same variables, and memory is the same. A variable that a loop only counts
in, as it does its tries, is not looked at. What repeats itself but for a count in memory is stopped by the clock.
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

# Between two looks: atomics and fences in a row that change nothing, and turns of each thread, so that all had theirs;
# or fewer atomics, but between them barriers let threads go so many times.
UNCHANGED, TURNS, POLLS = 1_000, 2, 20
ATOMICS = 10_000_000  # or atomics of any kind without a thread finishing, before the clock is looked at
LOOKS = 12
_TIMES = 6  # what of the limit in seconds threads may spin on


class Spins:
    """What was seen of the threads of a launch since an atomic last changed something."""

    def __init__(self, exited: int) -> None:
        self.exited = exited
        self.seen: set[tuple] = set()
        self.digest = -1
        self.looks = 0
        self.since = time.monotonic()

    def look(self, launch: Any) -> None:
        """Raise Deadlock if the threads have done nothing new for long."""
        states = {_state(thread) for block in launch.resident for thread in block.threads if thread.greenlet}
        digest = _digest(launch)
        if digest != self.digest or not states <= self.seen:
            self.seen |= states
            self.digest, self.looks = digest, 0
        self.looks += 1
        if self.looks > LOOKS:
            raise _deadlock(launch, "spin on atomics in vain")
        self.watch_the_clock(launch)

    def watch_the_clock(self, launch: Any) -> None:
        """Raise Deadlock if this has lasted long."""
        seconds = _TIMES * limits.seconds
        if time.monotonic() - self.since > seconds:
            what = f"have done atomics for {seconds:g} s without an end ({_TIMES} times simt.limits.seconds)"
            raise _deadlock(launch, what)


def _deadlock(launch: Any, what: str) -> Deadlock:
    kind = "cooperative launch" if launch.cooperative else "launch whose blocks run one after another"
    error = Deadlock(f"{launch.unfinished} threads {what}, in a {kind}", here())
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
    """The variables of a thread, and where it is, in the kernel and what it has called."""
    frame: FrameType | None = thread.greenlet.gr_frame
    if frame is None and thread is current.thread:  # the one that runs has no frame to show
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
    """Variables whose values say nothing of where a thread is on a line: its loops only count in them."""
    function = around(code.co_filename, line)
    loops = [part for part in ast.walk(function or ast.Pass()) if isinstance(part, ast.For | ast.While)]
    idle = next((idle_in(loop) for loop in loops if covers(loop, line)), set())  # of the outermost
    return frozenset(idle | {name for name in code.co_varnames if idle and name.startswith("_simt_t")})


def _value(value: Any) -> Any:
    """Something that is equal only if a variable is."""
    if isinstance(value, np.ndarray | ObservedArray):
        return zlib.crc32(_bytes(value))
    if isinstance(value, bool | int | float | complex | str | np.generic):
        return repr(value)
    if isinstance(value, tuple | list):
        return tuple(map(_value, value))
    return id(value)
