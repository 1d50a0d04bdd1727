"""Runs a watched launch in several orders of its blocks and threads, each time from the same memory.

Barriers and `syncwarp` order the same accesses in every run. What an atomic orders, and whether two writes store equal
values, may depend on the order: only a launch in which either occurred is run again.
"""

from __future__ import annotations

import contextlib
import io
from collections.abc import Callable, Iterable

from ..base.threads import Schedule
from ..memory.initialized import kept, restore
from .races import Detector


def chosen(schedule: str | None, seed: int, watch: bool, more: int) -> list[Schedule]:
    """The schedules to run: the requested one, or forward and, if watched, reverse; and random ones."""
    names = [schedule] if schedule is not None else ["forward", "reverse"] if watch else ["forward"]
    first = [Schedule(name, seed) for name in names]
    return [*first, *(Schedule("random", seed + n) for n in range(more))]


def run_again(once: Callable[[Schedule], object], schedules: Iterable[Schedule], detector: Detector) -> None:
    """Rerun a launch in other orders, then restore the memory that the first run left. Kernels print only once."""
    before, detector.touched = detector.touched or [], None
    after = [kept(buffer) for buffer, _, _ in before]
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            for schedule in schedules:
                restore(before)
                for buffer, _, _ in before:
                    buffer.shadow.forget(detector.operation)
                once(schedule)
    finally:
        restore(after)
