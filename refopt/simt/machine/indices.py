"""The position of a thread in the grid, and integer intrinsics."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..base.state import blockDim, blockIdx, gridDim, threadIdx


def grid(ndim: int) -> Any:
    """The thread's absolute position: an int for one dimension, a tuple for two or three."""
    x = blockIdx.x * blockDim.x + threadIdx.x
    if ndim == 1:
        return x
    return (x, blockIdx.y * blockDim.y + threadIdx.y, blockIdx.z * blockDim.z + threadIdx.z)[:ndim]


def gridsize(ndim: int) -> Any:
    """The number of threads along each dimension of the grid."""
    x = blockDim.x * gridDim.x
    if ndim == 1:
        return x
    return (x, blockDim.y * gridDim.y, blockDim.z * gridDim.z)[:ndim]


def elements(arrays: tuple, index: Any) -> tuple:
    """An element of each array."""
    return tuple(array[index] for array in arrays)


def _bits(x: Any) -> tuple[int, int]:
    """The bit pattern of an integer and its width; a Python int is an int64, as in Numba."""
    width = x.dtype.itemsize * 8 if isinstance(x, np.integer) else 64
    return int(x) & ((1 << width) - 1), width


def popc(x: Any) -> int:
    """The number of set bits."""
    return _bits(x)[0].bit_count()


def clz(x: Any) -> int:
    """The number of leading zero bits, in the width of the type."""
    bits, width = _bits(x)
    return width - bits.bit_length()


def ffs(x: Any) -> int:
    """The position of the lowest set bit, from 1; 0 if there is none."""
    bits, _ = _bits(x)
    return (bits & -bits).bit_length()


def brev(x: Any) -> int:
    """The bits in reverse order: all 64 of a uint64; of any other type, even int64, the lowest 32, as in Numba."""
    width = 64 if isinstance(x, np.uint64) else 32
    return int(f"{int(x) & ((1 << width) - 1):0{width}b}"[::-1], 2)


def selp(condition: Any, a: Any, b: Any) -> Any:
    """`a` if the condition holds, else `b`."""
    return a if condition else b
