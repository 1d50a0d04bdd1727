"""Counts of how often each byte of an array was loaded or stored."""

from __future__ import annotations

from collections import Counter, defaultdict

from ..memory.arrays import DeviceArray
from ..memory.buffers import Buffer


class Counts:
    """Accesses of one kind."""

    def __init__(self) -> None:
        self.times: defaultdict[int, Counter[tuple[int, int]]] = defaultdict(Counter)  # base -> (offset, nbytes)

    def add(self, buffer: Buffer, offset: int, nbytes: int) -> None:
        """Count an access."""
        self.times[buffer.base][offset, nbytes] += 1

    def total(self, array: DeviceArray) -> int:
        """Bytes of an array that were accessed, each counted once per access."""
        before = [0, *array.coverage().cumsum().tolist()]  # bytes of the array among the first of the allocation
        times = self.times[array.buffer.base]
        return sum((before[at + n] - before[at]) * count for (at, n), count in times.items())
