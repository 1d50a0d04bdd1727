"""The array that an observed kernel sees: it reports every access to an element to the observer."""

from __future__ import annotations

import operator
import sys
from sys import gettrace
from typing import Any

import numpy as np

from ..base.diagnosis import is_outside
from ..base.errors import OutOfBounds, UninitializedRead
from ..base.places import here, is_nobodys, report
from ..base.state import current
from .buffers import Buffer, describe
from .whole import Whole

_types: dict[int, np.dtype] = {}  # by the number in `Buffer.types`


class ObservedArray(Whole):
    """Wraps a view of a buffer: access to an element is reported, and slicing returns another wrapper."""

    __slots__ = ("_buffer", "_data", "_itemsize", "_observer", "_offset", "_read", "_records", "_shape", "_strides")

    def __init__(self, buffer: Buffer, data: np.ndarray, observer: Any) -> None:
        self._buffer, self._data, self._observer = buffer, data, observer
        self._offset = data.__array_interface__["data"][0] - buffer.data.__array_interface__["data"][0]
        self._itemsize, self._shape, self._strides = data.itemsize, data.shape, data.strides
        self._records = data.dtype.names is not None
        self._read = observer.reader(buffer)

    def __getitem__(self, index: Any) -> Any:
        if (gettrace() is not None or current.runner is None) and is_nobodys(sys._getframe(1)):
            return self._data[index]
        try:
            offset = self._locate(index)
        except OutOfBounds as error:
            return self.gone_past(index, error)
        if offset is None:
            return self._part(index)
        if self._records:
            return ObservedRecord(self._buffer, self._data[index], self._observer, offset)
        if self._buffer.types is not None:
            self._read_as(offset)
        self._read(self._buffer, offset, self._itemsize, sys._getframe(1))
        return self._data[index]

    def __setitem__(self, index: Any, value: Any) -> None:
        try:
            offset = self._locate(index)
        except OutOfBounds as error:
            self.gone_past(index, error)
            return
        if offset is None:
            self._assign(index, value)
            return
        data = self._data
        if self._buffer.types is not None:
            self._write_as(offset)
        if isinstance(value, ObservedArray | ObservedRecord):
            value = value.plain()
        self._observer.write(self._buffer, offset, self._itemsize, value, data.dtype, sys._getframe(1))
        data[index] = value

    def atomic(self, index: Any, fresh: bool = False) -> np.ndarray:
        """Report an atomic access to an element, possibly uninitialized if `fresh`; return the array to access."""
        offset = self._locate(index)
        if offset is None:
            raise TypeError(f"an atomic operation needs the index of one element, not {index!r}")
        if self._buffer.types is not None:
            self._read_as(offset)
            self._write_as(offset)
        self._observer.atomic(self._buffer, offset, self._itemsize, fresh)
        return self._data

    def _write_as(self, offset: int) -> None:
        """Note the type that bytes are written as: 0 for an unsigned one, which may hold any bits."""
        own, types = self._data.dtype, self._buffer.types[:, offset : offset + self._itemsize]
        _types.setdefault(own.num + 1, own)
        types[0] = 0 if own.kind in "ub" else own.num + 1
        types[1] |= 1 << own.num

    def _read_as(self, offset: int) -> None:
        """Report nonzero bytes that were written as this type and then overwritten as another.

        Bytes that were only ever written as another type are read for their bits, as in Numba's documentation.
        """
        buffer, end, own = self._buffer, offset + self._itemsize, self._data.dtype
        last, ever = buffer.types[:, offset:end]
        other = last[(ever & 1 << own.num != 0) & (last != 0) & (last != own.num + 1)]
        if not other.size or not buffer.data[offset:end].any():
            return
        name = _types[int(other[0])]
        what = f"{describe(buffer, offset)} is read as {own}, and was overwritten as {name} (rule shared-types)"
        report(UninitializedRead(what, here(), array=buffer.label, offset=offset))

    def _wrap(self, data: np.ndarray) -> ObservedArray:
        return ObservedArray(self._buffer, data, self._observer)

    def _locate(self, index: Any) -> int | None:
        """The byte offset of the element at an index, or None if the index selects a view."""
        shape = self._shape
        if type(index) is int and len(shape) == 1:
            if 0 <= index < shape[0]:
                return self._offset + index * self._strides[0]
        elif type(index) is tuple and len(index) == 2 == len(shape):
            i, j = index
            if type(i) is int and type(j) is int and 0 <= i < shape[0] and 0 <= j < shape[1]:
                strides = self._strides
                return self._offset + i * strides[0] + j * strides[1]
        where = index if type(index) is tuple else (index,)
        if len(where) != len(shape):
            return self._check_slice(index)
        offset = self._offset
        for at, extent, stride in zip(where, shape, self._strides, strict=True):
            if type(at) is not int:
                if isinstance(at, slice | str | list | np.ndarray) or at is Ellipsis or at is None:
                    return self._check_slice(index)
                at = operator.index(at)
            if not -extent <= at < extent:
                raise self._outside(index)
            if at < 0:
                if self._observer.rules.negative_index:
                    raise self._outside(index, "negative (rule negative-index)")
                at += extent
            offset += at * stride
        return offset

    def _check_slice(self, index: Any) -> int | None:
        """Check the integers in an index that selects a view."""
        try:
            self._data[index]
        except IndexError as error:
            if is_outside(error):
                raise self._outside(index) from None
            raise
        where = index if type(index) is tuple else (index,)
        parts = [at for part in where for at in ((part.start, part.stop) if isinstance(part, slice) else (part,))]
        if self._observer.rules.negative_index and any(isinstance(at, int | np.integer) and at < 0 for at in parts):
            raise self._outside(index, "negative (rule negative-index)")
        return None

    def gone_past(self, index: Any, error: OutOfBounds) -> Any:
        """For an element out of bounds: raise the error, or list it and return a zero."""
        if (len(index) if type(index) is tuple else 1) != self.ndim:
            raise error
        report(error)
        return np.zeros(1, self._data.dtype)[0]

    def _outside(self, index: Any, how: str = "out of bounds") -> OutOfBounds:
        data, label = self._data, self._buffer.label
        return OutOfBounds(
            f"index {index} is {how} for {label}, shape {data.shape}, {data.dtype}",
            here(),
            array=label,
            index=index,
        )


