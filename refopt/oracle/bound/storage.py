"""How an array stores a number: a second implementation of numerics N1 (nearest), N16 (stochastic), N15 (remainder).

bf16 is the upper half of fp32, and is rounded as an integer; fp16 is rounded by NumPy.
"""

import numpy as np

from refopt.checks.dtypes import numpy_dtype


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


def split(exact):
    """A bf16 parameter, the upper half of the exact pattern to nearest, and its remainder, the lower half."""
    pattern = words(exact).astype(np.uint64)
    upper, lower = np.asarray(pattern + 0x8000 >> 16, np.uint16), np.asarray(pattern & 0xFFFF, np.uint16)
    return upper.view(numpy_dtype("bfloat16")), lower


def joined(param, remainder):
    """The exact finite values: the parameter was rounded up where the remainder is at least half."""
    upper = param.view(np.uint16).astype(np.int64) - (remainder >= 0x8000)
    return from_words((upper << 16) + remainder)
