"""Happens-before between the threads of one launch, as vector clocks.

A view says how much a thread knows of the others: for each block a vector with, for each of its threads,
the last epoch whose accesses are ordered before. Views are never changed once made, so threads that met
share one. A thread's own epoch grows whenever it publishes what it did: at barriers, warp operations and
fences.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

View = dict[int, np.ndarray]


class ThreadClock:
    """What a thread knows, has released by fences, and has observed by atomics but not yet acquired."""

    __slots__ = ("block", "epoch", "observed", "rank", "released", "size", "view")

    def __init__(self, block: int, rank: int, size: int) -> None:
        self.block, self.rank, self.size = block, rank, size
        self.epoch = 1
        self.view: View = {}
        # By scope: None is the device, a number the block of that number.
        self.released: dict[int | None, View] = {}
        self.observed: dict[int | None, View] = {}

    def knows(self, block: int, rank: int, epoch: int) -> bool:
        """Whether what a thread did in an epoch is ordered before this thread's next access."""
        if block == self.block and rank == self.rank:
            return True
        vector = self.view.get(block)
        return vector is not None and vector[rank] >= epoch

    def fence(self, device: bool) -> None:
        """Acquire what atomics have observed, then release all that is known so far."""
        scopes: tuple[int | None, ...] = (None, self.block) if device else (self.block,)
        self.view = merge([self.view, *(self.observed.pop(scope, {}) for scope in scopes)])
        snapshot = publish([self])
        for scope in scopes:
            self.released[scope] = snapshot

    def atomic(self, location: dict[int | None, View]) -> None:
        """Observe what earlier atomics released at a location, and release there what fences released."""
        for scope in (None, self.block):
            if scope in location:
                self.observed[scope] = merge([self.observed.get(scope, {}), location[scope]])
            if scope in self.released:
                location[scope] = merge([location.get(scope, {}), self.released[scope]])


def merge(views: Iterable[View]) -> View:
    """The view that knows what any of these knows."""
    distinct = list({id(view): view for view in views if view}.values())
    if len(distinct) <= 1:
        return distinct[0] if distinct else {}
    merged: View = {}
    for view in distinct:
        for block, vector in view.items():
            known = merged.get(block)
            merged[block] = vector if known is None or known is vector else np.maximum(known, vector)
    return merged


def publish(clocks: list[ThreadClock]) -> View:
    """What these threads know together, including what each did so far; each begins a new epoch."""
    view = dict(merge(clock.view for clock in clocks))
    own: dict[int, np.ndarray] = {}
    for clock in clocks:
        vector = own.get(clock.block)
        if vector is None:
            known: Any = view.get(clock.block)
            vector = own[clock.block] = np.zeros(clock.size, np.int32) if known is None else known.copy()
        vector[clock.rank] = clock.epoch
        clock.epoch += 1
    return view | own


def join(clocks: list[ThreadClock]) -> None:
    """These threads met: each knows what any of them knew and did."""
    view = publish(clocks)
    for clock in clocks:
        clock.view = view
