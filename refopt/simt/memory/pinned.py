"""Pinned host arrays: copies of them, and kernels that access them, run asynchronously to the host."""

from __future__ import annotations

import sys
from typing import Any, NamedTuple

import numpy as np

from ..base import streams
from ..base.arguments import shown
from ..base.errors import DataRace, Place
from ..base.places import Site, report
from ..base.state import current
from .buffers import POISON, Buffer

_READ = """
    all any argmax argmin argpartition argsort astype choose clip compress conj copy cumprod cumsum dot flatten
    item max mean min nonzero prod repeat round searchsorted std sum take tobytes tofile tolist trace var
    __bool__ __complex__ __contains__ __float__ __index__ __int__ __repr__ __str__
"""
_WRITTEN = "fill itemset partition put sort"
_WRITERS = np.copyto, np.put, np.place, np.putmask, np.fill_diagonal, np.put_along_axis  # of their first argument


class Use(NamedTuple):
    """A watched copy from or to a part of an array."""

    part: np.ndarray
    written: bool
    operation: streams.Operation
    place: Place  # where it was requested


class PinnedArray(np.ndarray):
    """A host array that tracks the watched copies from and to it that are in flight, and accesses by kernels."""

    copies: list[Use]
    buffer: Buffer | None = None  # the memory that kernels access, if they do

    def __array_finalize__(self, other: Any) -> None:
        self.copies = getattr(other, "copies", [])  # of the whole array, shared by its views
        self.buffer = getattr(other, "buffer", None)

    def __getitem__(self, index: Any) -> Any:
        part = super().__getitem__(index)
        if not isinstance(part, PinnedArray):
            self.host("reads", index)
        elif not np.may_share_memory(_plain(part), _plain(self)):
            self.host("reads")
            return _plain(part)
        return part

    def __setitem__(self, index: Any, value: Any) -> None:
        self.host("writes", index)
        super().__setitem__(index, value)

    def __iter__(self) -> Any:
        return (self[i] for i in range(len(self)))

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, out: Any = (), **options: Any) -> Any:
        for one in inputs:
            if isinstance(one, PinnedArray):
                one.host("reads")
        for one in out:
            if isinstance(one, PinnedArray):
                one.host("writes")
        if out:
            options["out"] = tuple(map(_plain, out))
        answer = getattr(ufunc, method)(*map(_plain, inputs), **options)
        return out[0] if len(out) == 1 else answer

    def __array_function__(self, function: Any, types: Any, args: Any, options: Any) -> Any:
        def seen(value: Any, how: str = "reads") -> Any:
            if isinstance(value, list | tuple):
                return type(value)(seen(one) for one in value)
            if isinstance(value, PinnedArray):
                value.host(how)
            return _plain(value)

        first = [seen(args[0], "writes" if function in _WRITERS else "reads")] if args else []
        named = {name: seen(value, "writes" if name == "out" else "reads") for name, value in options.items()}
        return function(*first, *map(seen, args[1:]), **named)

    @property
    def flat(self) -> Any:
        """All elements in C order; they count as read."""
        self.host("reads")
        return super().flat

    def host(self, how: str, index: Any = ...) -> None:
        """Report a DataRace if the host reads, or writes, elements in use by the device; forget finished copies."""
        if not self.copies and (self.buffer is None or self.buffer.shadow is None):
            return
        whole = _plain(self)
        part = whole
        if index is not ... and not isinstance(index, str | list):
            part = whole[(*index, ...) if type(index) is tuple else (index, ...)]
            part = part if np.may_share_memory(part, whole) else whole
        self.copies[:] = [one for one in self.copies if not streams.is_waited_for(one.operation)]
        for one in self.copies:
            if (one.written or how == "writes") and np.shares_memory(one.part, part):
                report(_race(one, f"the host, which {how} it before the stream of the copy is synchronized"))
        shadow = self.buffer.shadow if self.buffer is not None else None
        if shadow is not None and shadow.owner.rules.host_access:
            shadow.owner.host(how.rstrip("s"), self.buffer, part)


