"""Host memory that the device accesses: mapped and managed arrays; and how arguments are copied."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from ..base.arguments import shown
from .arrays import DeviceArray, device_array, over
from .pinned import PinnedArray, check


class HostArray(PinnedArray):
    """A host array whose memory kernels also access: passing it to a kernel copies nothing."""

    on_device: DeviceArray | None = None  # views of it are ordinary arrays

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        if self.on_device is None:
            raise AttributeError("a view of a mapped or managed array has no __cuda_array_interface__ here")
        return self.on_device.__cuda_array_interface__

    def copy_to_host(self, ary: np.ndarray | None = None, stream: Any = 0) -> np.ndarray:
        """A copy of the elements (written into `ary` if given)."""
        if self.on_device is None:
            ary = np.empty_like(self, subok=False) if ary is None else ary
            ary[...] = self
            return ary
        return self.on_device.copy_to_host(ary, stream)

    def copy_to_device(self, ary: Any, stream: Any = 0) -> None:
        """Overwrite the elements."""
        if self.on_device is None:
            self[...] = ary
        else:
            self.on_device.copy_to_device(ary, stream)


def _visible(shape: Any, dtype: Any, order: Any) -> HostArray:
    on_device = device_array(shape, dtype, order=order)
    on_device.buffer.mapped = True
    host = on_device.data.view(HostArray)
    host.buffer, host.on_device = on_device.buffer, on_device
    return host


def mapped_array(
    shape: Any, dtype: Any = np.float64, strides: Any = None, order: str = "C", stream: Any = 0, portable: bool = False,
    wc: bool = False,
) -> HostArray:
    """A host array that kernels access in place; poisoned, like all fresh memory."""
    return _visible(shape, dtype, order)


def mapped_array_like(ary: Any, stream: Any = 0, portable: bool = False, wc: bool = False) -> HostArray:
    """A mapped array with the shape, type and memory order of another."""
    return _visible(ary.shape, ary.dtype, _order(ary))


def managed_array(
    shape: Any, dtype: Any = np.float64, strides: Any = None, order: str = "C", stream: Any = 0,
    attach_global: bool = True,
) -> HostArray:
    """An array that host and device share."""
    return _visible(shape, dtype, order)


def _order(ary: Any) -> Any:
    flags = (ary.data if isinstance(ary, DeviceArray) else ary).flags
    return "F" if flags["F_CONTIGUOUS"] and not flags["C_CONTIGUOUS"] else "C"


@contextmanager
def mapped(*arylist: np.ndarray, **_: Any) -> Iterator[Any]:
    """Device arrays over the memory of host arrays for a with block: one, or a list of several."""
    check("mapped", arylist)
    arrays = [over(ary) for ary in arylist]
    yield arrays[0] if len(arrays) == 1 else arrays


class Copied:
    """Base of `cuda.In`, `cuda.Out` and `cuda.InOut`: how a host array that is passed to a kernel is copied."""

    to_device = to_host = True

    def __init__(self, value: Any) -> None:
        if not isinstance(value, (np.ndarray, DeviceArray)):
            raise TypeError(f"cuda.{type(self).__name__}: expected an array, got {shown(value)}")
        self.value = value


class In(Copied):
    """Copied to the device only."""

    to_host = False


class Out(Copied):
    """Copied from the device only: the kernel sees poison."""

    to_device = False


class InOut(Copied):
    """Copied both ways, which is also the default."""
