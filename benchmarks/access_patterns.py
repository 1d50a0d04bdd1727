"""Kernels whose accesses to memory have a name, and the arguments to launch them with.

Each result is stored, so that a compiler keeps every load; no two loads of a thread are side by side and known to be
aligned, so that it makes none of two.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from refopt.gpu.kernels import Kernel, kernel
from refopt.gpu.target import cuda
from refopt.gpu.words import load16, store16

THREADS, BLOCK = 1024, 128
WIDTH, HEIGHT, TILE = 64, 32, 32  # of the matrix that is transposed, and of a tile of it
FIELDS = 4


@kernel()
def copy(x, y):
    i = cuda.grid(1)
    y[i] = x[i]


@kernel()
def misaligned(x, y):
    """As a copy, from the second element on: the last lane is in a sector of its own."""
    i = cuda.grid(1)
    y[i] = x[i + 1]


@kernel()
def stride_2(x, y):
    i = cuda.grid(1)
    y[i] = x[2 * i]


@kernel()
def stride_32(x, y):
    """Each lane is in a sector of its own."""
    i = cuda.grid(1)
    y[i] = x[32 * i]


@kernel()
def broadcast(x, y):
    """All lanes of a warp read one element."""
    i = cuda.grid(1)
    y[i] = x[i // 32]


@kernel()
def gather(x, indices, y):
    i = cuda.grid(1)
    y[i] = x[indices[i]]


@kernel()
def same_half(x, y):
    """Both halves of a warp read the same 16 elements."""
    i = cuda.grid(1)
    y[i] = x[i // 32 * 32 + i % 16]


@kernel()
def vectors(source, target):
    """Accesses of 16 bytes."""
    i = cuda.grid(1)
    store16(target + 16 * i, load16(source + 16 * i))


@kernel()
def vectors_same_quarter(source, target):
    """All four quarters of a warp load the same 128 bytes."""
    i = cuda.grid(1)
    store16(target + 16 * i, load16(source + 16 * (i // 32 * 32 + i % 8)))


@kernel()
def array_of_structures(x, y):
    """The fields of an element are side by side."""
    i = cuda.grid(1)
    y[i] = x[i, 0] * x[i, 1] + x[i, 2] * x[i, 3]


@kernel()
def structure_of_arrays(x, y):
    """The same field of all elements is side by side."""
    i = cuda.grid(1)
    y[i] = x[0, i] * x[1, i] + x[2, i] * x[3, i]


@kernel()
def transpose_naive(x, y):
    """Reads rows, writes columns."""
    i = cuda.grid(1)
    y[i % WIDTH, i // WIDTH] = x[i // WIDTH, i % WIDTH]


def tiled(pitch: int, name: str) -> Kernel:
    """The transpose through a tile of shared memory, whose rows are so many elements apart."""

    def transpose(x, y):
        tile = cuda.shared.array((TILE, pitch), np.float32)
        lane, row = cuda.threadIdx.x % TILE, cuda.threadIdx.x // TILE
        left, top = cuda.blockIdx.x % (WIDTH // TILE) * TILE, cuda.blockIdx.x // (WIDTH // TILE) * TILE
        for k in range(row, TILE, BLOCK // TILE):
            tile[k, lane] = x[top + k, left + lane]
        cuda.syncthreads()
        for k in range(row, TILE, BLOCK // TILE):
            y[left + k, top + lane] = tile[lane, k]

    transpose.__name__ = transpose.__qualname__ = name
    return Kernel(transpose)


transpose_tiled, transpose_padded = tiled(TILE, "transpose_tiled"), tiled(TILE + 1, "transpose_padded")


def through_shared(stride: int, dtype: Any, name: str) -> Kernel:
    """Each thread reads what another wrote, so many elements apart from its neighbour's."""

    def shared(x, y):
        part = cuda.shared.array(BLOCK, dtype)
        t = cuda.threadIdx.x
        part[t] = x[cuda.grid(1)]
        cuda.syncthreads()
        y[cuda.grid(1)] = part[stride * t % BLOCK]

    shared.__name__ = shared.__qualname__ = name
    return Kernel(shared)


shared_stride_0 = through_shared(0, np.float32, "shared_stride_0")
shared_stride_2 = through_shared(2, np.float32, "shared_stride_2")
shared_stride_3 = through_shared(3, np.float32, "shared_stride_3")
shared_double = through_shared(1, np.float64, "shared_double")
shared_double_2 = through_shared(2, np.float64, "shared_double_2")
shared_double_16 = through_shared(16, np.float64, "shared_double_16")


@kernel()
def histogram(x, counts, y):
    """Atomic operations on global memory, whose old values are wanted."""
    i = cuda.grid(1)
    y[i] = cuda.atomic.add(counts, x[i], 1)


