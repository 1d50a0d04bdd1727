"""Loads and stores at one address per lane."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from ..base.errors import MisalignedAddress, OutOfBounds
from ..memory.buffers import Buffer, allocations
from .typed import Refused

# The type in which an access is moved, by its size in bytes.
_UNITS: dict[int, Any] = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64, 16: np.complex128}


class Addresses:
    """The allocations of a launch, and copies of the memory that it writes, from before.

    Neighboring lanes usually access one allocation, and the same lanes do so at the next access: the runs of lanes of
    the last access are tried first.
    """

    def __init__(self) -> None:
        self.saved: dict[int, tuple[np.ndarray, np.ndarray]] = {}
        found = [(base, buffer) for base, reference in sorted(allocations().items()) if (buffer := reference())]
        self.buffers = [buffer for _, buffer in found]
        self.bases = np.array([base for base, _ in found], np.int64)
        self.ends = self.bases + np.array([buffer.nbytes for buffer in self.buffers], np.int64)
        self.starts: dict[int, np.ndarray] = {}

    def save(self, data: np.ndarray) -> None:
        """Save the memory that an array is a view of, unless it is already saved."""
        while isinstance(data.base, np.ndarray):
            data = data.base
        if id(data) not in self.saved:
            self.saved[id(data)] = data, data.copy()

    def restore(self) -> None:
        """Restore the saved memory."""
        for data, before in self.saved.values():
            data[...] = before

    def release(self) -> None:
        """Drop references to memory, so that a stored launch does not keep it alive."""
        self.saved.clear()
        self.starts.clear()
        self.buffers = []

    def _runs(self, address: np.ndarray, nbytes: int) -> Iterator[tuple[slice, Buffer]]:
        """The allocations that lanes access, in order, each with its lanes."""
        count = len(address)
        starts = self.starts.get(count)
        if starts is None or not self._fit(address, nbytes, starts):
            numbers = np.searchsorted(self.bases, address, "right")
            starts = np.flatnonzero(np.diff(numbers, prepend=-1))
            if not self._fit(address, nbytes, starts):
                raise OutOfBounds("an access outside memory")
            self.starts[count] = starts
        firsts = starts.tolist()
        numbers = np.searchsorted(self.bases, address[starts], "right") - 1
        for first, stop, number in zip(firsts, [*firsts[1:], count], numbers.tolist(), strict=True):
            yield slice(first, stop), self.buffers[number]

    def _fit(self, address: np.ndarray, nbytes: int, starts: np.ndarray) -> bool:
        """Whether each run of lanes accesses one allocation."""
        low, high = np.minimum.reduceat(address, starts), np.maximum.reduceat(address, starts)
        numbers = np.searchsorted(self.bases, low, "right") - 1
        return bool(numbers.min() >= 0 and np.all(high + nbytes <= self.ends[numbers]))

    def _unit(self, address: np.ndarray, dtype: Any, count: int) -> tuple[np.dtype, int]:
        """The dtype and the bytes of each lane's access, after the alignment checks of `memory.load`."""
        kind = np.dtype(dtype)
        nbytes = kind.itemsize * count
        if nbytes not in _UNITS:
            raise Refused(f"an access of {nbytes} bytes")
        if np.bitwise_or.reduce(address) & (nbytes - 1):
            raise MisalignedAddress("a misaligned access")
        return kind, nbytes

    def load(self, address: np.ndarray, dtype: Any, count: int) -> tuple[np.ndarray, ...]:
        """`memory.load` of each lane."""
        kind, nbytes = self._unit(address, dtype, count)
        new = np.empty((count, len(address)), kind)
        for lanes, buffer in self._runs(address, nbytes):
            got = buffer.views[_UNITS[nbytes]][0].take((address[lanes] - buffer.base) // nbytes)
            new[:, lanes] = got.view(kind).reshape(-1, count).T
        return tuple(new)

    def store(self, address: np.ndarray, dtype: Any, values: Sequence[Any]) -> None:
        """`memory.store` of each lane, in order of the lanes."""
        kind, nbytes = self._unit(address, dtype, len(values))
        rows = np.empty((len(address), len(values)), kind)
        for n, value in enumerate(values):
            rows[:, n] = value
        units = rows.view(_UNITS[nbytes]).reshape(-1)
        for lanes, buffer in self._runs(address, nbytes):
            self.save(buffer.data)
            buffer.views[_UNITS[nbytes]][0][(address[lanes] - buffer.base) // nbytes] = units[lanes]
