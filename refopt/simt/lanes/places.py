"""Lanes, and the arrays that they index."""

from __future__ import annotations

import math
from functools import cached_property
from typing import Any

import numpy as np

from ..base.threads import WARP_SIZE
from .typed import Refused


class Lanes:
    """Threads that run together: all or some of a batch, in the order of their numbers."""

    def __init__(self, batch: Any, numbers: np.ndarray | None = None) -> None:
        self.batch, self.numbers = batch, numbers
        self.count: int = batch.count if numbers is None else len(numbers)
        self._known: dict[str, Any] = {}

    def part(self, at: np.ndarray) -> Lanes:
        """The lanes at some positions among these."""
        return Lanes(self.batch, at if self.numbers is None else self.numbers[at])

    def of(self, name: str) -> Any:
        """A value that depends on the lane's position in the grid, such as ``threadIdx.x``."""
        if name not in self._known:
            value = self.batch.values[name]
            whole = self.numbers is None or type(value) is not np.ndarray
            self._known[name] = value if whole else value[self.numbers]
        return self._known[name]

    @cached_property
    def whole_warps(self) -> bool:
        """Whether all threads of each warp are here."""
        return self.batch.run.threads % WARP_SIZE == 0 and self._whole(WARP_SIZE)

    @cached_property
    def whole_blocks(self) -> bool:
        """Whether all threads of each block are here."""
        return self._whole(self.batch.run.threads)

    def _whole(self, size: int) -> bool:
        if self.numbers is None:
            return True
        if self.count % size:
            return False
        groups = self.numbers.reshape(-1, size)
        return bool(np.all(groups[:, 0] % size == 0) and np.all(groups[:, -1] - groups[:, 0] == size - 1))


class Memory:
    """An array as kernels see it: `data` may have axes before the kernel's, where `at` gives a lane's index."""

    kept = 0  # number of axes before the kernel's

    def __init__(self, data: np.ndarray, run: Any = None) -> None:
        self.data, self.run = data, run

    shape = property(lambda self: self.data.shape[self.kept :])
    size = property(lambda self: math.prod(self.shape))
    ndim = property(lambda self: self.data.ndim - self.kept)
    dtype = property(lambda self: self.data.dtype)
    itemsize = property(lambda self: self.data.itemsize)
    nbytes = property(lambda self: self.size * self.itemsize)
    strides = property(lambda self: self.data.strides[self.kept :])

    def __len__(self) -> int:
        return self.shape[0]

    def at(self, lanes: Lanes) -> tuple:
        """The index of a lane's elements on the axes before the kernel's."""
        return ()

    def where(self, lanes: Lanes, index: Any) -> tuple:
        """The index of elements in `data`."""
        parts = index if isinstance(index, tuple) else (index,)
        for part in parts:
            if type(part) is np.ndarray and part.dtype.kind not in "iu":
                raise Refused("an index that is no integer")
            if isinstance(part, bool | np.bool_ | slice) or part is ... or part is None:
                raise Refused("an index that is no integer")
        return (*self.at(lanes), *parts)

    def get(self, lanes: Lanes, index: Any) -> Any:
        """The element of each lane, or a view if an index has fewer axes."""
        where = self.where(lanes, index)
        if len(where) < self.data.ndim:
            return View(self, where[self.kept :])
        return self.data[where]

    def put(self, lanes: Lanes, index: Any, value: Any) -> None:
        """Write the element of each lane, in the order of the lanes."""
        where = self.where(lanes, index)
        if len(where) < self.data.ndim:
            raise Refused("an assignment to a view")
        self.save()
        if type(value) is np.ndarray and not any(type(part) is np.ndarray for part in where):
            value = value[-1]
        self.data[where] = value

    def save(self) -> None:
        """Save the contents, in case the launch must run by threads after all."""


class Global(Memory):
    """An array argument of a kernel."""

    T = property(lambda self: Global(self.data.T, self.run))

    def get(self, lanes: Lanes, index: Any) -> Any:
        """The element of each lane; if all lanes share an index, also a view."""
        parts = index if isinstance(index, tuple) else (index,)
        if not any(type(part) is np.ndarray for part in parts):
            found = self.data[index]
            return Global(found, self.run) if isinstance(found, np.ndarray) else found
        return super().get(lanes, index)

    def save(self) -> None:
        """Save the contents."""
        self.run.save(self.data)


class Shared(Memory):
    """Shared memory: the first axis is the block."""

    kept = 1

    def at(self, lanes: Lanes) -> tuple:
        """The block."""
        return (lanes.of("block"),)


class Local(Memory):
    """A local array: the first axis is the thread."""

    kept = 1

    def at(self, lanes: Lanes) -> tuple:
        """The thread."""
        return (lanes.of("thread"),)


class View:
    """A part of an array whose first indices are fixed."""

    def __init__(self, base: Memory, first: tuple) -> None:
        self.base, self.first = base, first
        self.shape = base.shape[len(first) :]
        self.ndim, self.size, self.dtype = len(self.shape), math.prod(self.shape), base.dtype

    def __len__(self) -> int:
        return self.shape[0]

    def _index(self, index: Any) -> tuple:
        if any(type(part) is np.ndarray for part in self.first):
            raise Refused("a different row for each lane")  # a branch would have to select the rows of its lanes
        return (*self.first, *(index if isinstance(index, tuple) else (index,)))

    def get(self, lanes: Lanes, index: Any) -> Any:
        """Like `Memory.get`."""
        return self.base.get(lanes, self._index(index))

    def put(self, lanes: Lanes, index: Any, value: Any) -> None:
        """Like `Memory.put`."""
        self.base.put(lanes, self._index(index), value)
