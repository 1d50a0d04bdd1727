"""Mathematical functions of scalars: their types, and their values, rounded from fp64.

The libdevice functions that a GPU runs differ by the few ULP that CUDA's manual states, except `sqrt`, `fabs` and those
with integer results, which are exact in both.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np

from ..base.conversions import CONVERSIONS
from ..base.places import here
from ..base.scalars import FLOATS, INTEGERS, SCALARS, binary, chosen
from ..base.state import current
from ..base.undefined import Undefined

# Functions that Numba computes in fp16; the others convert fp16 to fp32.
_HALF = {"sqrt", "exp", "log", "sin", "cos", "fabs", "floor", "ceil", "trunc", "log2", "log10", "exp2"}
_SAME = {f"a{name}": f"arc{name}" for name in ("sin", "cos", "tan", "sinh", "cosh", "tanh", "tan2")}
TESTS = {math.isnan: np.isnan, math.isinf: np.isinf, math.isfinite: np.isfinite}
ONE = {getattr(math, name): name for name in (
    *_HALF, "tan", "tanh", "sinh", "cosh", "asin", "acos", "atan", "asinh", "acosh", "atanh", "expm1", "log1p", "erf",
    "erfc", "gamma", "lgamma", "cbrt", "degrees", "radians",
)}
TWO = {getattr(math, name): name for name in (
    "atan2", "fmod", "hypot", "copysign", "pow", "remainder", "ldexp", "nextafter",
)}
_ANY_WHOLE = {"hypot", "atan2"}  # these two also take int64s
_OF_LOOPS = SCALARS.keys() - {"float16"}


def _of_math(name: str) -> Callable[..., float]:
    """A function of `math` with infinities and NaN where Python raises an error."""
    function = getattr(math, name)

    def value(x: float, *more: float) -> float:
        try:
            return function(x, *more)
        except (ValueError, OverflowError) as error:
            if name == "lgamma":
                return math.inf
            is_infinite = name == "gamma" and (x == 0 or isinstance(error, OverflowError))
            return math.copysign(math.inf, x) if is_infinite else math.nan

    return value


@cache
def one(name: str, a: str) -> tuple[Callable[[Any], Any], str]:
    """A function of `math` for a scalar type, and the type of its result."""
    result = "float64" if a in INTEGERS else "float32" if a == "float16" and name not in _HALF else a
    ufunc = getattr(np, _SAME.get(name, name), None)
    kind, compute = getattr(np, result), ufunc if isinstance(ufunc, np.ufunc) else _of_math(name)

    def value(x: Any) -> Any:
        return kind(compute(np.float64(x)))

    value.ufunc = compute  # type: ignore[attr-defined]
    return value, result


@cache
def two(name: str, a: str, b: str) -> tuple[Callable[[Any, Any], Any], str]:
    """A function of two arguments."""
    signatures = [("float32", "float32"), ("float64", "float64")]
    if name in _ANY_WHOLE:
        signatures = [("int64", "int64"), ("uint64", "uint64"), *signatures]
    elif name == "pow":
        signatures += [("float32", "int32"), ("float64", "int32")]
    elif name == "ldexp":
        signatures = [("float32", "int32"), ("float64", "int32")]
    taken = chosen(tuple(signatures), (a, b))
    result = taken[0] if taken[0] in FLOATS else "float64"
    first, second = CONVERSIONS[taken[0]], CONVERSIONS[taken[1]]
    kind = getattr(np, result)
    if name in ("nextafter", "copysign", "ldexp"):
        plain = getattr(np, name)
        return lambda x, y: plain(first(x), second(y)), result
    ufunc = getattr(np, {"pow": "power", "remainder": "", **_SAME}.get(name, name), None)
    compute = ufunc if isinstance(ufunc, np.ufunc) else _of_math(name)
    return lambda x, y: kind(compute(np.float64(first(x)), np.float64(second(y)))), result


@cache
def parts(function: Callable[[float], tuple], a: str) -> tuple[Callable[[Any], tuple], tuple[str, str]]:
    """`math.modf` and `math.frexp`."""
    if function is math.frexp:
        first, second = chosen((("float32",), ("float64",)), (a,))[0], "int32"
    else:
        first = second = "float32" if a == "float32" else "float64"
    one, other = getattr(np, first), getattr(np, second)

    def compute(x: Any) -> tuple:
        x, y = function(float(x))
        return one(x), other(y)

    return compute, (first, second)


def printed(*values: Any) -> None:
    """``print``, with NumPy scalars converted to Python's, also in tuples."""
    print(*map(_plain, values))


def _plain(value: Any) -> Any:
    if type(value) is tuple:
        return tuple(map(_plain, value))
    return value.item() if isinstance(value, np.generic) else value


@cache
def total(names: tuple[str, ...]) -> Callable[[tuple], Any]:
    """`sum` of a tuple of scalar types."""
    from .operators import typed

    def add(values: tuple) -> Any:
        result, type_of_it = 0, "int64"
        for value, name in zip(values, names, strict=True):
            result = typed("Add", type_of_it, name)(result, value)
            type_of_it = binary("Add", type_of_it, name)[2]  # type: ignore[index]
        return result

    return add


@cache
def loop(function: np.ufunc, *names: str) -> tuple[list[str], str] | None:
    """The types that a NumPy function computes in, and that of its result; None if Numba has no loop for them.

    It is the first loop whose types hold the arguments; for an integer beside a float, any float will do. There are no
    float16 loops.
    """
    mixed = any(name in FLOATS for name in names) and any(name in INTEGERS and name != "bool" for name in names)
    for signature in function.types:
        inputs, outputs = ([np.dtype(code).name for code in part] for part in signature.split("->"))
        if len(inputs) == len(names) and len(outputs) == 1 and set((*inputs, *outputs)) <= _OF_LOOPS:
            pairs = zip(names, inputs, strict=True)
            if all(np.can_cast(a, to, "safe") or (mixed and a in INTEGERS and to in FLOATS) for a, to in pairs):
                return inputs, outputs[0]
    return None


@cache
def rounding(a: str) -> Callable[[Any], int]:
    """``round`` of a scalar type with one argument: an int64, ties to even."""
    to = "float64" if a == "float64" or (a in INTEGERS and (INTEGERS[a] >= 32 or a == "uint16")) else "float32"
    convert, whole = CONVERSIONS[to], CONVERSIONS["int64"]
    return lambda x: whole(np.rint(convert(x)))


@cache
def quotient(a: str, b: str) -> tuple[Callable[[Any, Any], Any], tuple[str, str]]:
    """``divmod``."""
    from .operators import typed

    floor, mod = typed("FloorDiv", a, b), typed("Mod", a, b)
    names = tuple(binary(symbol, a, b)[2] for symbol in ("FloorDiv", "Mod"))  # type: ignore[index]
    return lambda x, y: (floor(x, y), mod(x, y)), names  # type: ignore[return-value]


@cache
def nothing(type_name: str, variable: str) -> Callable[[], Any]:
    """A function that returns the value of an unassigned variable: zero, or if watched, an undefined value."""
    zero = CONVERSIONS[type_name](0)

    def value() -> Any:
        observer = current.observer
        if observer is None or not observer.watching or not observer.rules.uninitialized:
            return zero
        return Undefined(zero, f"variable {variable} is not assigned on every path", here(), "uninitialized")

    return value
