"""Mathematical functions of scalars: their types, and their values, rounded from fp64.

The libdevice functions that a GPU runs differ by the few ULP that CUDA's manual states, except `sqrt`, `fabs` and those
with integer results, which are exact in both.
"""

from __future__ import annotations

import cmath
import math
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np

from ..base.conversions import CONVERSIONS
from ..base.places import here
from ..base.record import result, signature
from ..base.scalars import binary
from ..base.state import current
from ..base.undefined import Undefined

_SAME = {f"a{name}": f"arc{name}" for name in ("sin", "cos", "tan", "sinh", "cosh", "tanh", "tan2")}
TESTS = {math.isnan: np.isnan, math.isinf: np.isinf, math.isfinite: np.isfinite}
ONE = {getattr(math, name): name for name in (
    "sqrt", "exp", "log", "sin", "cos", "fabs", "floor", "ceil", "trunc", "log2", "log10", "exp2", "tan", "tanh",
    "sinh", "cosh", "asin", "acos", "atan", "asinh", "acosh", "atanh", "expm1", "log1p", "erf", "erfc", "gamma",
    "lgamma", "cbrt", "degrees", "radians",
)}
TWO = {getattr(math, name): name for name in (
    "atan2", "fmod", "hypot", "copysign", "pow", "remainder", "ldexp", "nextafter",
)}
_ANGLES = {"degrees": 180 / math.pi, "radians": math.pi / 180}


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
    """A function of `math` for a scalar type that Numba compiles, and the type of its result."""
    kind = getattr(np, to := result(f"math.{name}(a)", a))  # type: ignore[arg-type]
    if name in _ANGLES:
        factor = kind(_ANGLES[name])
        return lambda x: kind(x) * factor, to  # type: ignore[return-value]
    ufunc = getattr(np, _SAME.get(name, name), None)
    compute = ufunc if isinstance(ufunc, np.ufunc) else _of_math(name)

    def value(x: Any) -> Any:
        return kind(compute(np.float64(x)))

    value.ufunc = compute  # type: ignore[attr-defined]
    return value, to  # type: ignore[return-value]


@cache
def two(name: str, a: str, b: str) -> tuple[Callable[[Any, Any], Any], str]:
    """A function of two arguments."""
    to_a, to_b, to = signature(f"math.{name}(a, b)", a, b)  # type: ignore[misc]
    first, second, kind = CONVERSIONS[to_a], CONVERSIONS[to_b], getattr(np, to)
    if name in ("nextafter", "copysign", "ldexp"):
        plain = getattr(np, name)
        return lambda x, y: plain(first(x), second(y)), to
    ufunc = getattr(np, {"pow": "power", "remainder": "", **_SAME}.get(name, name), None)
    compute = ufunc if isinstance(ufunc, np.ufunc) else _of_math(name)
    return lambda x, y: kind(compute(np.float64(first(x)), np.float64(second(y)))), to


@cache
def parts(function: Callable[[float], tuple], a: str) -> tuple[Callable[[Any], tuple], list[str]]:
    """`math.modf` and `math.frexp`."""
    names = result(f"math.{function.__name__}(a)", a).split(",")  # type: ignore[union-attr]
    one, other = (getattr(np, name) for name in names)

    def compute(x: Any) -> tuple:
        x, y = function(float(x))
        return one(x), other(y)

    return compute, names


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
def of_cmath(name: str, a: str) -> tuple[Callable[[Any], Any], list[str]]:
    """A function of `cmath`, with NaN where Python raises an error, and the types of its results."""
    to, names = signature(f"cmath.{name}(a)", a)  # type: ignore[misc]
    first, function, kinds = CONVERSIONS[to], getattr(cmath, name), [CONVERSIONS[each] for each in names.split(",")]

    def compute(x: Any) -> Any:
        try:
            value = function(complex(first(x)))
        except (ValueError, OverflowError):
            value = complex(math.nan, math.nan)
        if len(kinds) == 1:
            return kinds[0](value)
        return tuple(kind(part) for kind, part in zip(kinds, value, strict=True))

    return compute, names.split(",")


@cache
def rounding(a: str) -> Callable[[Any], int]:
    """``round`` of a scalar type with one argument: an int64, ties to even."""
    convert, whole = CONVERSIONS[signature("round(a)", a)[0]], CONVERSIONS["int64"]  # type: ignore[index]
    return lambda x: whole(np.rint(convert(x)))


@cache
def rounding_to(a: str, b: str) -> tuple[Callable[[Any, Any], Any], str]:
    """``round`` to a number of digits, by Numba's algorithm, which computes in fp64."""
    from .operators import typed

    to_a, to_b, to = signature("round(a, b)", a, b)  # type: ignore[misc]
    first, second, last, whole = CONVERSIONS[to_a], CONVERSIONS[to_b], CONVERSIONS[to], CONVERSIONS["int64"]
    power = typed("Pow", "float64", to_b)

    def compute(x: Any, digits: Any) -> Any:
        x, digits = first(x), second(digits)
        if not np.isfinite(x):
            return last(x)
        n, ten, more = int(digits), np.float64(10), np.float64(1e22 if digits > 22 else 1)
        by = power(ten, second(n - 22 if n > 22 else abs(n)))
        with np.errstate(all="ignore"):
            y = x * by * more if n >= 0 else x / by
            if n >= 0 and np.isinf(y):
                return last(x)
            z = np.float64(whole(np.rint(y)))
            if abs(y - z) == 0.5:
                z = 2 * np.float64(whole(np.rint(y / 2)))
            return last(z / more / by if n >= 0 else z * by)

    return compute, to


@cache
def quotient(a: str, b: str) -> tuple[Callable[[Any, Any], Any], list[str]]:
    """``divmod``."""
    from .operators import typed

    to_a, to_b, to = signature("divmod(a, b)", a, b)  # type: ignore[misc]
    first, second = CONVERSIONS[to_a], CONVERSIONS[to_b]
    floor, mod = typed("FloorDiv", to_a, to_b), typed("Mod", to_a, to_b)

    def compute(x: Any, y: Any) -> tuple:
        x, y = first(x), second(y)
        return floor(x, y), mod(x, y)

    return compute, to.split(",")


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
