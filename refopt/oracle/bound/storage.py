"""How an array stores a number: a second implementation of numerics N1 (nearest), N16 (stochastic), N15 (remainder).

bf16 is the upper half of fp32, and is rounded as an integer; fp16 is rounded by NumPy.
"""

import numpy as np

from refopt.checks.dtypes import REMAINDERS, numpy_dtype


def words(x):
    """The bit patterns of an fp32 array."""
    return np.asarray(x, np.float32).view(np.uint32)


def from_words(pattern):
    return np.asarray(pattern).astype(np.uint32).view(np.float32)


def stored(x, dtype, bits=None):
    """Finite values of the arithmetic, rounded to a dtype, in the dtype of the arithmetic.

    ``bits`` are 16 random ones for each element, to round to bf16 stochastically. Either way, rounding is monotonic.
    """
    if np.dtype(dtype).name != "bfloat16":
        with np.errstate(over="ignore"):
            return x.astype(dtype).astype(x.dtype)
    pattern = words(x).astype(np.uint64)
    carried = 0x7FFF + (pattern >> 16 & 1) if bits is None else bits  # half of the lowest bit, and even at ties
    return from_words(pattern + carried & 0xFFFF0000)


def is_remainder(master):
    """Whether a master, or ``None``, is a remainder."""
    return master is not None and master.dtype.name in REMAINDERS


def split(exact, dtype):
    """A bf16 parameter, the upper half of the exact pattern to nearest, and its remainder, the lower half.

    Of one of int8, this is half of the lower half, to which the pattern is rounded first, to even at ties.
    """
    pattern, half = words(exact).astype(np.uint64), np.dtype(dtype) == np.int8
    if half:
        pattern = pattern + 0x7F + (pattern >> 8 & 1) & 0xFFFFFF00
    upper, lower = np.asarray(pattern + 0x8000 >> 16, np.uint16), np.asarray(pattern >> 8 * half)
    return upper.view(numpy_dtype("bfloat16")), lower.astype(dtype)


def joined(param, remainder):
    """The exact finite values: the parameter was rounded up where the remainder is at least half."""
    lower = remainder.astype(np.uint8).astype(np.int64) << 8 if remainder.dtype == np.int8 else remainder
    upper = param.view(np.uint16).astype(np.int64) - (lower >= 0x8000)
    return from_words((upper << 16) + lower)
