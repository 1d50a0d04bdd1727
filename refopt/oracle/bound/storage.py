"""How an array stores a number: a second implementation of numerics N1 (nearest) and N15 (remainder).

bf16 is the upper half of fp32, and is rounded as an integer; fp16 is rounded by NumPy.
"""

import numpy as np


def words(x):
    """The bit patterns of an fp32 array."""
    return np.asarray(x, np.float32).view(np.uint32)


def from_words(pattern):
    return np.asarray(pattern).astype(np.uint32).view(np.float32)


def stored(x, dtype):
    """Finite values of the arithmetic, rounded to a dtype, in the dtype of the arithmetic; rounding is monotonic."""
    if np.dtype(dtype).name != "bfloat16":
        with np.errstate(over="ignore"):
            return x.astype(dtype).astype(x.dtype)
    pattern = words(x).astype(np.uint64)
    carried = 0x7FFF + (pattern >> 16 & 1)  # half of the lowest bit, and even at ties
    return from_words(pattern + carried & 0xFFFF0000)


def joined(param, remainder):
    """The exact finite values: the parameter was rounded up where the remainder is at least half."""
    upper = param.view(np.uint16).astype(np.int64) - (remainder >= 0x8000)
    return from_words((upper << 16) + remainder)
