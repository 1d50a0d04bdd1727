"""Lanes, and the arrays that they index."""

from __future__ import annotations

import math
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from ..base.threads import WARP_SIZE
from ..memory.shared import poisoned
from .typed import Refused


class Lanes:
    """Threads that run together: all or some of a batch, in the order of their numbers."""

    def __init__(self, batch: Any, numbers: np.ndarray | None = None) -> None:
        self.batch, self.numbers = batch, numbers
        self.count: int = batch.count if numbers is None else len(numbers)
        self._known: dict[str, Any] = {}
        self._among: dict[Lanes, np.ndarray] = {}

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

    def among(self, all_lanes: Lanes) -> np.ndarray:
        """The positions of these lanes among all, some or all of which they are."""
        if self.count == all_lanes.count:  # not kept: lanes that refer to themselves are freed late
            return self.batch.values["thread"][: self.count]
        if all_lanes.numbers is None:
            return self.of("thread")
        if all_lanes not in self._among:
            self._among[all_lanes] = np.searchsorted(all_lanes.numbers, self.of("thread"))
        return self._among[all_lanes]

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


def _parts(index: Any) -> tuple:
    """The parts of an index: integers and slices."""
    if type(index) is int:
        return (index,)
    parts = index if isinstance(index, tuple) else (index,)
    for part in parts:
        if type(part) is np.ndarray and part.dtype.kind not in "iu":
            raise Refused("an index that is no integer")
        if isinstance(part, bool | np.bool_) or part is ... or part is None:
            raise Refused("an index that is no integer")
    return parts


class Memory:
    """An array as kernels see it: `data` may have axes before the kernel's, where `at` gives a lane's index."""

    kept = 0  # number of axes before the kernel's

    def __init__(self, data: np.ndarray, run: Any = None) -> None:
        self.data, self.run = data, run
        self.shape, self.dtype = data.shape[self.kept :], data.dtype

    size = property(lambda self: math.prod(self.shape))
    ndim = property(lambda self: len(self.shape))
    itemsize = property(lambda self: self.dtype.itemsize)
    nbytes = property(lambda self: self.size * self.itemsize)
    strides = property(lambda self: self.data.strides[self.kept :])

    def at(self, lanes: Lanes) -> tuple:
        """The index of a lane's elements on the axes before the kernel's."""
        return ()

    def where(self, lanes: Lanes, index: Any) -> tuple:
        """The index of elements in `data`."""
        return (*self.at(lanes), *_parts(index))

    def get(self, lanes: Lanes, index: Any) -> Any:
        """The element of each lane, or a view if an index has fewer axes or slices."""
        where = self.where(lanes, index)
        if _is_view(where, self.data.ndim):
            whole = View(self, tuple(Span(0, extent) for extent in self.shape))
            return whole.get(lanes, index)
        return self.data[where]

    def put(self, lanes: Lanes, index: Any, value: Any) -> None:
        """Write the element of each lane, in the order of the lanes."""
        where = self.where(lanes, index)
        if _is_view(where, self.data.ndim):
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
        if type(index) is np.ndarray:
            return super().get(lanes, index)
        parts = index if isinstance(index, tuple) else (index,)
        ends = [end for part in parts if type(part) is slice for end in (part.start, part.stop)]
        if np.ndarray not in map(type, (*parts, *ends)):
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
    """A local array of the lanes that declared it, the first axis of `data`.

    As long as all indices are shared by the lanes, as in a loop that a compiler unrolls, an element is kept as it was
    assigned, like a variable: in `elements`, by its index. The first other index makes `data` of them.
    """

    kept = 1

    def __init__(self, lanes: Lanes, shape: tuple[int, ...], dtype: np.dtype) -> None:
        self.lanes, self.shape, self.dtype = lanes, shape, dtype
        self.elements: dict[tuple[int, ...], Any] = {}
        self.unwritten = poisoned((1,), dtype)[0]

    @cached_property
    def data(self) -> np.ndarray:  # type: ignore[override]
        """All elements of all lanes, from now on the only copy."""
        data = np.full((self.lanes.count, *self.shape), self.unwritten)
        for index, value in self.elements.items():
            data.reshape(-1, self.size)[:, np.ravel_multi_index(index, self.shape)] = value
        self.elements.clear()
        return data

    def at(self, lanes: Lanes) -> tuple:
        """The lanes' positions among those that declared the array."""
        return (lanes.among(self.lanes),)

    def _element(self, index: Any) -> tuple[int, ...] | None:
        """The index of an element that all lanes share, while elements are kept as they were assigned."""
        try:
            if index in self.elements:
                return index
        except TypeError:  # the index of a lane
            return None
        parts = index if type(index) is tuple else (index,)
        shared = all(type(part) is int or isinstance(part, np.integer) for part in parts)
        if not shared or len(parts) != len(self.shape) or "data" in self.__dict__:
            return None
        return tuple(range(extent)[part] for part, extent in zip(parts, self.shape, strict=True))

    def get(self, lanes: Lanes, index: Any) -> Any:
        """Like `Memory.get`."""
        element = self._element(index)
        if element is None:
            return super().get(lanes, index)
        value = self.elements.get(element, self.unwritten)
        whole = lanes.count == self.lanes.count or type(value) is not np.ndarray
        return value if whole else value[self.at(lanes)]

    def put(self, lanes: Lanes, index: Any, value: Any) -> None:
        """Like `Memory.put`."""
        element = self._element(index)
        if element is None:
            super().put(lanes, index, value)
            return
        new = value.astype(self.dtype, copy=False) if type(value) is np.ndarray else self.dtype.type(value)
        if lanes.count < self.lanes.count:
            every = np.empty(self.lanes.count, self.dtype)
            every[:] = self.elements.get(element, self.unwritten)
            every[self.at(lanes)] = new
            new = every
        self.elements[element] = new


