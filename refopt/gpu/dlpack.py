"""An array's description of itself through DLPack, read without consuming the capsule.

The capsule is only read: the exporter keeps it and frees it with the capsule. The array keeps the memory alive.
Source: dlpack.h, versions 0.8 and 1.1 (https://github.com/dmlc/dlpack).
"""

import ctypes
from typing import Any

from refopt.checks import Array, c_strides

CUDA, CUDA_MANAGED = 2, 13
READ_ONLY = 1
_FAMILIES = {0: "int", 1: "uint", 2: "float", 4: "bfloat", 5: "complex", 6: "bool"}


class _Tensor(ctypes.Structure):
    """DLTensor; strides count elements, and may be missing for C order."""

    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )


class _Versioned(ctypes.Structure):
    """DLManagedTensorVersioned; the older DLManagedTensor begins with the tensor."""

    _fields_ = (
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("manager_ctx", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
        ("flags", ctypes.c_uint64),
        ("tensor", _Tensor),
    )


_is_valid = ctypes.pythonapi.PyCapsule_IsValid
_is_valid.restype, _is_valid.argtypes = ctypes.c_int, [ctypes.py_object, ctypes.c_char_p]
_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_pointer.restype, _pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]


def on_gpu(value: Any) -> bool:
    """Whether kernels can access the array's memory."""
    return value.__dlpack_device__()[0] in (CUDA, CUDA_MANAGED)


def describe(value: Any, where: str) -> Array:
    """The description of an array that has ``__dlpack__``, for the checks.

    If no stream is named, the exporter makes the data ready for the legacy default stream; JAX waits for them.
    """
    try:
        capsule = value.__dlpack__(stream=None, max_version=(1, 1))
    except TypeError:  # exporters before 1.0
        capsule = value.__dlpack__(stream=None)
    if _is_valid(capsule, b"dltensor_versioned"):
        managed = _Versioned.from_address(_pointer(capsule, b"dltensor_versioned"))
        if managed.major != 1:
            raise TypeError(f"{where}: expected DLPack of version 1, got {managed.major}.{managed.minor}")
        tensor, writable = managed.tensor, not managed.flags & READ_ONLY
    else:
        # It cannot tell whether it is read-only, so it is assumed to be.
        tensor, writable = _Tensor.from_address(_pointer(capsule, b"dltensor")), False
    family = _FAMILIES.get(tensor.code, "type")
    kind = "bool" if (family, tensor.bits) == ("bool", 8) else f"{family}{tensor.bits}"
    item = tensor.bits * tensor.lanes // 8
    if tensor.lanes != 1:
        raise TypeError(f"{where}: expected single elements, got {kind} in vectors of {tensor.lanes}")
    shape = tuple(tensor.shape[: tensor.ndim])
    if tensor.strides:
        strides = tuple(item * step for step in tensor.strides[: tensor.ndim])
    else:
        strides = c_strides(shape, item)
    return Array((tensor.data or 0) + tensor.byte_offset, shape, kind, strides, writable)
