"""Explicit signatures, ``@cuda.jit("void(float32[:], int32)")``: arguments are converted to them, or refused."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..base.arguments import shown
from ..base.numba_types import TYPES, Array, Optional, Signature, Tuple, Type, dtype_of, is_numba_type
from ..base.places import unsupported
from ..memory.arrays import DeviceArray, as_cuda_array, is_cuda_array
from ..memory.host_memory import Copied

_EXPECTED = "cuda.jit: expected a function, a signature or a list of signatures, got"


def parsed(signatures: Any) -> tuple[tuple[Any, tuple], ...]:
    """The signatures passed to `cuda.jit`, each a return type, or None if not stated, and argument types.

    Raises:
        TypeError: for anything but a signature.
    """
    return tuple(_parse(one) for one in (signatures if isinstance(signatures, list) else [signatures]))


def _parse(one: Any) -> tuple[Any, tuple]:
    if isinstance(one, str):
        try:
            one = eval(one, {"__builtins__": {}}, TYPES)
        except Exception as error:
            raise TypeError(f"{_EXPECTED} {shown(one)}: {error}") from None
    if isinstance(one, tuple):
        return None, tuple(_type(arg) for arg in one)
    if isinstance(one, Signature) or (type(one).__name__ == "Signature" and hasattr(one, "return_type")):
        return one.return_type, tuple(one.args)
    if isinstance(one, Type) or is_numba_type(one):
        return None, (one,)  # "(int32)" is not a tuple
    raise TypeError(f"{_EXPECTED} {shown(one)}")


def _type(arg: Any) -> Any:
    if isinstance(arg, (Type, Signature)) or is_numba_type(arg):
        return arg
    raise TypeError(f"{_EXPECTED} one with {shown(arg)} for a type")


class Mismatch(Exception):
    """An argument does not match a signature; the message says why."""


def as_declared(kernel: str, parameters: list[str], signatures: tuple[tuple, ...], args: tuple) -> tuple:
    """The arguments of a launch converted to a signature: of those that accept them, the first that changes the fewest.

    Raises:
        TypeError: no signature accepts them; the message names the first mismatch for each.
    """
    reasons, best, fewest = [], None, len(args) + 1
    for types in signatures:
        try:
            if len(types) != len(args):
                raise Mismatch(f"{len(types)} arguments expected, got {len(args)}")
            named = zip(parameters, types, args, strict=True)
            declared = tuple(convert(value, type_, name) for name, type_, value in named)
        except Mismatch as reason:
            reasons.append(f"({', '.join(map(str, types))}): {reason}")
            continue
        changed = sum(_type_of(old) != _type_of(new) for old, new in zip(args, declared, strict=True))
        if changed < fewest:
            best, fewest = declared, changed
    if best is None:
        raise TypeError(f"kernel {kernel} is compiled for other arguments: {'; '.join(reasons)}")
    return best


def _type_of(value: Any) -> Any:
    """The dtype of a scalar as Numba types it; None for anything else."""
    if isinstance(value, (bool, int, float, complex)):
        return np.dtype("int64" if type(value) is int else type(value))
    return value.dtype if isinstance(value, np.generic) else None


def convert(value: Any, type_: Any, name: str) -> Any:
    """A value converted to a type: scalars are cast as in Numba, arrays must match."""
    kind = type(type_).__name__
    if isinstance(type_, Array) or kind == "Array":
        return _array(value, type_, name)
    if isinstance(type_, Tuple) or kind in ("Tuple", "UniTuple"):
        parts = list(type_)
        if not isinstance(value, tuple) or len(value) != len(parts):
            raise Mismatch(f"{name}: a tuple of {len(parts)} expected, got {shown(value)}")
        return tuple(convert(v, t, f"{name}[{i}]") for i, (v, t) in enumerate(zip(value, parts, strict=True)))
    if isinstance(type_, Optional) or kind == "Optional":
        return None if value is None else convert(value, type_.type, name)
    dtype = dtype_of(type_)
    if not isinstance(dtype, np.dtype):
        if kind in ("CPointer", "RawPointer"):
            raise unsupported(f"arguments of type {type_}")
        return value
    if dtype.names:
        return value
    if np.ndim(value) or value is None or isinstance(value, (str, tuple, list)):
        raise Mismatch(f"{name}: {type_} expected, got {shown(value)}")
    if dtype.kind in "iu":
        if not hasattr(value, "__index__"):
            raise Mismatch(f"{name}: {type_} expected, got {shown(value)}")
        return np.array(int(value) & (1 << 8 * dtype.itemsize) - 1, f"u{dtype.itemsize}").view(dtype)[()]
    return dtype.type(value)


def _array(value: Any, type_: Any, name: str) -> Any:
    """An array that matches a type. Integers of the other signedness are reinterpreted, as on a GPU."""
    if isinstance(value, Copied):
        _array(value.value, type_, name)
        return value
    if not isinstance(value, (np.ndarray, DeviceArray)) and is_cuda_array(value):
        value = as_cuda_array(value)
    if not isinstance(value, (np.ndarray, DeviceArray)):
        raise Mismatch(f"{name}: {type_} expected, got {shown(value)}")
    dtype = dtype_of(type_.dtype)
    if isinstance(dtype, np.dtype) and value.dtype != dtype and {value.dtype.kind, dtype.kind} == {"i", "u"}:
        value = value.view(dtype) if value.dtype.itemsize == dtype.itemsize else value
    if value.ndim != type_.ndim or (isinstance(dtype, np.dtype) and value.dtype != dtype):
        raise Mismatch(f"{name}: {type_} expected, got {value.dtype} of {value.ndim} dimensions")
    flags = value.data.flags if isinstance(value, DeviceArray) else value.flags
    if (type_.layout == "C" and not flags.c_contiguous) or (type_.layout == "F" and not flags.f_contiguous):
        raise Mismatch(f"{name}: {type_} expected, got an array that is not contiguous")
    return value
