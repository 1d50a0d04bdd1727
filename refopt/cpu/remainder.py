"""Exact parameters as a bf16 parameter and what bf16 omits, instead of an fp32 master (N15).

The parameter is the fp32 value rounded to bf16, ties away from zero; a remainder of 16 bits is the lower half of the
fp32 pattern. As a signed integer it is what to add to the parameter's pattern for the exact one: negative if the
parameter was rounded up. So `join` and `split` are each other's inverse on all numbers. With ties to even they could
not be: a parameter would not tell in which direction it was rounded. A remainder of 8 bits is the same of the value
rounded to the upper 24 bits of its pattern, ties to even.

Every NaN becomes that of pattern 0x7fc00000, however it was computed.
"""

import numpy as np

from refopt.checks.dtypes import numpy_dtype

NAN = 0x7FC00000


def split(exact: np.ndarray, dtype: str = "uint16") -> tuple[np.ndarray, np.ndarray]:
    """Parameter and remainder of exact values.

    Args:
        exact: fp32 array of any shape.
        dtype: that of the remainder, ``"uint16"`` or ``"int8"``.

    Returns:
        A bf16 array and one of ``dtype``, both of the same shape.
    """
    pattern = np.where(np.isnan(exact), np.uint32(NAN), exact.view(np.uint32))
    if dtype == "int8":
        pattern = pattern + np.uint32(0x7F) + (pattern >> 8 & 1)
    rest = pattern >> 8 if dtype == "int8" else pattern
    return (pattern + 0x8000 >> 16).astype(np.uint16).view(numpy_dtype("bfloat16")), rest.astype(dtype)


def join(param: np.ndarray, remainder: np.ndarray) -> np.ndarray:
    """The exact values of parameters and remainders.

    Args:
        param: bf16 array of any shape.
        remainder: uint16 or int8 array of the same shape.

    Returns:
        An fp32 array of the same shape.
    """
    rest = remainder.astype(np.int32) << 8 if remainder.dtype == np.int8 else remainder.view(np.int16).astype(np.int32)
    return ((param.view(np.uint16).astype(np.int64) << 16) + rest).astype(np.uint32).view(np.float32)