def _is_view(where: tuple, axes: int) -> bool:
    return len(where) < axes or slice in map(type, where)


def _wide(index: Any, default: Any = None) -> Any:
    """An index, or an end of a slice, in 64 bits."""
    if type(index) is not np.ndarray:
        return default if index is None else int(index)
    if index.dtype.kind not in "iu" or index.dtype == np.uint64:
        raise Refused(f"a view by an index of {index.dtype}")
    return index.astype(np.int64, copy=False)


class Span(NamedTuple):
    """A slice of an axis; start and length may differ by lane."""

    start: Any
    length: Any

    def at(self, index: Any) -> Any:
        """The index on the axis of an element, or the part of the slice that a slice selects.

        Raises:
            IndexError: for an index out of bounds, which is left to a launch by threads.
        """
        if type(index) is slice:
            if index.step not in (None, 1):
                raise Refused("a slice with a step")
            ends = _wide(index.start, 0), _wide(index.stop, self.length)
            if np.ndarray not in map(type, (*ends, self.length)):
                shared = range(self.length)[slice(*ends)]
                return Span(self.start + shared.start, len(shared))
            first, last = (np.clip(np.where(end < 0, end + self.length, end), 0, self.length) for end in ends)
            count = np.maximum(last - first, 0)
            same = count.min() == count.max()  # in all lanes, as it usually is
            return Span(self.start + first, int(count.min()) if same else count)
        index = _wide(index)
        if type(index) is type(self.length) is int:
            return self.start + range(self.length)[index]
        if np.any(index < 0):
            index = np.where(index < 0, index + self.length, index)
        if np.any(index < 0) or np.any(index >= self.length):
            raise IndexError("an index outside a view")
        return self.start + index


class View:
    """A part of an array: on each axis one index or a `Span`, which may differ by lane."""

    def __init__(self, base: Memory, parts: tuple) -> None:
        self.base, self.parts = base, parts

    shape = property(lambda self: tuple(part.length for part in self.parts if type(part) is Span))
    size = property(lambda self: math.prod(self.shape))
    ndim = property(lambda self: len(self.shape))
    dtype = property(lambda self: self.base.dtype)

    def within(self, index: Any) -> tuple[tuple, bool]:
        """The index of elements in the array, and whether it is that of a view."""
        left = [*_parts(index)]
        parts = tuple(part.at(left.pop(0) if left else _ALL) if type(part) is Span else part for part in self.parts)
        if left:
            raise IndexError("too many indices")
        return parts, Span in map(type, parts)

    def get(self, lanes: Lanes, index: Any) -> Any:
        """Like `Memory.get`."""
        parts, is_view = self.within(index)
        return View(self.base, parts) if is_view else self.base.get(lanes, parts)

    def put(self, lanes: Lanes, index: Any, value: Any) -> None:
        """Like `Memory.put`."""
        parts, is_view = self.within(index)
        if is_view:
            raise Refused("an assignment to a view")
        self.base.put(lanes, parts, value)


_ALL = slice(None)


def length(value: Any) -> Any:
    """`len` of an array or a tuple."""
    return value.shape[0] if isinstance(value, Memory | View) else len(value)
