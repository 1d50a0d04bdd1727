"""What an array holds of a number: numerics N1 (nearest), N16 (stochastic), N15 (remainder), written out again.

bf16 is the upper half of fp32, and is rounded as an integer; fp16 is rounded by NumPy.
"""

import numpy as np

from refopt.checks.dtypes import numpy_dtype


def words(x):
    """The patterns of an fp32 array."""
    return np.asarray(x, np.float32).view(np.uint32)


def from_words(pattern):
    return np.asarray(pattern).astype(np.uint32).view(np.float32)


def stored(x, dtype, bits=None):
    """Finite values of the arithmetic as an array of a dtype holds them, in the dtype of the arithmetic.

    ``bits`` are 16 random ones for each element, to round to bf16 stochastically. Either way, a larger number does not
    become a smaller one.
    """
    if np.dtype(dtype).name != "bfloat16":
        with np.errstate(over="ignore"):
            return x.astype(dtype).astype(x.dtype)
    pattern = words(x).astype(np.uint64)
    carried = 0x7FFF + (pattern >> 16 & 1) if bits is None else bits  # half of the lowest bit, and even at ties
    return from_words(pattern + carried & 0xFFFF0000)


def split(exact):
    """A bf16 parameter and its remainder: the exact pattern's lower half, and its upper half to nearest."""
    pattern = words(exact).astype(np.uint64)
    upper, lower = np.asarray(pattern + 0x8000 >> 16, np.uint16), np.asarray(pattern & 0xFFFF, np.uint16)
    return upper.view(numpy_dtype("bfloat16")), lower


def joined(param, remainder):
    """The exact finite values: where the remainder is at least half, the parameter was rounded up."""
    upper = param.view(np.uint16).astype(np.int64) - (remainder >= 0x8000)
    return from_words((upper << 16) + remainder)
