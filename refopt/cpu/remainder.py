"""Exact parameters as a bf16 parameter and the 16 bits that bf16 omits, instead of an fp32 master (N15).

The parameter is the fp32 value rounded to bf16, ties away from zero; the remainder is the lower half of the fp32
pattern. Its highest bit tells whether the upper half was rounded up, so `join` can undo that: `split` and `join` are
each other's inverse on all 2**32 patterns. With ties to even they could not be: a parameter would not tell in which
direction it was rounded.

NaN stays NaN: the upper half of a NaN is not rounded, since a carry would turn it into a number. One set of patterns
is the exception, infinity's upper half with a large lower half; these are signalling NaNs, which no arithmetic
produces, and their parameter is a zero.
"""

import numpy as np

from refopt.checks.dtypes import numpy_dtype

SIGN, INFINITY, HALF = 0x8000, 0x7F80, 0x8000
NAN = np.uint32(0x7FC00000).view(np.float32)


def split(exact: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Parameter and remainder of exact values.

    Args:
        exact: fp32 array of any shape.

    Returns:
        A bf16 array and a uint16 array of the same shape.
    """
    param, remainder = halves(exact)
    return param.view(numpy_dtype("bfloat16")), remainder


def halves(exact: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """`split`, with the parameter as its bits: two uint16 arrays."""
    pattern = exact.view(np.uint32)
    sign, upper, lower = pattern >> 16 & SIGN, pattern >> 16 & 0x7FFF, pattern & 0xFFFF
    rounded = np.where(upper < INFINITY, upper + 1, np.where(upper == INFINITY, 0, upper))
    upper = np.where(lower < HALF, upper, rounded)
    return (sign | upper).astype(np.uint16), lower.astype(np.uint16)


def split_numbers(exact: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """`split` as a step stores it: every NaN becomes the one of pattern 0x7fc00000, however it was computed."""
    return split(number(exact))


def number(exact: np.ndarray) -> np.ndarray:
    """Values with the NaN of pattern 0x7fc00000 for every NaN."""
    return np.where(np.isnan(exact), NAN, exact)


def join(param: np.ndarray, remainder: np.ndarray) -> np.ndarray:
    """The exact values of parameters and remainders: the inverse of `split`.

    Args:
        param: bf16 array of any shape.
        remainder: uint16 array of the same shape.

    Returns:
        An fp32 array of the same shape.
    """
    pattern, lower = param.view(np.uint16).astype(np.uint32), remainder.astype(np.uint32)
    sign, rounded = pattern & SIGN, pattern & 0x7FFF
    upper = np.where(rounded == 0, INFINITY, np.where(rounded <= INFINITY, rounded - 1, rounded))
    upper = np.where(lower < HALF, rounded, upper).astype(np.uint32)
    return ((sign | upper) << 16 | lower).astype(np.uint32).view(np.float32)
