"""Pinned host arrays: copies from and to them run beside the host, which has to wait for their stream."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

from . import streams
from .errors import DataRace, Place, Site
from .memory import POISON
from .state import current

_READ = """
    all any argmax argmin argpartition argsort astype choose clip compress conj copy cumprod cumsum dot flatten
    item max mean min nonzero prod repeat round searchsorted std sum take tobytes tofile tolist trace var
    __bool__ __complex__ __contains__ __float__ __index__ __int__ __repr__ __str__
"""
_WRITTEN = "fill itemset partition put sort"


class PinnedArray(np.ndarray):
    """A host array that knows which watched copies from and to it are under way."""

    copies: list[tuple[bool, streams.Operation, Place]]  # whether it is written, by what, and where that was asked for

    def __array_finalize__(self, other: Any) -> None:
        self.copies = getattr(other, "copies", [])  # of the whole: a view's are the same

    def __getitem__(self, index: Any) -> Any:
        part = super().__getitem__(index)
        if not isinstance(part, PinnedArray):
            self.host("reads")
        return part

    def __setitem__(self, index: Any, value: Any) -> None:
        self.host("writes")
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

        first = [seen(args[0], "writes" if function in (np.copyto, np.put, np.place) else "reads")] if args else []
        named = {name: seen(value, "writes" if name == "out" else "reads") for name, value in options.items()}
        return function(*first, *map(seen, args[1:]), **named)

    def host(self, how: str) -> None:
        """Raise DataRace if the host reads, or writes, while a copy is under way; forget those that are done."""
        if not self.copies:
            return
        self.copies[:] = [one for one in self.copies if not streams.is_waited_for(one[1])]
        for written, operation, place in self.copies:
            if written or how == "writes":
                second = Site.of(sys._getframe(1)).place(None)
                raise DataRace(
                    f"data race on a pinned array\n  {operation.name} in {place}\n  not ordered with the host, which "
                    f"{how} it before the stream of the copy is synchronised (rule host-access)",
                    second,
                    first=place,
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
    """A copy on a stream reads, or writes, a host array; what to do it on. Without a stream the host waits for it.

    A copy that was watched is waited for even if the host looks at the array later, when nothing is.
    """
    if not isinstance(array, PinnedArray):
        return array
    observer = current.observer
    watched = observer is not None and observer.watching and observer.rules.host_access
    if watched and streams.as_stream(stream) is not streams.default_stream():
        array.copies.append((written, operation, Site.of(sys._getframe(1)).place(None)))
    return _plain(array)


def pinned_array(shape: Any, dtype: Any = np.float64, strides: Any = None, order: Any = "C") -> np.ndarray:
    """A host array that copies on a stream run beside; its bytes are poisoned."""
    array = np.empty(shape, dtype, order=order)
    array.reshape(-1, order="A").view(np.uint8)[...] = POISON
    return array.view(PinnedArray)
