"""Mathematical functions of scalars: their types, and values rounded once from fp64's.

libdevice's, which a GPU runs, differ from these by the few ULP that CUDA's manual states, but for `sqrt`, `fabs` and
those that give whole numbers, which are exact in both.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np

from .convert import CONVERSIONS
from .rules import INTEGERS, binary

# Those that Numba computes in fp16; the others take an fp16 for an fp32.
_HALF = {"sqrt", "exp", "log", "sin", "cos", "fabs", "floor", "ceil", "trunc", "log2", "log10"}
_SAME = {f"a{name}": f"arc{name}" for name in ("sin", "cos", "tan", "sinh", "cosh", "tanh", "tan2")}
TESTS = {math.isnan: np.isnan, math.isinf: np.isinf, math.isfinite: np.isfinite}
ONE = {getattr(math, name): name for name in (
    *_HALF, "tan", "tanh", "sinh", "cosh", "asin", "acos", "atan", "asinh", "acosh", "atanh", "expm1", "log1p", "erf",
    "erfc", "gamma", "lgamma", "exp2", "cbrt", "degrees", "radians",
)}  # fmt: skip
TWO = {getattr(math, name): name for name in ("atan2", "fmod", "hypot", "copysign", "pow", "remainder")}
EXACT = {getattr(math, name): name for name in ("frexp", "ldexp", "modf", "nextafter")}
UFUNCS = {
    "sqrt", "exp", "exp2", "log", "log2", "log10", "expm1", "log1p", "sin", "cos", "tan", "sinh", "cosh", "tanh",
    "arcsin", "arccos", "arctan", "arcsinh", "arccosh", "arctanh", "cbrt",
}  # fmt: skip
KEEPING = {"absolute", "fabs", "floor", "ceil", "trunc", "square", "negative", "sign", "rint", "reciprocal"}


@cache
def one(name: str, a: str) -> tuple[Callable[[Any], Any], str]:
    """A function of `math` for a scalar type, and the type of its result."""
    result = "float64" if a in INTEGERS else "float32" if a == "float16" and name not in _HALF else a
    ufunc = getattr(np, _SAME.get(name, name), None)
    kind, compute = getattr(np, result), ufunc if isinstance(ufunc, np.ufunc) else getattr(math, name)
    return lambda x: kind(compute(np.float64(x))), result


@cache
def two(name: str, a: str, b: str) -> tuple[Callable[[Any, Any], Any], str]:
    """A function of two arguments."""
    whole = a in INTEGERS and b in INTEGERS
    result = "float64" if whole and name in ("atan2", "hypot") else _single(a, "int8" if _is_power(name, b) else b)
    ufunc = getattr(np, {"pow": "power", "remainder": "", **_SAME}.get(name, name), None)
    kind, compute = getattr(np, result), ufunc if isinstance(ufunc, np.ufunc) else getattr(math, name)
    return lambda x, y: kind(compute(np.float64(x), np.float64(y))), result


def _single(a: str, b: str = "bool") -> str:
    """The float, of at least 32 bits, in which two types meet."""
    return binary("Compare", binary("Compare", "float32", a)[0], b)[0]  # type: ignore[index]


def _is_power(name: str, b: str) -> bool:
    """Whether a function is ``pow`` with an exponent that fits in an int32."""
    return name == "pow" and b in ("bool", "int8", "int16", "int32", "uint8", "uint16")


@cache
def exact(name: str, *args: str) -> tuple[Callable[..., Any], tuple[str, ...]]:
    """A function of `math` that takes floats apart or puts them together, and the types of its results."""
    result = _single(*args[: 2 if name == "nextafter" else 1])
    if name == "modf" and args[0] != "float32":
        result = "float64"
    ufunc, convert = getattr(np, name), CONVERSIONS[result]
    second = CONVERSIONS["int32"] if name == "ldexp" else convert
    if name in ("ldexp", "nextafter"):
        return lambda x, y: ufunc(convert(x), second(y)), (result,)
    return lambda x: ufunc(convert(x)), (result, "int32" if name == "frexp" else result)


@cache
def ufunc_type(name: str, a: str) -> str | None:
    """The type of a function of NumPy's of one scalar; None if it is not known here."""
    if name in ("isnan", "isinf", "isfinite", "signbit", "logical_not"):
        return "bool"
    if name in UFUNCS:
        return a if a in ("float32", "float64") else "float32" if a == "float16" or INTEGERS[a] < 32 else "float64"
    if name in KEEPING:
        return "float32" if a == "float16" else a
    return None


def printed(*values: Any) -> None:
    """``print``, for which a float is no NumPy scalar, in a tuple either."""
    print(*map(_plain, values))


def _plain(value: Any) -> Any:
    if type(value) is tuple:
        return tuple(map(_plain, value))
    return value.item() if isinstance(value, np.generic) else value


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
