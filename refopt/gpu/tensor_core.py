"""Tensor cores of a warp: fragments of matrices from shared memory, products, and asynchronous copies.

``mma.sync`` multiplies a 16 x 16 matrix A by a 16 x 8 matrix B and adds the product to C. The warp has the matrices
in registers, a part of each in each lane. Lane 4 g + t has::

    A  4 words    (g, 2t..2t+1)   (g+8, 2t..2t+1)   (g, 2t+8..2t+9)   (g+8, 2t+8..2t+9)     row, columns
    B  2 words    (2t..2t+1, g)   (2t+8..2t+9, g)                                           rows, column
    C  4 numbers  (g, 2t)         (g, 2t+1)         (g+8, 2t)         (g+8, 2t+1)           row, column

A word has two 16-bit numbers, the first in its lower half. ``ldmatrix`` loads four matrices of 8 x 8 in exactly this
form. Lanes 8 i to 8 i + 7 give the addresses of the rows of matrix i, 16 bytes each, and each lane gets from each
matrix the two numbers in row g and columns 2t and 2t + 1; with ``.trans``, those of the transposed matrix.

On the executor all lanes of a warp wait for each other here, and `refopt.cpu.matmul` computes the sums.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from refopt.checks.dtypes import numpy_dtype
from refopt.cpu.matmul import accumulate, exponents
from refopt.gpu.target import intrinsic
from refopt.simt import memory, vectors

SINCE = 9, 0  # the compute capability of tensor cores whose arithmetic is known
CORNERS = (0, 0), (8, 0), (0, 8), (8, 8)  # of the four parts of a fragment of A


def _halves(words: np.ndarray) -> np.ndarray:
    """Words of lanes, shape (warps, 32), as the 8 x 8 numbers in them: row g, columns 2t and 2t + 1."""
    return np.ascontiguousarray(words, np.uint32).view(np.uint16).reshape(-1, 8, 8)


def _product(dtype: str) -> Callable[..., tuple[np.ndarray, ...]]:
    def widened(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        kind = numpy_dtype(dtype)  # not at import, so that the package can be imported without ml_dtypes
        return x.view(kind).astype(np.float64), exponents(x.view(kind))

    def exchange(*brought: np.ndarray) -> tuple[np.ndarray, ...]:
        words, numbers = brought[:6], brought[6:]
        warps = len(words[0])
        a, b, c = np.empty((warps, 16, 16), "u2"), np.empty((warps, 16, 8), "u2"), np.empty((warps, 16, 8), "f4")
        for (row, column), word in zip(CORNERS, words[:4], strict=True):
            a[:, row : row + 8, column : column + 8] = _halves(word)
        for row, word in zip((0, 8), words[4:], strict=True):
            b[:, row : row + 8] = _halves(word).swapaxes(1, 2)
        places = [(part, slice(column, None, 2)) for part in (slice(8), slice(8, None)) for column in (0, 1)]
        for place, number in zip(places, numbers, strict=True):
            c[:, *place] = number.reshape(-1, 8, 4)
        with np.errstate(all="ignore"):
            d = accumulate(c, widened(a), widened(b))
        return tuple(d[:, *place].reshape(-1, 32) for place in places)

    return exchange


def _mma(dtype: str, short: str) -> Callable:
    """``mma.sync`` of a dtype: takes the words of A and then of B, and the numbers of C; returns the sums."""

    @intrinsic(
        f"mma.sync.aligned.m16n8k16.row.col.f32.{short}.{short}.f32 "
        "{$0, $1, $2, $3}, {$4, $5, $6, $7}, {$8, $9}, {$10, $11, $12, $13};",
        "=f,=f,=f,=f,r,r,r,r,r,r,f,f,f,f", "ffff", "rrrrrrffff", since=SINCE, warp=_product(dtype),
    )
    def mma(words, numbers):
        return (*words, *numbers)

    mma.__name__ = f"mma_{dtype}"
    return mma


mma_bfloat16, mma_float16 = _mma("bfloat16", "bf16"), _mma("float16", "f16")
MMA = {"bfloat16": mma_bfloat16, "float16": mma_float16}


def _matrices(transposed: bool) -> Callable[..., tuple[np.ndarray, ...]]:
    def exchange(*halves: np.ndarray) -> tuple[np.ndarray, ...]:
        matrices = np.stack(halves, -1).astype(np.uint16).reshape(-1, 4, 8, 8)
        matrices = matrices.swapaxes(2, 3) if transposed else matrices
        words = np.ascontiguousarray(matrices).view(np.uint32).reshape(-1, 4, 32)
        return tuple(words[:, i] for i in range(4))

    return exchange


LDMATRIX = "ldmatrix.sync.aligned.m8n8.x4{}.shared.b16 {{$0, $1, $2, $3}}, [$4];"
WORDS = "=r,=r,=r,=r,r,~{memory}"


@intrinsic(LDMATRIX.format(""), WORDS, "rrrr", "s", warp=_matrices(False))
def ldmatrix4(array, index):
    """Words of four matrices of 16-bit numbers in shared memory; the lane's row begins at ``index``."""
    return tuple(vectors.read_vector(array, index, 8))


@intrinsic(LDMATRIX.format(".trans"), WORDS, "rrrr", "s", warp=_matrices(True))
def ldmatrix4_transposed(array, index):
    """`ldmatrix4` of the transposed matrices."""
    return tuple(vectors.read_vector(array, index, 8))


def _begin_copies(array: Any, index: np.ndarray, address: np.ndarray, nbytes: np.ndarray) -> None:
    """`begin_copy16` of many lanes, each of which copies all 16 bytes or none."""
    whole, count = nbytes == 16, 16 // array.itemsize
    if not np.all(whole | (nbytes == 0)):
        raise ValueError("a part of 16 bytes")  # then the threads copy one by one
    values = np.zeros((count, len(index)), f"u{array.itemsize}")
    if whole.any():
        there = np.where(whole, address, address[whole.argmax()])
        values[:, whole] = np.array(memory.load(there, values.dtype, count))[:, whole]
    vectors.copy_async(array, index, values)


@intrinsic(
    "cp.async.cg.shared.global [$0], [$1], 16, $2;", "r,l,r,~{memory}", "", "slr", since=(8, 0), lanes=_begin_copies
)
def begin_copy16(array, index, address, nbytes):
    """Begin to copy up to 16 bytes from an address to an element of shared memory; the rest of the 16 become 0."""
    count = int(nbytes) // array.itemsize
    kind = np.dtype(f"u{array.itemsize}")
    values = np.zeros(16 // array.itemsize, kind)
    values[:count] = memory.load(address, kind, count) if count else ()
    vectors.copy_async(array, index, values)


@intrinsic("cp.async.commit_group;", "~{memory}", "", "", since=(8, 0))
def end_group():
    """Make the copies that the thread has begun a group."""
    vectors.commit_copies()


def wait_but(pending: int) -> Callable:
    """A function that waits for all groups of the thread's copies except the latest ``pending``."""

    @intrinsic(f"cp.async.wait_group {pending};", "~{memory}", "", "", since=(8, 0))
    def wait():
        vectors.wait_for_copies(pending)

    return wait