@kernel()
def histogram_reduced(x, counts):
    """The same, whose old values nobody wants."""
    cuda.atomic.add(counts, x[cuda.grid(1)], 1)


@kernel()
def histogram_shared(x, y):
    """The same on shared memory."""
    counts = cuda.shared.array(BLOCK, np.int32)
    t = cuda.threadIdx.x
    counts[t] = 0
    cuda.syncthreads()
    y[cuda.grid(1)] = cuda.atomic.add(counts, x[cuda.grid(1)], 1)


class Case(NamedTuple):
    """A kernel, and its arguments: arrays, of which the last is the result; those that are passed by address."""

    kernel: Kernel
    arguments: Callable[[], list[np.ndarray]]
    by_address: bool = False
    blocks: int = THREADS // BLOCK


def _values(count: int, dtype: Any = np.float32) -> np.ndarray:
    return np.arange(count).astype(dtype)


def _result(dtype: Any = np.float32) -> np.ndarray:
    return np.zeros(THREADS, dtype)


def _random(most: int) -> np.ndarray:
    return np.random.default_rng(0).integers(0, most, THREADS).astype(np.int32)


def _flat(reach: int = THREADS, dtype: Any = np.float32) -> Callable[[], list[np.ndarray]]:
    return lambda: [_values(reach, dtype), _result(dtype)]


def _matrix() -> list[np.ndarray]:
    return [_values(HEIGHT * WIDTH).reshape(HEIGHT, WIDTH), np.zeros((WIDTH, HEIGHT), np.float32)]


CASES = {
    "copy": Case(copy, _flat()),
    "copy of bytes": Case(copy, _flat(dtype=np.uint8)),
    "copy of doubles": Case(copy, _flat(dtype=np.float64)),
    "copy of complex numbers": Case(copy, _flat(dtype=np.complex64)),
    "misaligned by one": Case(misaligned, _flat(THREADS + 1)),
    "stride 2": Case(stride_2, _flat(2 * THREADS)),
    "stride 32": Case(stride_32, _flat(32 * THREADS)),
    "one element for a warp": Case(broadcast, _flat(THREADS // 32)),
    "gather": Case(gather, lambda: [_values(THREADS), _random(THREADS), _result()]),
    "same half of doubles": Case(same_half, _flat(dtype=np.float64)),
    "vectors of 16 bytes": Case(vectors, lambda: [_values(4 * THREADS)] * 2, by_address=True),
    "same quarter of vectors": Case(vectors_same_quarter, lambda: [_values(4 * THREADS)] * 2, by_address=True),
    "array of structures": Case(
        array_of_structures, lambda: [_values(FIELDS * THREADS).reshape(THREADS, FIELDS), _result()]
    ),
    "structure of arrays": Case(
        structure_of_arrays, lambda: [_values(FIELDS * THREADS).reshape(FIELDS, THREADS), _result()]
    ),
    "transpose, naive": Case(transpose_naive, _matrix, blocks=HEIGHT * WIDTH // BLOCK),
    "transpose, tiled": Case(transpose_tiled, _matrix, blocks=HEIGHT * WIDTH // TILE**2),
    "transpose, tiled and padded": Case(transpose_padded, _matrix, blocks=HEIGHT * WIDTH // TILE**2),
    "shared, one word": Case(shared_stride_0, _flat()),
    "shared, stride 2": Case(shared_stride_2, _flat()),
    "shared, stride 3": Case(shared_stride_3, _flat()),
    "shared doubles": Case(shared_double, _flat(dtype=np.float64)),
    "shared doubles, stride 2": Case(shared_double_2, _flat(dtype=np.float64)),
    "shared doubles, stride 16": Case(shared_double_16, _flat(dtype=np.float64)),
    "histogram": Case(histogram, lambda: [_random(64), np.zeros(64, np.int32), _result(np.int32)]),
    "histogram of doubles": Case(histogram, lambda: [_random(64), np.zeros(64), _result(np.float64)]),
    "histogram of a sector": Case(histogram, lambda: [_random(8), np.zeros(8, np.int32), _result(np.int32)]),
    "histogram, reduced": Case(histogram_reduced, lambda: [_random(64), np.zeros(64, np.int32)]),
    "histogram in shared memory": Case(histogram_shared, lambda: [_random(64), _result(np.int32)]),
}


def launch(case: Case, machine: Any) -> list[np.ndarray]:
    """Run a kernel on a machine; its arrays afterwards."""
    arrays = [machine.to_device(x) for x in case.arguments()]
    args = tuple(x.__cuda_array_interface__["data"][0] for x in arrays) if case.by_address else tuple(arrays)
    if machine.name == "executor":
        case.kernel.executor[case.blocks, BLOCK](*args)
    else:
        machine.prepare(case.kernel, case.blocks, BLOCK, args)(machine.stream(0))
        machine.synchronize()
    return [x.copy_to_host() for x in arrays]
