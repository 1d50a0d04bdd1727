"""Device arrays from anywhere, described for the checks, without a copy.

Accepted: arrays of the executor, and anything on the GPU with ``__cuda_array_interface__``, ``data_ptr()`` or
``__dlpack__``: Numba, CuPy, PyTorch and JAX. A parameter of PyTorch that requires a gradient is taken as its
``detach()`` would be: a step is no part of autograd's graph.
"""

from typing import Any

import numpy as np

from refopt import simt
from refopt.checks import Array, c_strides
from refopt.dtypes import SIZES, name_of
from refopt.gpu import dlpack


def device_of(values: Any) -> str:
    """Which machine holds the first array of a device: ``"executor"`` or ``"gpu"``, or "" if there is none.

    What is in host memory, or no array, is on neither; a describer says so by name.
    """
    return next((machine for machine in map(_machine_of, values) if machine), "")


def _machine_of(value: Any) -> str:
    if isinstance(value, simt.DeviceArray):
        return "executor"
    if hasattr(value, "data_ptr"):
        return "gpu" if value.is_cuda else ""
    if hasattr(value, "__cuda_array_interface__"):
        return "gpu"
    return "gpu" if hasattr(value, "__dlpack__") and dlpack.on_gpu(value) else ""


def describer(device: str) -> Any:
    """The function that describes an array on a machine and refuses any that is elsewhere."""

    def describe(value: Any, where: str) -> Array:
        if isinstance(value, np.ndarray | np.generic):
            raise TypeError(f"{where}: expected a device array, got a NumPy array; gpu.to_device makes one")
        if isinstance(value, simt.DeviceArray):
            if device != "executor":
                raise ValueError(f"{where}: expected an array on the {device}, got one on the executor")
            return Array(value.address, value.shape, name_of(value.dtype), value.strides, True)
        if device == "executor":
            raise ValueError(f"{where}: expected an array on the executor, got {type(value).__name__}")
        if hasattr(value, "data_ptr"):
            return _torch(value, where)
        kind = f"{type(value).__module__}.{type(value).__name__}"
        interface = getattr(value, "__cuda_array_interface__", None)
        # Up to version 2, which is JAX's, it does not say when the data are ready; DLPack does.
        if hasattr(value, "__dlpack__") and (interface is None or interface["version"] < 3):
            if not dlpack.on_gpu(value):
                raise TypeError(f"{where}: expected a device array, got {kind} in host memory")
            return dlpack.describe(value, where)
        if interface is None:
            raise TypeError(f"{where}: expected a device array, got {kind}")
        return _interface(value, interface)

    return describe


def _torch(value: Any, where: str) -> Array:
    if not value.is_cuda:
        raise TypeError(f"{where}: expected a device array, got a PyTorch tensor on {value.device}")
    dtype = name_of(value.dtype)
    strides = tuple(s * value.element_size() for s in value.stride())
    return Array(value.data_ptr(), tuple(value.shape), dtype, strides, True)


def _interface(value: Any, interface: dict[str, Any]) -> Array:
    shape = tuple(interface["shape"])
    address, read_only = interface["data"]
    dtype = name_of(getattr(value, "dtype", np.dtype(interface["typestr"])))
    item = SIZES.get(dtype) or np.dtype(interface["typestr"]).itemsize
    strides = interface.get("strides")
    if strides is None:
        strides = c_strides(shape, item)
    return Array(int(address or 0), shape, dtype, tuple(strides), not read_only)
