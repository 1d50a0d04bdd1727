"""Device arrays of any library, described for the checks, without a copy.

Accepted: arrays of the executor, and anything on the GPU with ``__cuda_array_interface__``, ``data_ptr()`` or
``__dlpack__``: Numba, CuPy, PyTorch and JAX. A PyTorch parameter that requires a gradient is treated like its
``detach()``: a step is not part of autograd's graph.
"""

from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np

from refopt import simt
from refopt.checks import Array, c_strides, check_native
from refopt.checks.dtypes import ITEM_SIZES, name_of
from refopt.gpu import dlpack


def device_of(values: Any) -> str:
    """The machine of the first device array: ``"executor"`` or ``"gpu"``, or "" if there is none.

    Host arrays and other objects are on neither; a describer refuses them by name.
    """
    return next((machine for machine in map(_machine_of, values) if machine), "")


def device_of_lists(*lists: Any) -> str | None:
    """`device_of` for the arrays in some lists; arguments that are not lists are skipped. ``None`` if there is none."""
    return device_of(x for values in lists if isinstance(values, Sequence) for x in values) or None


def _machine_of(value: Any) -> str:
    if isinstance(value, simt.DeviceArray):
        return "executor"
    if hasattr(value, "data_ptr"):
        return "gpu" if value.is_cuda else ""
    if hasattr(value, "__cuda_array_interface__"):
        return "gpu"
    return "gpu" if hasattr(value, "__dlpack__") and dlpack.on_gpu(value) else ""


def ordinal_of(value: Any) -> int | None:
    """The index of an array's GPU, if the array has it; PyTorch's, CuPy's and DLPack's do."""
    if hasattr(value, "get_device"):
        return int(value.get_device())
    if hasattr(value, "__dlpack_device__"):
        return int(value.__dlpack_device__()[1])
    index = getattr(getattr(value, "device", None), "id", None)
    return index if isinstance(index, int) else None


def describer(device: str, index: int | None = None) -> Any:
    """A function that describes an array on a machine, or on the GPU of an index, and refuses any other.

    It returns a description unchanged.
    """
    on_device = _on_executor if device == "executor" else _on_gpu

    def describe(value: Any, where: str) -> Array:
        if type(value) is Array:
            return value
        if isinstance(value, np.ndarray | np.generic):
            raise TypeError(f"{where}: expected a device array, got a NumPy array; gpu.to_device makes one")
        array = on_device(value, where)
        if index is not None and (other := ordinal_of(value)) not in (None, index):
            raise ValueError(f"{where}: expected an array on GPU {index}, as the others are, got one on GPU {other}")
        item = ITEM_SIZES.get(array.dtype, 1)  # other dtypes are refused later on
        if array.size and array.address % item:
            raise ValueError(f"{where}: expected an address divisible by {item}, as {array.dtype} needs, got one with "
                             f"remainder {array.address % item}")
        if array.address + array.size * item > _END:
            raise ValueError(f"{where}: expected an array that ends below 2**64, got shape {array.shape}")
        return array

    return describe


_END = 2**64  # of addresses


def _on_executor(value: Any, where: str) -> Array:
    if not isinstance(value, simt.DeviceArray):
        if not any(hasattr(value, name) for name in ("data_ptr", "__cuda_array_interface__", "__dlpack__")):
            raise TypeError(f"{where}: expected a device array, got {type(value).__module__}.{type(value).__name__}")
        raise ValueError(f"{where}: expected an array on the executor, got {type(value).__name__}")
    check_native(where, value.dtype)
    return Array(value.address, value.shape, name_of(value.dtype), value.strides, value.data.flags.writeable)


def _on_gpu(value: Any, where: str) -> Array:
    if isinstance(value, simt.DeviceArray):
        raise ValueError(f"{where}: expected an array on the gpu, got one on the executor")
    if hasattr(value, "data_ptr"):
        return _torch(value, where)
    kind = f"{type(value).__module__}.{type(value).__name__}"
    interface = getattr(value, "__cuda_array_interface__", None)
    # Up to version 2, which JAX has, the interface does not tell when the data are ready; DLPack does.
    if hasattr(value, "__dlpack__") and (interface is None or interface["version"] < 3):
        if not dlpack.on_gpu(value):
            raise TypeError(f"{where}: expected a device array, got {kind} in host memory")
        return dlpack.describe(value, where)
    if interface is None:
        raise TypeError(f"{where}: expected a device array, got {kind}")
    return _interface(value, interface, where)


