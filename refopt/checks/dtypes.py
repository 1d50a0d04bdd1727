"""The storage types, and the arithmetic type of each (numerics, N1)."""

import math
from functools import cache
from typing import Any

import numpy as np

from refopt.checks.optional import library

SIZES = {"float16": 2, "bfloat16": 2, "float32": 4, "float64": 8}
# Includes types that are only moved, never computed with.
ITEM_SIZES = SIZES | {
    "bool": 1, "int8": 1, "uint8": 1, "int16": 2, "uint16": 2, "int32": 4, "uint32": 4, "int64": 8, "uint64": 8,
}

WIDEST = 16  # bytes of the widest access of a thread of a kernel
ACCESSES = {dtype: min(WIDEST, 4 * size) for dtype, size in ITEM_SIZES.items()}  # bytes, of four elements if they fit
REMAINDERS = ("uint16", "int8")  # of bf16 parameters (numerics, N15)
GROUP, CODED = 32, 36  # elements and bytes of a group of a state in 8 bits (numerics, N21)


def coded_bytes(size: int) -> int:
    """The bytes of a state of so many elements in 8 bits."""
    return -(-size // GROUP) * CODED


def bytes_of(dtype: str, size: int) -> int:
    """The bytes of so many elements of a parameter, gradient or state; ``"uint8"`` is a state in 8 bits."""
    return coded_bytes(size) if dtype == "uint8" else size * ITEM_SIZES[dtype]


def stored_shape(dtype: str, shape: tuple[int, ...]) -> tuple[int, ...]:
    """The shape of the array that stores a state; a state in 8 bits is flat."""
    return (coded_bytes(math.prod(shape)),) if dtype == "uint8" else shape


@cache
def name_of(dtype: Any) -> str:
    """The plain name of a NumPy, ml_dtypes or PyTorch dtype: ``"float32"``, ``"bfloat16"``, ..."""
    if isinstance(dtype, type):
        dtype = np.dtype(dtype)
    return str(getattr(dtype, "name", dtype)).rpartition(".")[2]


def arithmetic(param: str) -> type[np.float32] | type[np.float64]:
    """The type in which a routine computes: fp64 for fp64 parameters, fp32 for all others."""
    return np.float64 if param == "float64" else np.float32


def arithmetic_name(param: str) -> str:
    """The plain name of `arithmetic`."""
    return name_of(np.dtype(arithmetic(param)))


def widens(source: str, target: type) -> bool:
    """Whether the arithmetic type ``target`` represents every value of ``source``."""
    return source in SIZES and SIZES[source] <= np.dtype(target).itemsize


def numpy_dtype(name: str) -> np.dtype:
    """The NumPy dtype of a plain name; bfloat16 is from ml_dtypes, without which it raises ModuleNotFoundError."""
    return np.dtype(library("ml_dtypes").bfloat16 if name == "bfloat16" else name)


def lacking(name: str) -> str:
    """Why NumPy lacks a dtype in this installation, and what to install; empty if it has it."""
    try:
        numpy_dtype(name)
    except ImportError as error:
        return str(error)
    return ""
