"""Device arrays: typed, strided views of simulated device memory, with Numba's host interface."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from ..base import streams
from ..base.arguments import element, shown, wholes
from ..base.state import current, one_at_a_time
from . import initialized, pinned
from .buffers import Buffer, allocate, find
from .views import Strided


class DeviceArray(Strided):
    """An array in simulated device memory. The host accesses its elements only through copies."""

    __slots__ = ("buffer",)

    def __init__(self, buffer: Buffer, data: np.ndarray) -> None:
        self.buffer = buffer
        self.data = data  # a NumPy view of the buffer's bytes, which kernels receive

    @property
    def name(self) -> str | None:
        """A name for reports, shared by all views of one allocation."""
        return self.buffer.name

    @name.setter
    def name(self, name: str | None) -> None:
        self.buffer.name = name

    @property
    def offset(self) -> int:
        """Bytes from the start of the allocation to the first element."""
        return self.data.__array_interface__["data"][0] - self.buffer.data.__array_interface__["data"][0]

    @property
    def address(self) -> int:
        """The virtual address of the first element."""
        return self.buffer.base + self.offset

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        """A copy on the host if the executor replaces Numba, whose arrays allow this; else a TypeError."""
        if not current.as_numba:
            raise TypeError("a device array is not a host array: use copy_to_host()")
        return super().__array__(dtype, copy)

    def __repr__(self) -> str:
        return f"DeviceArray({self.name or hex(self.address)}, shape={self.shape}, dtype={self.dtype})"

    def coverage(self) -> np.ndarray:
        """Which bytes of the allocation belong to the array."""
        mask = np.zeros(self.buffer.nbytes, bool)
        shape, strides = (*self.shape, self.data.itemsize), (*self.strides, 1)
        np.ndarray(shape, bool, mask, self.offset, strides)[...] = True
        return mask

    def _view(self, data: np.ndarray) -> DeviceArray:
        if data.size and not np.may_share_memory(data, self.data):
            raise NotImplementedError("this would be a copy, not a view")
        return DeviceArray(self.buffer, data)

    def copy_to_host(self, ary: np.ndarray | None = None, stream: Any = 0) -> np.ndarray:
        """The elements as a host array (written into `ary` if given)."""
        ary = self._on_host(ary)
        with one_at_a_time:
            operation = _copied("DtoH", stream, self.nbytes, source=self)
            np.copyto(pinned.copying(ary, operation, stream, written=True), self.data)
            beside = isinstance(ary, pinned.PinnedArray) or pinned.is_locked(ary)
            if not beside or streams.as_stream(stream) is streams.default_stream():
                streams.returned(operation)
        return ary

    def copy_to_device(self, ary: Any, stream: Any = 0) -> None:
        """Overwrite the elements with those of a host or device array of the same shape and type."""
        source = ary if isinstance(ary, DeviceArray) else None
        data = ary.data if source is not None else np.asanyarray(ary)
        self._expect(data)
        with one_at_a_time:
            kind = "DtoD" if source is not None else "HtoD"
            operation = _copied(kind, stream, self.nbytes, source, self)
            if isinstance(data, pinned.PinnedArray):
                initialized.copied_poison(self, np.asarray(data))
            np.copyto(self.data, pinned.copying(data, operation, stream, written=False))


class Copy(NamedTuple):
    """A copy that the host requested: kind is HtoD, DtoH or DtoD."""

    kind: str
    nbytes: int
    source: str | None
    target: str | None
    stream: streams.Stream


def _copied(
    kind: str, stream: Any, nbytes: int, source: DeviceArray | None = None, target: DeviceArray | None = None
) -> streams.Operation:
    queue = streams.as_stream(stream)
    operation = queue.enqueue(f"{kind} copy")
    if target is not None:
        initialized.copied(target, source)
    if current.observer is not None:
        names = [end.name if end is not None else None for end in (source, target)]
        current.observer.copy(Copy(kind, nbytes, names[0], names[1], queue), operation, source, target)
    return operation


def device_array(
    shape: Any, dtype: Any = np.float64, strides: Any = None, order: Any = "C", stream: Any = 0
) -> DeviceArray:
    """An uninitialized device array; its bytes are poisoned."""
    shape, kind = wholes("shape", shape), element("dtype", dtype)
    if order not in ("C", "F"):
        raise ValueError(f"order: expected C or F, got {shown(order)}")
    if strides is not None:
        strides = wholes("strides", strides)
        if len(strides) != len(shape):
            raise ValueError(f"strides: expected {len(shape)}, as shape has, got {len(strides)}")
    nbytes = math.prod(shape) * kind.itemsize
    if strides is not None and nbytes:
        nbytes = sum((n - 1) * s for n, s in zip(shape, strides, strict=True)) + kind.itemsize
    buffer = allocate(nbytes)
    buffer.shape, buffer.dtype = shape, kind
    initialized.fresh(buffer)
    return DeviceArray(buffer, np.ndarray(shape, kind, buffer.data, strides=strides, order=order))


def over(array: np.ndarray) -> DeviceArray:
    """A device array that shares the memory of a host array, which must be dense in some order of its axes.

        >>> import numpy as np
        >>> from refopt import simt
        >>> host = np.zeros(3)
        >>> simt.over(host)[1] = 5
        >>> host
        array([0., 5., 0.])
    """
    if not isinstance(array, np.ndarray):
        raise TypeError(f"array: expected a NumPy array, got {shown(array)}")
    kind = element("array", array.dtype)
    flat = array.transpose(sorted(range(array.ndim), key=lambda axis: -array.strides[axis])).reshape(-1)
    if array.size and not (flat.flags.c_contiguous and np.may_share_memory(flat, array)):
        raise ValueError(f"array: expected a dense array, got shape {array.shape} and strides {array.strides}")
    buffer = allocate(array.nbytes, data=flat.view(np.uint8))
    buffer.shape, buffer.dtype, buffer.mapped = array.shape, kind, True
    strides = array.strides if array.size else None
    data = np.ndarray(array.shape, kind, buffer.data, strides=strides)
    return DeviceArray(buffer, data)


def device_array_like(ary: Any, stream: Any = 0) -> DeviceArray:
    """An uninitialized device array with the shape, type and memory order of another array."""
    data = ary.data if isinstance(ary, DeviceArray) else ary
    like = np.lib.stride_tricks.as_strided(np.empty(1, data.dtype), data.shape, data.strides)
    return device_array(data.shape, data.dtype, strides=np.empty_like(like).strides)


def to_device(obj: Any, stream: Any = 0, copy: bool = True, to: DeviceArray | None = None) -> DeviceArray:
    """A device array (`to`, if given) with the elements of a contiguous host array."""
    if isinstance(obj, DeviceArray):
        return obj
    data = np.asanyarray(obj)
    element("obj", data.dtype)
    if to is not None and not isinstance(to, DeviceArray):
        raise TypeError(f"to: expected a device array, got {shown(to)}")
    if not (data.flags.c_contiguous or data.flags.f_contiguous):
        raise ValueError("only contiguous arrays can be sent to the device")
    if to is None:
        to = device_array_like(data)
    if copy:
        to.copy_to_device(data, stream)
    return to


def is_cuda_array(obj: Any) -> bool:
    """Whether an object has the CUDA array interface."""
    return hasattr(obj, "__cuda_array_interface__")


def as_cuda_array(obj: Any) -> DeviceArray:
    """A device array over the simulated memory that an object's CUDA array interface describes."""
    if isinstance(obj, DeviceArray):
        return obj
    if not is_cuda_array(obj):
        raise TypeError(f"expected an array with the CUDA array interface, got {shown(obj)}")
    interface = obj.__cuda_array_interface__
    shape, dtype = tuple(interface["shape"]), np.dtype(interface["typestr"])
    if 0 in shape:
        return device_array(shape, dtype)
    strides = interface.get("strides")
    steps = strides or [dtype.itemsize * math.prod(shape[axis + 1 :]) for axis in range(len(shape))]
    reach = sum((n - 1) * s for n, s in zip(shape, steps, strict=True)) + dtype.itemsize
    buffer, offset = find(interface["data"][0], reach)
    data = np.ndarray(shape, dtype, buffer.data, offset, strides)
    data.flags.writeable = not interface["data"][1]
    return DeviceArray(buffer, data)