def _torch(value: Any, where: str) -> Array:
    if not value.is_cuda:
        raise TypeError(f"{where}: expected a device array, got a PyTorch tensor on {value.device}")
    if hasattr(value, "is_neg") and value.is_neg():  # a view whose memory has the values with the opposite sign
        raise ValueError(f"{where}: expected values stored in memory, got a negated view; resolve_neg() copies it")
    strides = tuple(s * value.element_size() for s in value.stride())
    return Array(value.data_ptr(), tuple(value.shape), name_of(value.dtype), strides, True)


def _interface(value: Any, interface: dict[str, Any], where: str) -> Array:
    shape = tuple(interface["shape"])
    address, read_only = interface["data"]
    stored = np.dtype(interface["typestr"])
    dtype = getattr(value, "dtype", stored)
    for order in (dtype, stored):
        check_native(where, order)
    if interface.get("mask") is not None:
        raise TypeError(f"{where}: expected an array without a mask, got one with a mask")
    name = name_of(dtype)
    if name_of(stored) != name and stored.kind != "V":  # the interface's only description of bf16
        raise TypeError(f"{where}: expected a dtype and an interface that agree, got {name} and {interface['typestr']}")
    strides = interface.get("strides")
    if strides is None:
        strides = c_strides(shape, ITEM_SIZES.get(name, stored.itemsize))
    return Array(int(address or 0), shape, name, tuple(strides), not read_only)


def locator(describe: Any) -> Any:
    """The function with which `refopt.checks.Bound` finds the addresses of arrays and notices other differences.

    The attributes of arrays of known types are kept and compared. All other arrays are described again.
    """

    def locate(where: str, values: Sequence[Any], before: Sequence[Array | None], kept: list) -> list[int] | None:
        kinds = list(map(type, values))
        there = [x for x in values if x is not None] if _NONE in kinds else values
        if kept and kept[0] == kinds:
            found, said = kept[1](there)
            if said == kept[2]:
                addresses = iter(found)
                return found if there is values else [0 if x is None else next(addresses) for x in values]
        places = []
        for i, (value, like) in enumerate(zip(values, before, strict=True)):
            array = None if value is None else describe(value, f"{where}[{i}]")
            if (array and array[1:]) != (like and like[1:]):
                return None
            places.append(array.address if array else 0)
        looks = {_look_of(x) for x in there}
        look = looks.pop() if len(looks) == 1 else None
        kept[:] = (kinds, look, look(there)[1]) if look else ()
        return places

    return locate


_NONE = type(None)

# The addresses of arrays, and everything else that their descriptions are made of.
_Look = Callable[[Sequence[Any]], tuple[list[int], tuple[list, ...]]]


def _look_of(value: Any) -> _Look | None:
    """The look for an array's type; none for DLPack, whose capsules would have to be opened."""
    if isinstance(value, simt.DeviceArray):
        return _executor_arrays
    if hasattr(value, "data_ptr"):
        return _torch_tensors if hasattr(value, "is_neg") and hasattr(value, "get_device") else None
    interface = getattr(value, "__cuda_array_interface__", None)
    return _interfaces if interface is not None and interface["version"] >= 3 else None


def _executor_arrays(values: Sequence[Any]) -> tuple[list[int], tuple[list, ...]]:
    others = [(x.shape, x.dtype, x.strides, x.flags.writeable) for x in (value.data for value in values)]
    return [x.address for x in values], (others,)


def _torch_tensors(values: Sequence[Any]) -> tuple[list[int], tuple[list, ...]]:
    shapes, strides, dtypes = [x.shape for x in values], [x.stride() for x in values], [x.dtype for x in values]
    others = [x.get_device() for x in values], [x.is_neg() for x in values]
    return [x.data_ptr() for x in values], (shapes, strides, dtypes, *others)


def _interfaces(values: Sequence[Any]) -> tuple[list[int], tuple[list, ...]]:
    found = [x.__cuda_array_interface__ for x in values]
    forms = [(tuple(x["shape"]), x["typestr"], x.get("strides"), x["data"][1], x.get("mask") is None) for x in found]
    return [x["data"][0] or 0 for x in found], (forms, [getattr(x, "dtype", None) for x in values])


def one_of(value: Any) -> Any:
    """A one-dimensional view of an array of one element."""
    if hasattr(value, "reshape"):
        return value.reshape(1)
    interface = value.__cuda_array_interface__ | {"shape": (1,), "strides": None}
    return SimpleNamespace(__cuda_array_interface__=interface, keep=value)
