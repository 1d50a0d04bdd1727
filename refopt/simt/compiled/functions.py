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
from ..base.scalars import COMPLEX
from ..base.state import current
from ..base.undefined import Undefined
from . import operators

TESTS = {math.isnan: np.isnan, math.isinf: np.isinf, math.isfinite: np.isfinite}
ANGLES = {math.degrees: 180 / math.pi, math.radians: math.pi / 180}
_OF_OPERANDS = {round, math.nextafter, math.copysign, math.ldexp, np.angle, np.real, np.imag, np.nan_to_num}
_ARCS = {f"a{name}": f"arc{name}" for name in ("sin", "cos", "tan", "sinh", "cosh", "tanh", "tan2")}
_OTHERWISE = {"pow": "power", "remainder": "", **_ARCS}  # NumPy's names for functions of `math`


@cache
def typed(function: Callable[..., Any], *rule: str) -> Callable[..., Any]:
    """A function of Python, `math`, `cmath` or NumPy for the types of its operands and that of its result.

    It computes in fp64, except those that take the operands in their types.
    """
    *taken, result = rule
    converts, kinds = [CONVERSIONS[name] for name in taken], [CONVERSIONS[name] for name in result.split(",")]
    wide: Any = complex if function.__module__ == "cmath" or taken[0] in COMPLEX else np.float64
    if function in _OF_OPERANDS:
        wide = lambda x: x  # noqa: E731
    compute, kind = _computation(function), kinds[0]
    if len(taken) == len(kinds) == 1:

        def value(x: Any) -> Any:
            return kind(compute(wide(x)))

        value.ufunc = compute  # type: ignore[attr-defined]
        return value

    def values(*args: Any) -> Any:
        found = compute(*(wide(convert(arg)) for convert, arg in zip(converts, args, strict=True)))
        return kind(found) if len(kinds) == 1 else tuple(kind(part) for kind, part in zip(kinds, found, strict=True))

    return values


def _computation(function: Any) -> Callable[..., Any]:
    """A function that computes in fp64, or in complex128: NumPy's, or Python's with infinities and NaN instead of
    errors."""
    if function in (round, np.angle):
        return _rounded if function is round else _angle
    name = function.__name__
    ufunc = getattr(np, _OTHERWISE.get(name, name), None)
    if isinstance(ufunc, np.ufunc) and function.__module__ == "math":
        return ufunc

    def value(*args: Any) -> Any:
        try:
            return function(*args)
        except (ValueError, OverflowError) as error:
            if function is math.lgamma:
                return math.inf
            if function is math.gamma and (args[0] == 0 or isinstance(error, OverflowError)):
                return math.copysign(math.inf, args[0])
            return complex(math.nan, math.nan) if function.__module__ == "cmath" else math.nan

    return value


def _angle(z: Any, degrees: Any = False) -> Any:
    """`np.angle`: the arc tangent in the type of the number's parts, as a float64."""
    angle = np.arctan2(np.float64(z.imag), np.float64(z.real))
    angle = np.float64(np.float32(angle)) if type(z.real) is np.float32 else angle
    return angle * (180 / math.pi) if degrees else angle


def _rounded(x: Any, digits: Any = None) -> Any:
    """``round``, ties to even, to a number of digits by Numba's algorithm, which computes in fp64."""
    if digits is None:
        return np.rint(x)
    if not np.isfinite(x):
        return x
    whole, power = CONVERSIONS["int64"], operators.typed("Pow", "float64", "int64")
    n, ten, more = int(digits), np.float64(10), np.float64(1e22 if digits > 22 else 1)
    by = power(ten, n - 22 if n > 22 else abs(n))
    with np.errstate(all="ignore"):
        y = x * by * more if n >= 0 else x / by
        if n >= 0 and np.isinf(y):
            return x
        z = np.float64(whole(np.rint(y)))
        if abs(y - z) == 0.5:
            z = 2 * np.float64(whole(np.rint(y / 2)))
        return z / more / by if n >= 0 else z * by


def printed(*values: Any) -> None:
    """``print``, with NumPy scalars converted to Python's, also in tuples."""
    print(*map(_plain, values))


def _plain(value: Any) -> Any:
    if type(value) is tuple:
        return tuple(map(_plain, value))
    return value.item() if isinstance(value, np.generic) else value


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
