"""The storage types, and the arithmetic type that belongs to each (numerics, N1)."""

from typing import Any

import numpy as np

SIZES = {"float16": 2, "bfloat16": 2, "float32": 4, "float64": 8}


def name_of(dtype: Any) -> str:
    """The plain name of a NumPy, ml_dtypes or PyTorch dtype: ``"float32"``, ``"bfloat16"``, ..."""
    if isinstance(dtype, type):
        dtype = np.dtype(dtype)
    return str(getattr(dtype, "name", dtype)).rpartition(".")[2]


def arithmetic(param: str) -> type[np.float32] | type[np.float64]:
    """The type a routine computes in: fp64 for fp64 parameters, fp32 for every other."""
    return np.float64 if param == "float64" else np.float32


def widens(source: str, target: type) -> bool:
    """Whether every value of ``source`` is a value of the arithmetic type ``target``."""
    return source in SIZES and SIZES[source] <= np.dtype(target).itemsize
