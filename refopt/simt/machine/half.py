"""`cuda.fp16` and `cuda.fma`, whose results are the exact ones, rounded once, and `cuda.cbrt`."""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np

from ..base.places import Namespace


def fma(a: Any, b: Any, c: Any) -> Any:
    """a * b + c of floats, rounded once, in the widest type of the three."""
    kind = np.result_type(type(a), type(b), type(c))
    x, y, z = float(a), float(b), float(c)
    if not (math.isfinite(x) and math.isfinite(y) and math.isfinite(z)):
        if math.isfinite(x) and math.isfinite(y):  # however large the product is
            return kind.type(z)
        with np.errstate(invalid="ignore"):
            return kind.type(np.float64(x) * np.float64(y) + np.float64(z))
    exact = Fraction(x) * Fraction(y) + Fraction(z)
    if not exact:  # the sign of a zero
        return kind.type(x * y + z if not x or not y else 0.0)
    return rounded(exact, kind)


def rounded(exact: Fraction, kind: np.dtype) -> Any:
    """A nonzero number rounded to the nearest float of a type; ties to even, overflow to infinity."""
    info = np.finfo(kind)
    size = abs(exact)
    exponent = size.numerator.bit_length() - size.denominator.bit_length()
    exponent -= size < Fraction(2) ** exponent  # 2**exponent <= size < 2**(exponent + 1)
    quantum = max(exponent, int(info.minexp)) - int(info.nmant)
    count = round(size / Fraction(2) ** quantum)
    try:
        value = math.ldexp(count, quantum)
    except OverflowError:
        value = math.inf
    if value > float(info.max):
        value = math.inf
    return kind.type(-value if exact < 0 else value)


def cbrt(x: Any) -> Any:
    """The cube root, in the type of x, float64 for integers."""
    kind = type(x) if isinstance(x, np.floating) else np.float64
    return kind(np.cbrt(np.longdouble(np.float64(x))))  # C libraries round half of doubles' wrongly


def _half(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function of float16s, computed in float64 and rounded. For the four operations and the square root, rounding
    twice equals rounding once, since float64 has more than twice the bits."""

    def compute(*args: Any) -> Any:
        with np.errstate(all="ignore"):
            return np.float16(function(*(np.float64(np.float16(arg)) for arg in args)))

    compute.__name__ = compute.__qualname__ = function.__name__
    return compute


def _compare(function: Callable[[Any, Any], Any]) -> Callable[[Any, Any], bool]:
    return lambda a, b: bool(function(np.float16(a), np.float16(b)))


def _minmax(function: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    """PTX's min.f16 and max.f16: of a NaN and a number, the number."""
    return lambda a, b: np.float16(function(np.float16(a), np.float16(b)))


class fp16(metaclass=Namespace):
    """Functions of float16s."""

    hadd = staticmethod(_half(lambda a, b: a + b))
    hsub = staticmethod(_half(lambda a, b: a - b))
    hmul = staticmethod(_half(lambda a, b: a * b))
    hdiv = staticmethod(_half(lambda a, b: a / b))
    hfma = staticmethod(lambda a, b, c: fma(np.float16(a), np.float16(b), np.float16(c)))
    hneg = staticmethod(lambda a: -np.float16(a))
    habs = staticmethod(lambda a: abs(np.float16(a)))
    hsin, hcos = staticmethod(_half(np.sin)), staticmethod(_half(np.cos))
    hlog, hlog2, hlog10 = (staticmethod(_half(f)) for f in (np.log, np.log2, np.log10))
    hexp, hexp2, hexp10 = (staticmethod(_half(f)) for f in (np.exp, np.exp2, lambda x: np.power(10.0, x)))
    hsqrt = staticmethod(_half(np.sqrt))
    hrsqrt = staticmethod(_half(lambda x: 1 / np.sqrt(x)))
    hrcp = staticmethod(_half(lambda x: 1 / x))
    hfloor, hceil = staticmethod(_half(np.floor)), staticmethod(_half(np.ceil))
    hrint, htrunc = staticmethod(_half(np.rint)), staticmethod(_half(np.trunc))
    heq, hne = staticmethod(_compare(np.equal)), staticmethod(_compare(np.not_equal))
    hlt, hle = staticmethod(_compare(np.less)), staticmethod(_compare(np.less_equal))
    hgt, hge = staticmethod(_compare(np.greater)), staticmethod(_compare(np.greater_equal))
    hmax, hmin = staticmethod(_minmax(np.fmax)), staticmethod(_minmax(np.fmin))
