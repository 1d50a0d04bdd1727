"""Device functions with explicit signatures: arguments and results are converted, as in a C call."""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import FunctionType
from typing import Any

import numpy as np

from ..base.arguments import shown
from ..base.conversions import CONVERSIONS, name_of
from ..base.numba_types import Array, Tuple, dtype_of
from ..base.undefined import Undefined
from ..compiled import resolved
from .signatures import Mismatch, chosen


def declared(function: FunctionType, signatures: tuple[tuple[Any, tuple], ...]) -> Callable[..., Any]:
    """The function with signatures, each a return type, or None if not stated, and argument types.

    Raises, when called:
        TypeError: no signature accepts the arguments, by their number, or an array's dtype or dimension.
    """
    parameters = list(function.__code__.co_varnames[: function.__code__.co_argcount])
    defaults = function.__defaults__ or ()
    taken = tuple(args for _, args in signatures)

    @functools.wraps(function)
    def call(*args: Any) -> Any:
        missing = len(parameters) - len(args)
        if 0 < missing <= len(defaults):
            args = (*args, *defaults[-missing:])
        which, converted = chosen(f"device function {function.__name__}", parameters, taken, args, _converted)
        result = resolved(function)(*converted)
        returned = signatures[which][0]
        return result if returned is None else _converted(result, returned, "its result")

    del call.__wrapped__  # it would expose the function before translation
    results = {_name(returned) for returned, _ in signatures}
    vars(call)["__simt_signatures__"] = signatures
    if len(results) == 1 and None not in results:
        vars(call)["__simt_types__"] = tuple(results)
    return call


def _name(type_: Any) -> str | None:
    """The name of a scalar type that values can be converted to."""
    dtype = dtype_of(type_)
    return dtype.name if isinstance(dtype, np.dtype) and dtype.name in CONVERSIONS else None


def _converted(value: Any, type_: Any, name: str) -> Any:
    """A value in a kernel converted to a type: numbers convert to any other, arrays must match."""
    scalar = _name(type_)
    if scalar is not None:
        if name_of(value) is None and type(value) is not Undefined:
            raise Mismatch(f"{name}: {type_} expected, got {shown(value)}")
        return CONVERSIONS[scalar](value)
    if isinstance(type_, Tuple) or type(type_).__name__ in ("Tuple", "UniTuple"):
        parts = list(type_)
        if not isinstance(value, tuple) or len(value) != len(parts):
            raise Mismatch(f"{name}: a tuple of {len(parts)} expected, got {shown(value)}")
        return tuple(_converted(v, t, f"{name}[{i}]") for i, (v, t) in enumerate(zip(value, parts, strict=True)))
    if isinstance(type_, Array) or type(type_).__name__ == "Array":
        dtype = dtype_of(type_.dtype)
        if getattr(value, "ndim", None) != type_.ndim or (isinstance(dtype, np.dtype) and value.dtype != dtype):
            raise Mismatch(f"{name}: {type_} expected, got {_described(value)}")
    return value


def _described(value: Any) -> str:
    dtype = getattr(value, "dtype", None)
    return shown(value) if dtype is None else f"{dtype} of {value.ndim} dimensions"
