"""A watched launch in several orders of its blocks and threads: memory is as before it in each.

Barriers and `syncwarp` order the same accesses in every order. An atomic orders what has met it already, and two equal
values are equal to the last one stored: only a launch in which either occurred is run again.
"""

from __future__ import annotations

import contextlib
import io
from collections.abc import Callable, Iterable

from ..base.threads import Schedule
from ..memory.initialized import kept, restore
from .races import Detector


def chosen(schedule: str | None, seed: int, watch: bool, more: int) -> list[Schedule]:
    """The orders to run in: the one asked for, or forward and, where it is watched, reverse; and random ones."""
    names = [schedule] if schedule is not None else ["forward", "reverse"] if watch else ["forward"]
    first = [Schedule(name, seed) for name in names]
    return [*first, *(Schedule("random", seed + n) for n in range(more))]


def run_again(once: Callable[[Schedule], object], schedules: Iterable[Schedule], detector: Detector) -> None:
    """Run a launch in further orders; memory is then as the first has left it. What kernels print is printed once."""
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
