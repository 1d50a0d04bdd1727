"""NumPy's operations on an observed array as a whole: functions, methods and operators that take all elements."""

from __future__ import annotations

import operator
import sys
from typing import Any

import numpy as np

from ..base.places import is_nobodys
from .shared import is_field

_VIEWS = "squeeze", "swapaxes", "transpose", "diagonal", "view", "reshape", "ravel"
_ABOUT = "shape", "dtype", "size", "ndim", "strides", "itemsize", "nbytes", "flags", "ctypes"
_CONVERSIONS = "__contains__", "__bool__", "__int__", "__float__", "__index__"
_UNREAD = np.shape, np.size, np.ndim, np.isrealobj, np.iscomplexobj, np.real, np.imag, np.atleast_1d
_IN_PLACE = "sort", "partition", "put"


def _of_data(name: str) -> property:
    """An attribute that reads no element."""
    return property(operator.attrgetter(f"_data.{name}"))


def _of_plain(name: str) -> Any:
    """A method that reads all of them."""
    return lambda self, *args: getattr(self.plain(), name)(*args)


class Whole(np.lib.mixins.NDArrayOperatorsMixin):
    """Each of these operations reads, or writes, every element, and reports it."""

    __slots__ = ()
    _buffer: Any
    _data: np.ndarray
    _observer: Any
    _offset: int

    shape, dtype, size, ndim, strides, itemsize, nbytes, flags, ctypes = map(_of_data, _ABOUT)
    T = property(lambda self: self._wrap(self._data.T))
    flat = property(lambda self: self.ravel())
    real = property(lambda self: self._wrap(self._data.real))
    imag = property(lambda self: self._wrap(self._data.imag) if self.dtype.kind == "c" else np.imag(self.plain()))
    __contains__, __bool__, __int__, __float__, __index__ = map(_of_plain, _CONVERSIONS)

    def __getitem__(self, index: Any) -> Any:
        raise NotImplementedError

    def __setitem__(self, index: Any, value: Any) -> None:
        raise NotImplementedError

    def _wrap(self, data: np.ndarray) -> Any:
        raise NotImplementedError

    def __len__(self) -> int:
        return len(self._data)

    def __iter__(self) -> Any:
        return map(self.__getitem__, range(len(self._data)))

    def __repr__(self) -> str:
        return f"Observed({self._data!r})"

    def plain(self) -> np.ndarray:
        """A copy of all elements."""
        if not is_nobodys(sys._getframe(1)):
            self._all(lambda offset, nbytes, _: self._observer.read(self._buffer, offset, nbytes))
        return self._data.copy()

    def _all(self, report: Any) -> None:
        """Report every element, as one access if they are contiguous."""
        data = self._data
        if data.flags.c_contiguous:
            if data.size:
                report(self._offset, data.nbytes, ...)
            return
        steps = data.strides
        for at in np.ndindex(data.shape):
            report(self._offset + sum(i * s for i, s in zip(at, steps, strict=True)), data.itemsize, at)

    def _overwrite(self, values: np.ndarray) -> None:
        """Write all elements; `values` has the same shape and type."""

        def report(offset: int, nbytes: int, at: Any) -> None:
            self._observer.write(self._buffer, offset, nbytes, values[at], self._data.dtype)

        self._all(report)
        self._data[...] = values

    def _part(self, index: Any) -> Any:
        """The elements that an index with slices selects: a view or, as in NumPy, a copy."""
        part = self._data[index]
        if isinstance(part, np.ndarray) and (not part.size or np.may_share_memory(part, self._data)):
            return self._wrap(part)
        return self.plain()[index]

    def _assign(self, index: Any, value: Any) -> None:
        """Write the elements that an index with slices selects."""
        part = self._part(index)
        if isinstance(part, Whole):
            values = np.empty(part.shape, part.dtype)
            values[...] = plain(value)
            part._overwrite(values)
            return
        numbers = np.arange(self.size).reshape(self.shape)[index]
        values = np.broadcast_to(plain(value), numbers.shape)
        for k, number in np.ndenumerate(numbers):
            self[np.unravel_index(int(number), self.shape)] = values[k]

    def fill(self, value: Any) -> None:
        """Set all elements to a value."""
        self._assign(..., value)

    def _shared(self, data: np.ndarray) -> Any:
        if data.size and not np.may_share_memory(data, self._data):
            self.plain()
            return data
        return self._wrap(data)

    def __array__(self, dtype: Any = None, copy: Any = None) -> np.ndarray:
        return self.plain() if dtype is None else self.plain().astype(dtype)

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, out: Any = (), **options: Any) -> Any:
        """Any ufunc: all of its inputs are read, and all of its outputs written."""
        inputs = tuple(plain(one) for one in inputs)
        if method == "at":
            raise TypeError(f"a kernel cannot call {ufunc.__name__}.at: use atomics")
        if not out:
            return getattr(ufunc, method)(*inputs, **options)
        scratch = tuple(one._data.copy() if isinstance(one, Whole) else one for one in out)
        getattr(ufunc, method)(*inputs, out=scratch, **options)
        for one, values in zip(out, scratch, strict=True):
            if isinstance(one, Whole):
                one._overwrite(values)
        return out[0] if len(out) == 1 else out

    def __array_function__(self, function: Any, types: Any, args: tuple, options: dict) -> Any:
        """Any other NumPy function: all of its inputs are read, and its output is written, except for `_UNREAD`."""
        if function is np.copyto:
            args[0][...] = args[1]
            return None
        if function in _UNREAD:
            answer = function(self._data)
            return self._shared(answer) if isinstance(answer, np.ndarray) else answer
        target = options.pop("out", None)
        answer = function(*(plain(one) for one in args), **{name: plain(one) for name, one in options.items()})
        if target is None:
            return answer
        target[...] = answer
        return target

    def __getattr__(self, name: str) -> Any:
        """A field of an array of records, or another attribute of arrays."""
        if is_field(object.__getattribute__(self, "_data").dtype, name):
            return self._wrap(self._data[name])
        if name in _VIEWS:
            return lambda *args, **options: self._shared(getattr(self._data, name)(*args, **options))
        if name in _IN_PLACE:
            return lambda *args, **options: self._change(name, *args, **options)
        if hasattr(np.ndarray, name) and not name.startswith("_"):
            return getattr(self.plain(), name)
        raise AttributeError(f"an array has no attribute {name}")

    def _change(self, name: str, *args: Any, **options: Any) -> None:
        values = self.plain()
        getattr(values, name)(*args, **options)
        self._overwrite(values)


def plain(value: Any) -> Any:
    """A value in which copies of the elements replace observed arrays."""
    if isinstance(value, list | tuple) and not hasattr(value, "_fields"):
        return type(value)(plain(one) for one in value)
    return value.plain() if hasattr(type(value), "plain") else value
