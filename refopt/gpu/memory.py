"""Memory of a GPU, and arrays in it with Numba's host interface."""

import math
from types import SimpleNamespace
from typing import Any

import numpy as np
from cuda.bindings import driver

from refopt.gpu import dlpack
from refopt.gpu.streams import checked, context, handle_of, relaxed
from refopt.simt.memory import Strided


class Memory:
    """Bytes on the current device, freed with the last array on them. The driver then waits for work that uses them.

    Attributes:
        address: of the first byte.
    """

    def __init__(self, nbytes: int) -> None:
        self._context = context()
        with relaxed():
            self.address = int(checked(driver.cuMemAlloc(nbytes)))

    def __del__(self) -> None:
        if hasattr(self, "address"):
            driver.cuCtxPushCurrent(self._context)  # any thread may get here
            with relaxed():
                driver.cuMemFree(self.address)
            driver.cuCtxPopCurrent()


class DeviceArray(Strided):
    """An array on a GPU. The host accesses its elements only through copies.

    ``data`` is a NumPy array at the device's address: it has the layout of the elements, and must not be read.
    """

    __slots__ = ("owner",)

    def __init__(self, owner: Any, data: np.ndarray) -> None:
        self.owner = owner  # keeps the memory alive
        self.data = data

    @property
    def address(self) -> int:
        """The address of the first element."""
        return self.data.__array_interface__["data"][0] if self.size else 0

    def __repr__(self) -> str:
        return f"DeviceArray({self.address:#x}, shape={self.shape}, dtype={self.dtype})"

    def __dlpack_device__(self) -> tuple[int, int]:
        ordinal = driver.CUpointer_attribute.CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL
        return dlpack.CUDA, int(checked(driver.cuPointerGetAttribute(ordinal, self.address)))

    def __dlpack__(self, **options: Any) -> Any:
        """A capsule over the same memory, made by cuda.core."""
        from cuda.core.utils import StridedMemoryView

        return StridedMemoryView.from_cuda_array_interface(self, stream_ptr=-1).__dlpack__(**options)

    def _view(self, data: np.ndarray) -> "DeviceArray":
        return DeviceArray(self.owner, data)

    def reshape(self, *shape: Any, order: Any = "C") -> Any:
        """A view with another shape."""
        flags = self.data.flags
        if not (flags.f_contiguous if order == "F" else flags.c_contiguous):  # NumPy would copy
            raise NotImplementedError("this would be a copy, not a view")
        return super().reshape(*shape, order=order)

    def copy_to_host(self, ary: np.ndarray | None = None, stream: Any = 0) -> np.ndarray:
        """Copy the elements to a host array, ``ary`` if given, in stream order, and wait for the stream."""
        ary = self._on_host(ary)
        if self.size:
            low, nbytes = self._span()
            direct = self.data.flags.c_contiguous and ary.flags.c_contiguous
            image = ary if direct else np.empty(nbytes, np.uint8)
            self._copy("cuMemcpyDtoHAsync", image.ctypes.data, low, nbytes, stream)
            if not direct:
                np.copyto(ary, self._in(image, low))
        return ary

    def copy_to_device(self, ary: Any, stream: Any = 0) -> None:
        """Overwrite the elements, in stream order, with those of a host or device array of the same shape and type."""
        source = ary if isinstance(ary, Strided) else np.asanyarray(ary)
        self._expect(source)
        if not self.size:
            return
        low, nbytes = self._span()
        if nbytes != self.nbytes:  # other bytes are between the elements
            for k in range(len(self)):
                part = source.getitem(k, stream) if isinstance(source, Strided) else source[k]
                self._part(k)[0].copy_to_device(part, stream)
        elif isinstance(source, DeviceArray) and source.strides == self.strides:
            self._copy("cuMemcpyDtoDAsync", low, source._span()[0], nbytes, stream)
        else:
            host = source.copy_to_host(stream=stream) if isinstance(source, Strided) else source
            direct = self.data.flags.c_contiguous and host.flags.c_contiguous
            image = host if direct else np.empty(nbytes, np.uint8)
            if not direct:
                self._in(image, low)[...] = host
            self._copy("cuMemcpyHtoDAsync", low, image.ctypes.data, nbytes, stream)

    def _span(self) -> tuple[int, int]:
        """The address of the first byte of the elements, and the number of bytes up to the last."""
        low, stop = np.lib.array_utils.byte_bounds(self.data)
        return int(low), int(stop - low)

    def _in(self, image: np.ndarray, low: int) -> np.ndarray:
        """A view of the array in a host copy of its span."""
        return np.ndarray(self.shape, self.dtype, image, self.address - low, self.strides)

    def _copy(self, name: str, target: int, source: int, nbytes: int, stream: Any) -> None:
        """Copy with a driver function and wait for it, since other streams need not wait for the default one."""
        context()
        handle = handle_of(stream)
        checked(getattr(driver, name)(target, source, nbytes, handle))
        checked(driver.cuStreamSynchronize(handle))


Shape = tuple[int, ...]


def at(owner: Any, address: int, shape: Shape, dtype: Any, strides: Shape | None = None) -> DeviceArray:
    """A dense array at an address, in C order or with strides in bytes; ``owner`` keeps its memory alive."""
    kind = np.dtype(dtype)
    nbytes = math.prod(shape) * kind.itemsize
    if not nbytes:
        return DeviceArray(owner, np.empty(shape, kind))
    interface = {"data": (address, False), "shape": (nbytes,), "typestr": "|u1", "version": 3}
    memory = np.asarray(SimpleNamespace(__array_interface__=interface))
    return DeviceArray(owner, np.ndarray(shape, kind, memory, 0, strides))


def empty(shape: Shape, dtype: Any, strides: Shape | None = None) -> DeviceArray:
    """A dense, uninitialized array on the current device."""
    kind = np.dtype(dtype)
    nbytes = math.prod(shape) * kind.itemsize
    memory = Memory(nbytes) if nbytes else None
    return at(memory, memory.address if memory else 0, shape, kind, strides)
