"""Conversions between scalar types as in PTX, and the integer operations in which Python differs.

An int64 is a Python int or an `np.int64`; every other type is NumPy's scalar (bool also Python's).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np

from .scalars import COMPLEX, FLOATS, INTEGERS, SIGNED, UNSIGNED
from .state import current
from .undefined import Undefined

_LOW, _HIGH, _SPAN = -(2**63), 2**63 - 1, 2**64


def wrapped(x: int) -> int:
    """The lowest 64 bits of an integer of any size, as an int64."""
    x &= _SPAN - 1
    return x - _SPAN if x > _HIGH else x


def computed(x: int, name: str = "int64") -> int:
    """`wrapped` of a result that its signed type cannot represent, which is reported: a GPU may not wrap it."""
    if current.observer is not None and current.inside:
        current.observer.wrapped(x, name)
    return wrapped(x)


def name_of(x: Any) -> str | None:
    """The scalar type of a value; None if it is not a scalar."""
    kind = type(x)
    name = _NAMES.get(kind)
    return "uint64" if kind is int and x > _HIGH else name


def as_int64(x: Any) -> int:
    """Any scalar as an int64."""
    if type(x) is not int:
        if isinstance(x, _FLOAT_TYPES):
            x = _whole(x, "int64")
        elif type(x) is Undefined:
            return x.through(as_int64)  # type: ignore[return-value]
        x = int(x)
    return x if _LOW <= x <= _HIGH else wrapped(x)


def _whole(x: Any, name: str) -> int:
    """A float as an integer: ``cvt``, which clamps to the range of the type.

    It rounds toward zero, but from float16 to nearest even, since Numba requests that. An 8-bit result is the lower
    half of a 16-bit one, except from float16. NaN becomes, by the PTX ISA 9.0 (cvt, "Integer Notes"), "zero if source
    is not .f64 and destination is not .s64, .u64", otherwise the highest bit alone. LLVM may convert constants
    differently.
    """
    bits, half, double = INTEGERS[name], type(x) is np.float16, isinstance(x, float)
    signed = name in SIGNED
    x = float(x)
    if current.observer is not None and current.inside and not (-signed << bits - 1) - 1 < x < 1 << bits - signed:
        current.observer.beyond(x, name)
    if bits == 8 and not half:
        bits = 16
    if x != x:
        return 1 << bits - 1 if double or bits == 64 else 0
    low, high = (-(1 << bits - 1), (1 << bits - 1) - 1) if signed else (0, (1 << bits) - 1)
    if math.isinf(x):
        return high if x > 0 else low
    return min(max(round(x) if half else int(x), low), high)


def _integer(name: str) -> Callable[[Any], Any]:
    numpy_type, span = getattr(np, name), 1 << INTEGERS[name]
    high = (span >> 1 if name in SIGNED else span) - 1
    low = high + 1 - span

    def convert(x: Any) -> Any:
        kind = type(x)
        if kind is numpy_type:
            return x
        if kind is not int:
            if isinstance(x, _FLOAT_TYPES):
                x = _whole(x, name)
            elif kind is Undefined:
                return x.through(convert)
            x = int(x)
        if low <= x <= high:
            return numpy_type(x)
        lowest = numpy_type((x - low) % span + low)
        if kind in (int, np.int64) and current.observer is not None and current.inside:
            current.observer.narrowed(x, lowest)
        return lowest

    convert.__name__ = f"as_{name}"
    return convert


def as_float32(x: Any) -> Any:
    """Any scalar as a float32, rounded once: NumPy would convert a Python int through float64."""
    if type(x) is int and not -(2**53) <= x <= 2**53:
        return np.uint64(x).astype(np.float32) if x > _HIGH else np.int64(x).astype(np.float32)
    return x.through(as_float32) if type(x) is Undefined else np.float32(x)


def as_float16(x: Any) -> Any:
    """Any scalar as a float16. Rounding an integer to float64 first is harmless: above 65504 it becomes infinite."""
    return x.through(as_float16) if type(x) is Undefined else np.float16(np.float64(x))


def _complex(name: str) -> Callable[[Any], Any]:
    numpy_type = getattr(np, name)

    def convert(x: Any) -> Any:
        if type(x) is numpy_type:
            return x
        if isinstance(x, complex | np.complexfloating):
            return numpy_type(x)
        return numpy_type(CONVERSIONS[COMPLEX[name]](x))

    convert.__name__ = f"as_{name}"
    return convert


def as_bool(x: Any) -> bool:
    """Any scalar as a truth value."""
    return bool(x != 0)


@cache
def convert_tuple(types: tuple) -> Callable[[tuple], tuple]:
    """A function that converts a tuple's items to types: scalar names, tuples of such, or None for no conversion."""
    each = [convert_tuple(t) if isinstance(t, tuple) else CONVERSIONS[t] if t else None for t in types]

    def convert(values: tuple) -> tuple:
        new = [f(x) if f else x for f, x in zip(each, values, strict=True)]
        return tuple(new) if type(values) is tuple else type(values)(*new)

    return convert


_FLOAT_TYPES = (float, np.floating)
_NAMES: dict[type, str] = {
    int: "int64", float: "float64", bool: "bool", np.bool_: "bool", complex: "complex128",
    **{getattr(np, name): name for name in (*SIGNED, *UNSIGNED, *FLOATS, *COMPLEX)},
}
_NAMES[np.dtype("longlong").type] = "int64"
_NAMES[np.dtype("ulonglong").type] = "uint64"
CONVERSIONS: dict[str, Callable[[Any], Any]] = {
    "bool": as_bool,
    **{name: _integer(name) for name in (*SIGNED, *UNSIGNED)},
    "int64": as_int64,
    "float16": as_float16,
    "float32": as_float32,
    "float64": np.float64,
    **{name: _complex(name) for name in COMPLEX},
}
