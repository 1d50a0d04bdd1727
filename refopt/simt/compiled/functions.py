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
    if a in INTEGERS and b in INTEGERS:
        result = "float64"
    else:
        result = binary("Add", a, b)[2]  # type: ignore[index]
    result = "float32" if result == "float16" else result
    ufunc = getattr(np, {"pow": "power", "remainder": "", **_SAME}.get(name, name), None)
    kind, compute = getattr(np, result), ufunc if isinstance(ufunc, np.ufunc) else getattr(math, name)
    return lambda x, y: kind(compute(np.float64(x), np.float64(y))), result


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
