"""Stops a thread that runs too long without a barrier, an atomic or a fence.

A separate Python thread checks periodically whether the running launch has made a step, so a step costs one addition.
The thread ends when no launch has run for a while.
"""

from __future__ import annotations

import ctypes
import math
import os
import threading
import time
from typing import Any

from .arguments import shown
from .state import current

_IDLE = 2.0  # seconds without a launch after which the watching thread ends
_PERIOD = 0.25  # seconds between two checks, at most


class Stopped(BaseException):
    """Raised in the thread that runs too long; a BaseException, so that kernels do not catch it."""


class Limits:
    """Limits on a launch that makes no progress. The environment variable SIMT_SECONDS sets the initial value.

    Attributes: seconds, how long a thread may run without a barrier, an atomic or a fence (10; `math.inf` for no
    limit). Threads may execute atomics for six times as long while memory, or a variable that affects something,
    changes.
    """

    def __init__(self) -> None:
        self.seconds = float(os.environ.get("SIMT_SECONDS", 10))

    def __setattr__(self, name: str, value: Any) -> None:
        if name != "seconds":
            raise AttributeError(f"there is no limit {name}: the only one is `seconds`")
        if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
            raise ValueError(f"simt.limits.seconds: expected a number of seconds above 0, got {shown(value)}")
        object.__setattr__(self, name, value)


limits = Limits()


class _Watch:
    """The watching thread, and the launch that it watches."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.thread: threading.Thread | None = None
        self.launch: Any = None
        self.number = 0  # of the launch; the thread keeps no launch, nor its arrays, alive

    def begin(self, launch: Any) -> None:
        """A launch starts."""
        with self.lock:  # under which the thread decides to end
            self.launch, self.number = launch, self.number + 1
            if self.thread is None or not self.thread.is_alive():
                self.thread = threading.Thread(target=self._look, name="simt watchdog", daemon=True)
                self.thread.start()

    def end(self) -> None:
        """The launch has ended. A stop that comes too late has no effect.

        This waits for such a stop: CPython 3.11 would hang under tracing if it were withdrawn.
        """
        try:
            with self.lock:
                launch, self.launch = self.launch, None
            for _ in range(100 if launch is not None and launch.stopped else 0):
                time.sleep(0)
        except Stopped:
            pass

    def _look(self) -> None:
        number, steps, since, idle = 0, (-1, -1, -1), 0.0, time.monotonic()
        while True:
            limit = limits.seconds
            time.sleep(min(_PERIOD, limit / 4))
            with self.lock:
                if self.launch is None or current.runner is None:
                    if time.monotonic() - idle > _IDLE:
                        self.thread = None
                        return
                    continue
                idle = time.monotonic()
                now = _seconds(current.runner)
                progress = self.launch.exited, self.launch.steps, self.launch.atomics
                if self.number != number or progress != steps:
                    number, steps, since = self.number, progress, now
                elif now - since > limit and not self.launch.stopped and not math.isinf(limit):
                    self.launch.stopped = True
                    ctypes.pythonapi.PyThreadState_SetAsyncExc(
                        ctypes.c_ulong(current.runner), ctypes.py_object(Stopped)
                    )


def _seconds(runner: int) -> float:
    """The CPU time of a Python thread: one that waits, for a debugger or its turn, is not stopped."""
    if hasattr(time, "pthread_getcpuclockid"):
        return time.clock_gettime(time.pthread_getcpuclockid(runner))
    return time.monotonic()


watch = _Watch()
