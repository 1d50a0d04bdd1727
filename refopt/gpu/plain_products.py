"""Products of any number of matrices in one launch, in fp32 or fp64, without tensor cores: sequences over k (N17).

The tables are those of `refopt.gpu.products`, and so are the tiles of 64 x 64. A thread computes 4 x 4 elements of a
tile, sixteen rows and columns apart, so that neighbours in a warp take neighbouring columns. In each step the block
loads either matrix for 16 values of k to shared memory, from where a thread multiplies each number four times. Every
product and every sum is rounded separately; zeros beyond the matrices change no bit.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from refopt.checks.dtypes import SIZES
from refopt.gpu import cuda
from refopt.gpu.kernels import factory
from refopt.gpu.matmul import TILE
from refopt.gpu.products import ADDED, ALONG, OUT, A, B, K, M, N, kernel_name, padded
from refopt.gpu.vectors import load_of, store_of

EDGE = 64  # rows and columns of a tile
STEP, SIDE = 16, 16  # the step of k; threads in a row or column of the block
THREADS = SIDE * SIDE
EACH = EDGE // SIDE  # rows and columns of a thread
PITCH = EDGE + 1  # from row to row in shared memory, so that sixteen rows begin in different banks
ELEMENTS, SUMS = STEP * PITCH, EACH * EACH

assert EDGE == TILE, "the tables of tiles are those of refopt.gpu.products"


def filler(dtype: str) -> Callable:
    """A function that loads a tile, a row for each of 16 k, from 64 rows of a matrix, or columns if ``along`` k."""
    size, load, zero = SIZES[dtype], load_of(dtype), np.dtype(dtype).type(0)

    @cuda.jit(device=True)
    def fill(tile, x, first, extent, k, depth, along):
        for i in range(cuda.threadIdx.x, EDGE * STEP, THREADS):
            # Neighbouring threads take neighbouring elements in memory.
            line, far = (i % EDGE, i // EDGE) if along else (i // STEP, i % STEP)
            inside = first + line < extent and k + far < depth
            row, column, pitch = (k + far, first + line, extent) if along else (first + line, k + far, depth)
            tile[far * PITCH + line] = load(x + size * (row * padded(pitch) + column)) if inside else zero

    return fill


@factory
def merged(dtype: str, square: bool, symmetric: bool, adds: bool) -> Any:
    """The kernel for a dtype, as `products.merged`; ``numbers`` has alpha and beta."""
    fill, size, real = filler(dtype), SIZES[dtype], np.dtype(dtype).type
    load, store, zero = load_of(dtype), store_of(dtype), real(0)

    def plain_products(tiles, table, numbers):
        tile_a, tile_b = cuda.shared.array(ELEMENTS, real), cuda.shared.array(ELEMENTS, real)
        sums = cuda.local.array(SUMS, real)
        for e in range(SUMS):
            sums[e] = zero
        i, row, column = tiles[cuda.blockIdx.x, 0], tiles[cuda.blockIdx.x, 1], tiles[cuda.blockIdx.x, 2]
        m, n, depth = table[i, M], table[i, N], table[i, K]
        a_along = square and table[i, ALONG] != 0
        b_along = a_along or not square
        down, right = cuda.threadIdx.x // SIDE, cuda.threadIdx.x % SIDE
        for k in range(0, depth, STEP):
            fill(tile_a, table[i, A], row, m, k, depth, a_along)
            fill(tile_b, table[i, B], column, n, k, depth, b_along)
            cuda.syncthreads()
            for far in range(STEP):
                for e in range(SUMS):
                    x = tile_a[far * PITCH + down + SIDE * (e // EACH)]
                    sums[e] = sums[e] + x * tile_b[far * PITCH + right + SIDE * (e % EACH)]
            cuda.syncthreads()
        out, added, pitch = table[i, OUT], table[i, ADDED], padded(n)
        for e in range(SUMS):
            r, c, x = row + down + SIDE * (e // EACH), column + right + SIDE * (e % EACH), sums[e]
            if r < m and c < n:
                if adds:
                    x = numbers[1] * load(added + size * (r * pitch + c)) + numbers[0] * x
                if not symmetric or r >= c:
                    store(out + size * (r * pitch + c), x)
                if symmetric and r > c:
                    store(out + size * (c * pitch + r), x)

    plain_products.__name__ = kernel_name("plain_products", square, symmetric, adds)
    return cuda.jit(launch_bounds=(THREADS, 2))(plain_products)