class ObservedRecord:
    """One element of an array of records, whose field accesses are reported."""

    __slots__ = ("_at", "_buffer", "_observer", "_record")

    def __init__(self, buffer: Buffer, record: Any, observer: Any, at: int) -> None:
        for name, value in (("_buffer", buffer), ("_record", record), ("_observer", observer), ("_at", at)):
            object.__setattr__(self, name, value)

    dtype = property(lambda self: self._record.dtype)

    def __getitem__(self, field: Any) -> Any:
        name, kind, at = self._field(field)
        part = self._record[name]
        if kind.shape:
            return ObservedArray(self._buffer, part, self._observer)
        if kind.names is not None:
            return ObservedRecord(self._buffer, part, self._observer, at)
        if not is_nobodys(sys._getframe(1)):
            self._observer.read(self._buffer, at, kind.itemsize, sys._getframe(1))
        return part

    def __setitem__(self, field: Any, value: Any) -> None:
        name, kind, at = self._field(field)
        if kind.shape:
            self[name][...] = value
            return
        if isinstance(value, ObservedArray | ObservedRecord):
            value = value.plain()
        self._observer.write(self._buffer, at, kind.itemsize, value, kind, sys._getframe(1))
        self._record[name] = value

    def __getattr__(self, name: str) -> Any:
        if name not in self._record.dtype.names:
            raise AttributeError(f"a record of {self._record.dtype} has no field {name}")
        return self[name]

    def __setattr__(self, name: str, value: Any) -> None:
        self[name] = value

    def plain(self) -> np.void:
        """A copy of the whole record."""
        if not is_nobodys(sys._getframe(1)):
            self._observer.read(self._buffer, self._at, self._record.dtype.itemsize)
        return self._record.copy()

    def __array__(self, dtype: Any = None, copy: Any = None) -> np.ndarray:
        return np.asarray(self.plain(), dtype)

    def __repr__(self) -> str:
        return f"ObservedRecord({self._record!r})"

    def _field(self, field: Any) -> tuple[str, np.dtype, int]:
        dtype = self._record.dtype
        name = field if isinstance(field, str) else dtype.names[field]
        kind, at = dtype.fields[name][:2]
        return name, kind, self._at + at
