"""Happens-before between the threads of one launch, as vector clocks.

A view holds what a thread knows of the others: for each block, a vector with the last epoch of each of its threads
whose accesses are ordered before. Views are immutable, so threads that met share one. A thread starts a new epoch
whenever it publishes its accesses: at barriers, `syncwarp` and fences.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

View = dict[int, np.ndarray]
_NOTHING: View = {}
KEY_BITS = 10  # a block has at most 1024 threads


class ThreadClock:
    """What a thread knows, has released by fences, and has observed by atomics but not yet acquired."""

    __slots__ = ("base", "block", "epoch", "key", "observed", "rank", "released", "size", "view")

    def __init__(self, block: int, rank: int, size: int) -> None:
        self.block, self.rank, self.size = block, rank, size
        self.key = block << KEY_BITS | rank
        self.epoch = 1
        self.view = self.base = _NOTHING  # base: the view after its last barrier, which other threads share
        # By scope: None is the device, a number is a block.
        self.released: dict[int | None, View] = {}
        self.observed: dict[int | None, View] = {}

    def knows(self, key: int, epoch: int) -> bool:
        """Whether the accesses of a thread in an epoch are ordered before this thread's next access."""
        if key == self.key:
            return True
        vector = self.view.get(key >> KEY_BITS)
        return vector is not None and vector.item(key & (1 << KEY_BITS) - 1) >= epoch

    def fence(self, device: bool) -> None:
        """Acquire what atomics have observed, then release all that is known so far."""
        scopes: tuple[int | None, ...] = (None, self.block) if device else (self.block,)
        if self.observed:
            self.view = merge([self.view, *(self.observed.pop(scope, _NOTHING) for scope in scopes)])
        snapshot = publish([self])
        for scope in scopes:
            self.released[scope] = snapshot

    def acquire(self) -> None:
        """Acquire all that atomics have observed."""
        if self.observed:
            self.view = merge([self.view, *self.observed.values()])
            self.observed = {}

    def atomic(self, location: dict[int | None, View]) -> None:
        """Observe what earlier atomics released at a location, and release there what fences released."""
        for scope in (None, self.block):
            if scope in location:
                self.observed[scope] = merge([self.observed.get(scope, _NOTHING), location[scope]])
            if scope in self.released:
                location[scope] = merge([location.get(scope, _NOTHING), self.released[scope]])


def merge(views: Iterable[View]) -> View:
    """The union of views."""
    distinct = list({id(view): view for view in views if view}.values())
    if len(distinct) <= 1:
        return distinct[0] if distinct else _NOTHING
    distinct.sort(key=len, reverse=True)
    merged = dict(distinct[0])
    for view in distinct[1:]:
        for block, vector in view.items():
            known = merged.setdefault(block, vector)
            if known is not vector:
                merged[block] = np.maximum(known, vector)
    return merged


def publish(clocks: list[ThreadClock]) -> View:
    """The union of what these threads know and have done so far; each begins a new epoch."""
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
        clock.view = clock.base = view


def share(clocks: list[ThreadClock]) -> None:
    """These threads met: an atomic of any of them may release what any of them has fenced."""
    fenced = [clock.released for clock in clocks if clock.released]
    if not fenced:
        return
    scopes = {scope for released in fenced for scope in released}
    merged = {scope: merge(released.get(scope, _NOTHING) for released in fenced) for scope in scopes}
    for clock in clocks:
        clock.released = dict(merged)
