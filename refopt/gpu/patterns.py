"""The bits of numbers, for the Python twins of PTX: NumPy has no bf16, which is the upper half of an fp32.

Each function takes a number, or an array of numbers.
"""

from collections.abc import Callable
from struct import Struct

import numpy as np

# All bf16 numbers as fp32, by bit pattern: on the executor a look-up takes a twentieth of the time of a view.
WIDENED = (np.arange(2**16, dtype=np.uint32) << np.uint32(16)).view(np.float32)
_word: Callable[..., tuple[int]] = Struct("=I").unpack


def pattern_of(value):
    """The bits of a number as fp32."""
    if type(value) is np.ndarray:
        return value.astype(np.float32, copy=False).view(np.uint32)
    return _word(value if type(value) is np.float32 else np.float32(value))[0]


def widen_bfloat16(pattern):
    """The fp32 with the value of a bf16's bits."""
    return WIDENED[pattern] if type(pattern) is np.ndarray else WIDENED[int(pattern)]


def narrow_bfloat16(value):
    """The bits of the bf16 nearest to a number, ties to even; every NaN becomes the same one."""
    pattern = pattern_of(value)
    rounded = (pattern + 0x7FFF + (pattern >> 16 & 1)) >> 16
    if type(value) is np.ndarray:
        return np.where(value == value, rounded, 0x7FFF)
    return rounded if value == value else 0x7FFF
