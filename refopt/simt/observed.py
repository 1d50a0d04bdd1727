"""The array that a kernel sees while it is observed: every element access goes through the observer."""

from __future__ import annotations

import operator
from typing import Any

import numpy as np

from .diagnosis import is_outside
from .errors import OutOfBounds, here
from .memory import Buffer


class ObservedArray:
    """Wraps a view of a buffer: access to one element is reported, slicing gives another wrapper."""

    __slots__ = ("_buffer", "_data", "_itemsize", "_observer", "_offset")

    def __init__(self, buffer: Buffer, data: np.ndarray, observer: Any) -> None:
        self._buffer, self._data, self._observer = buffer, data, observer
        self._offset = data.__array_interface__["data"][0] - buffer.data.__array_interface__["data"][0]
        self._itemsize = data.itemsize

    shape = property(lambda self: self._data.shape)
    dtype = property(lambda self: self._data.dtype)
    size = property(lambda self: self._data.size)
    ndim = property(lambda self: self._data.ndim)
    strides = property(lambda self: self._data.strides)
    itemsize = property(lambda self: self._data.itemsize)
    nbytes = property(lambda self: self._data.nbytes)
    T = property(lambda self: self._wrap(self._data.T))

    def __len__(self) -> int:
        return len(self._data)

    def __getitem__(self, index: Any) -> Any:
        offset = self._locate(index)
        if offset is None:
            return self._wrap(self._data[index])
        self._observer.read(self._buffer, offset, self._itemsize)
        return self._data[index]

    def __setitem__(self, index: Any, value: Any) -> None:
        offset = self._locate(index)
        if offset is not None:
            self._observer.write(self._buffer, offset, self._itemsize)
            self._data[index] = value
            return
        part = self[index]
        values = value[...] if isinstance(value, ObservedArray) else np.broadcast_to(value, part.shape)
        for at in np.ndindex(part.shape):
            part[at] = values[at]

    def atomic(self, index: Any) -> np.ndarray:
        """Report an atomic access to an element; the plain array to do it on."""
        offset = self._locate(index)
        if offset is None:
            raise TypeError(f"an atomic operation needs the index of one element, not {index!r}")
        self._observer.atomic(self._buffer, offset, self._itemsize)
        return self._data

    def view(self, dtype: Any) -> ObservedArray:
        """The same bytes as another type."""
        return self._wrap(self._data.view(dtype))

    def reshape(self, *shape: Any) -> ObservedArray:
        """The same elements in another shape."""
        return self._wrap(self._data.reshape(*shape))

    def ravel(self) -> ObservedArray:
        """The same elements in one dimension."""
        return self.reshape(-1)

    def _wrap(self, data: np.ndarray) -> ObservedArray:
        return ObservedArray(self._buffer, data, self._observer)

    def _locate(self, index: Any) -> int | None:
        """The byte offset of the element at an index, or None if the index gives a view."""
        data = self._data
        where = index if type(index) is tuple else (index,)
        if len(where) != data.ndim:
            return self._check_slice(index)
        offset = self._offset
        for at, extent, stride in zip(where, data.shape, data.strides, strict=True):
            if type(at) is not int:
                if isinstance(at, slice) or at is Ellipsis or at is None:
                    return self._check_slice(index)
                at = operator.index(at)
            if not -extent <= at < extent:
                raise self._outside(index)
            offset += (at + extent if at < 0 else at) * stride
        return offset

    def _check_slice(self, index: Any) -> int | None:
        """Check the integers in an index that gives a view."""
        try:
            self._data[index]
        except IndexError as error:
            if is_outside(error):
                raise self._outside(index) from None
            raise
        return None

    def _outside(self, index: Any) -> OutOfBounds:
        data, label = self._data, self._buffer.label
        return OutOfBounds(
            f"index {index} is out of bounds for {label}, shape {data.shape}, {data.dtype}",
            here(),
            array=label,
            index=index,
        )
