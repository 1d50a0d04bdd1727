"""The part of a device array that needs only a NumPy array of its shape, dtype and strides, not its elements."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..base.arguments import shown, whole


class Strided:
    """A device array with Numba's host interface, except for copies and the making of views.

    A subclass has ``data``, ``address``, `copy_to_host`, `copy_to_device` and `_view`. The elements of ``data`` are not
    read here, only its layout.
    """

    __slots__ = ("__weakref__", "data")

    data: np.ndarray
    address: Any

    shape = property(lambda self: self.data.shape)
    dtype = property(lambda self: self.data.dtype)
    size = property(lambda self: self.data.size)
    ndim = property(lambda self: self.data.ndim)
    strides = property(lambda self: self.data.strides)
    nbytes = property(lambda self: self.data.nbytes)
    T = property(lambda self: self._view(self.data.T))

    def _view(self, data: np.ndarray) -> Any:
        """The device array for ``data``, a part of this one's."""
        raise NotImplementedError

    def copy_to_host(self, ary: np.ndarray | None = None, stream: Any = 0) -> np.ndarray:
        """The elements as a host array, written into ``ary`` if given."""
        raise NotImplementedError

    def copy_to_device(self, ary: Any, stream: Any = 0) -> None:
        """Overwrite the elements with those of a host or device array of the same shape and type."""
        raise NotImplementedError

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        data = self.data
        return {
            "shape": data.shape,
            "typestr": data.dtype.str,
            "version": 3,
            "strides": None if data.flags.c_contiguous else data.strides,
            "data": (self.address if data.size else 0, not data.flags.writeable),
        }

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        """A copy on the host."""
        if copy is False:
            raise ValueError("converting a device array to a host array needs a copy")
        return np.asarray(self.copy_to_host(), dtype)

    def __len__(self) -> int:
        return len(self.data)

    def __getitem__(self, index: Any) -> Any:
        """A view that shares the memory, or one element, copied to the host."""
        return self.getitem(index)

    def __setitem__(self, index: Any, value: Any) -> None:
        self.setitem(index, value)

    def getitem(self, item: Any, stream: Any = 0) -> Any:
        """``array[item]``; an element is copied on a stream."""
        part, is_element = self._part(item)
        return part.copy_to_host(stream=stream)[()] if is_element else part

    def setitem(self, key: Any, value: Any, stream: Any = 0) -> None:
        """``array[key] = value``, copied on a stream."""
        target, _ = self._part(key)
        if not isinstance(value, Strided):
            value = np.broadcast_to(np.asarray(value, target.dtype), target.shape)
        target.copy_to_device(value, stream)

    def _part(self, item: Any) -> tuple[Any, bool]:
        """The view that an index selects, and whether NumPy would return the element instead."""
        where = item if isinstance(item, tuple) else (item,)
        if isinstance(item, str):  # a field of records
            return self._view(self.data[item]), False
        if any(isinstance(key, list | np.ndarray | bool | np.bool_) for key in where):
            raise NotImplementedError("this would be a copy, not a view")
        entire = any(key is Ellipsis for key in where)
        part = self.data[where if entire else (*where, ...)]
        return self._view(part), not (entire or part.ndim)

    def reshape(self, *shape: Any, order: Any = "C") -> Any:
        """A view with another shape."""
        return self._view(self.data.reshape(*shape, order=order))

    def ravel(self, order: Any = "C") -> Any:
        """A one-dimensional view."""
        return self.reshape(-1, order=order)

    def view(self, dtype: Any) -> Any:
        """A view of the same bytes as another type."""
        return self._view(self.data.view(dtype))

    @property
    def flags(self) -> dict[str, bool]:
        """Whether the elements are in C order, in Fortran order."""
        flags = self.data.flags
        return {"C_CONTIGUOUS": flags.c_contiguous, "F_CONTIGUOUS": flags.f_contiguous}

    def is_c_contiguous(self) -> bool:
        """Whether the elements are in C order."""
        return self.data.flags.c_contiguous

    def is_f_contiguous(self) -> bool:
        """Whether the elements are in Fortran order."""
        return self.data.flags.f_contiguous

    def transpose(self, axes: Any = None) -> Any:
        """A view with the axes in another order, or reversed."""
        return self._view(self.data.transpose(axes))

    def squeeze(self, axis: Any = None, stream: Any = 0) -> Any:
        """A view without axes of length 1."""
        return self._view(self.data.squeeze(axis))

    def split(self, section: int, stream: Any = 0) -> list[Any]:
        """Views of `section` elements each of a one-dimensional array; the last has the remaining ones."""
        section = whole("section", section, 1)
        return [self[start : start + section] for start in range(0, len(self), section)]

    def _on_host(self, ary: np.ndarray | None) -> np.ndarray:
        """The host array to write to: the given one, or a new one."""
        if ary is None:
            fortran = self.data.flags.f_contiguous and not self.data.flags.c_contiguous
            return np.empty(self.shape, self.dtype, order="F" if fortran else "C")
        if not isinstance(ary, np.ndarray):
            raise TypeError(f"ary: expected a NumPy array, got {shown(ary)}")
        if ary.shape != self.shape or ary.dtype != self.dtype:
            raise ValueError(f"cannot copy {self!r} into a host array of {ary.shape} {ary.dtype}")
        return ary

    def _expect(self, data: Any) -> None:
        """Refuse an array of another shape or type."""
        if data.shape != self.shape or data.dtype != self.dtype:
            raise ValueError(f"cannot copy {data.shape} {data.dtype} into {self!r}")