def _race(one: Use, other: str) -> DataRace:
    """The error for a copy in flight and a conflicting access."""
    second = Site.of(sys._getframe(1)).place(None)
    return DataRace(
        f"data race on a pinned array\n  {one.operation.name} in {one.place}\n  not ordered with {other} "
        "(rule host-access)",
        second,
        first=one.place,
        second=second,
    )


def _delegate(name: str, how: str) -> Any:
    def method(self: PinnedArray, *args: Any, **options: Any) -> Any:
        self.host(how)
        return getattr(self.view(np.ndarray), name)(*map(_plain, args), **options)

    return method


for _name in _READ.split():
    setattr(PinnedArray, _name, _delegate(_name, "reads"))
for _name in _WRITTEN.split():
    setattr(PinnedArray, _name, _delegate(_name, "writes"))


def _plain(value: Any) -> Any:
    return value.view(np.ndarray) if isinstance(value, PinnedArray) else value


def copying(array: Any, operation: streams.Operation, stream: Any, written: bool) -> Any:
    """A copy on a stream reads, or writes, a host array; return the array to use. On the default stream the host waits.

    A watched copy must be waited for even if the host accesses the array only after the observe block.
    """
    observer, part = current.observer, _plain(array)
    watching = observer is not None and observer.watching
    for lock in locks if watching else ():
        lock.note(Use(part, written, operation, Site.of(sys._getframe(1)).place(None)))
    if not isinstance(array, PinnedArray) or not watching:
        return part
    if array.buffer is not None:
        observer.host_copy("write" if written else "read", operation, array.buffer, part)
    if not observer.rules.host_access:
        return part
    for one in array.copies:
        if (one.written or written) and not operation.after(one.operation) and np.shares_memory(one.part, part):
            report(_race(one, f"another {operation.name}"))
    if streams.as_stream(stream) is not streams.default_stream():
        array.copies.append(Use(part, written, operation, Site.of(sys._getframe(1)).place(None)))
    return part


class pinned:
    """Page-locks host arrays in a with block. Watched copies from and to them must finish before the block ends."""

    def __init__(self, *arylist: np.ndarray) -> None:
        check("pinned", arylist)
        self.arrays, self.uses = arylist, list[Use]()

    def __enter__(self) -> None:
        locks.append(self)

    def __exit__(self, kind: Any, *_: Any) -> None:
        locks.remove(self)
        for use in self.uses if kind is None else ():
            if not streams.is_waited_for(use.operation):
                report(_race(use, "the end of cuda.pinned, which comes before the stream of the copy is synchronized"))

    def note(self, use: Use) -> None:
        """Note a copy in flight."""
        if current.observer.rules.host_access and is_locked(use.part, self):
            self.uses.append(use)


locks: list[pinned] = []


def is_locked(array: np.ndarray, *among: pinned) -> bool:
    """Whether an array is part of a page-locked one, so that its copies run asynchronously to the host."""
    return any(np.may_share_memory(array, one) for lock in among or locks for one in lock.arrays)


def check(function: str, arrays: Any) -> None:
    """Refuse anything but contiguous arrays."""
    for i, ary in enumerate(arrays):
        if not isinstance(ary, np.ndarray) or not (ary.flags.c_contiguous or ary.flags.f_contiguous):
            raise TypeError(f"{function}: argument {i}: expected a contiguous NumPy array, got {shown(ary)}")


def pinned_array(shape: Any, dtype: Any = np.float64, strides: Any = None, order: Any = "C") -> np.ndarray:
    """A host array whose copies on a stream are asynchronous; its bytes are poisoned."""
    array = np.empty(shape, dtype, order=order)
    array.reshape(-1, order="A").view(np.uint8)[...] = POISON
    return array.view(PinnedArray)


def pinned_array_like(ary: Any) -> np.ndarray:
    """A pinned array with the shape, type and memory order of another."""
    array = np.empty_like(getattr(ary, "data", ary) if not isinstance(ary, np.ndarray) else _plain(ary))
    array.ravel("K").view(np.uint8)[...] = POISON
    return array.view(PinnedArray)
