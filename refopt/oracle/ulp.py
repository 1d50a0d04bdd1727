"""Distances between floating-point numbers, in units in the last place, and equality of their bits.

The numbers of a type are ranked in order without gaps; the distance between two numbers is the difference of their
ranks. -0 and +0 are neighbours, since numerics N4 distinguishes them. So the distance is 1 from -0 to +0 and from a
zero to the smallest subnormal of the same sign, and 2 to that of the other sign.

>>> import numpy as np
>>> one = np.float32(1)
>>> int(distance(one, np.nextafter(one, np.float32(2))))
1
>>> int(distance(np.float32(-0.0), np.float32(0.0)))
1
"""

from typing import Any

import numpy as np

from refopt.checks.dtypes import SIZES, name_of

MAXIMUM = 2**64 - 1  # from NaN to a number


def bits(a: Any) -> np.ndarray:
    """The bit patterns of an fp16, bf16, fp32 or fp64 array or scalar, or of integers."""
    a = np.asarray(a)
    if a.dtype.kind not in "ui" and name_of(a.dtype) not in SIZES:
        raise TypeError(f"bits: expected one of {', '.join(SIZES)}, got {a.dtype}")
    return a.view(f"u{a.itemsize}")


def distance(a: Any, b: Any) -> np.ndarray:
    """Elementwise distance in ULPs as uint64: 0 between two NaNs, `MAXIMUM` between NaN and a number.

    For integers it is their difference.
    """
    x, y, x_nan, y_nan = _pair("distance", a, b)
    p, q = (_rank(patterns, np.asarray(a).dtype.kind).astype(np.uint64) for patterns in (x, y))
    ulps = np.maximum(p, q) - np.minimum(p, q)
    return np.where(x_nan | y_nan, np.where(x_nan & y_nan, np.uint64(0), np.uint64(MAXIMUM)), ulps)


def same_bits(a: Any, b: Any) -> np.ndarray:
    """Elementwise equality as numerics N4 defines it: the same bits, or NaN on both sides."""
    x, y, x_nan, y_nan = _pair("same_bits", a, b)
    return (x == y) | (x_nan & y_nan)


def _pair(name: str, a: Any, b: Any) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """The bits of two arrays, and which of their elements are NaN."""
    a, b = np.asarray(a), np.asarray(b)
    if a.dtype != b.dtype:
        raise TypeError(f"{name}: expected two arrays of one dtype, got {a.dtype} and {b.dtype}")
    return bits(a), bits(b), np.isnan(a), np.isnan(b)


def _rank(x: np.ndarray, kind: str) -> np.ndarray:
    """The rank of each number of a type of this kind; +0 follows -0."""
    sign = x.dtype.type(1 << (8 * x.itemsize - 1))
    return x if kind == "u" else x ^ sign if kind == "i" else np.where(x & sign, ~x, x | sign)
