"""Products of any number of matrices in one launch, by a table of tiles and the functions of `refopt.gpu.matmul`.

A block takes a **tile** of 64 x 64 elements. A row of the table of tiles has its product and its position there; a row
of the table of products has the addresses and sizes of the matrices. So a launch has a block for every tile of all
products, and small products fill what large ones leave free. `refopt.gpu.warpgroup_products` is for large ones.

X X^T is exactly symmetric, since the order of a sum does not depend on which factor comes first (numerics, N17);
so is A A if A is symmetric. A B of symmetric factors that commute is so before rounding, and made so: an element above
the diagonal is the one below it. Tiles above are not computed, and a block stores each element below at both places.
That halves the work.

Matrices are `padded` in memory: zeros fill rows and columns up to multiples of eight, and change no bit. So rows are
multiples of 16 bytes, whatever the sizes, and all copies are asynchronous.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from refopt.gpu import cuda, vectors
from refopt.gpu.kernels import factory
from refopt.gpu.matmul import ACROSS, DOWN, THREADS, ZERO, clear, part, pipeline

# Columns of the table of products: the fields of a `Product`. Columns of the table of tiles: product, row and column.
A, B, OUT, ADDED, M, N, K, ALONG = range(8)


class Product(NamedTuple):
    """Addresses of ``a``, ``b``, ``out`` and of the matrix to add, or 0; sizes without padding; and a flag for X X^T.

    ``along`` is whether X is stored as its transpose, with a row for each k. For X X^T, ``b`` is X again.
    """

    a: int
    b: int
    out: int
    added: int
    m: int
    n: int
    k: int
    along: bool = False


@cuda.jit(device=True)
def padded(size):
    """Rows or columns in memory: the next multiple of eight."""
    return (size + 7) // 8 * 8


def tiles(products: Sequence[Product], symmetric: bool, height: int, width: int) -> np.ndarray:
    """The table of tiles (T, 3), of ``height`` by ``width`` elements; of symmetric products, on and below the diagonal.

    Tiles with the longest sums come first, since they should not be left for the end.
    """
    parts = [np.empty((0, 3), np.int64)]
    for i in sorted(range(len(products)), key=lambda i: -products[i].k):
        counts = -(-products[i].m // height), -(-products[i].n // width)
        rows, columns = np.indices(counts).reshape(2, -1) * [[height], [width]]
        kept = rows >= columns if symmetric else rows >= 0
        parts.append(np.stack(np.broadcast_arrays(i, rows[kept], columns[kept]), 1))
    return np.concatenate(parts)


def storer(dtype: str, adds: bool, mirrored: bool) -> Callable:
    """A function that rounds a warp's sums and stores them, two at a time.

    If ``mirrored``, it stores only elements on and below the diagonal, and those below it above it, too. If it
    ``adds``, it first adds ``beta`` times a matrix to ``alpha`` times the sums.
    """
    load2, store2, store1 = (getattr(vectors, f"{what}_{dtype}") for what in ("load2", "store2", "store"))

    @cuda.jit(device=True)
    def store(sums, row, column, lane, out, m, n, alpha, beta, added):
        row, column, pitch = row + lane // 4, column + lane % 4 * 2, padded(n)
        for i in range(DOWN):
            for j in range(ACROSS):
                for half in range(2):
                    x, y, r, s = sums[i, j, 2 * half], sums[i, j, 2 * half + 1], row + 16 * i + 8 * half, column + 8 * j
                    if r < m and s < n:
                        here, both = r * pitch + s, s + 1 < n
                        if adds:
                            low, high = load2(added + 2 * here)
                            x, y = beta * low + alpha * x, beta * high + alpha * y
                        if not mirrored or r > s:
                            store2(out + 2 * here, (x, y if both else ZERO))
                        elif r == s:
                            store1(out + 2 * here, x)
                        if mirrored and r > s:
                            store1(out + 2 * (s * pitch + r), x)
                            if both:
                                store1(out + 2 * ((s + 1) * pitch + r), y)

    return store


def kernel_name(base: str, square: bool, symmetric: bool, adds: bool) -> str:
    """The name of a kernel, such as products_symmetric_added."""
    return base + "_square" * square + "_symmetric" * symmetric + "_added" * adds


@factory
def merged(dtype: str, square: bool, symmetric: bool, adds: bool) -> Any:
    """The kernel for a dtype: for X X^T if ``square``, else for A B, plus a matrix if it ``adds``."""
    add_up, a_elements, b_elements = pipeline(dtype, False, square)
    add_along, a_others, b_others = pipeline(dtype, square, False)
    a_elements, b_elements = max(a_elements, a_others), max(b_elements, b_others)
    store = storer(dtype, adds, symmetric)

    def products(tiles, table, alpha, beta):
        tile_a = cuda.shared.array(a_elements, np.uint16, alignment=16)
        tile_b = cuda.shared.array(b_elements, np.uint16, alignment=16)
        sums = cuda.local.array((DOWN, ACROSS, 4), np.float32)
        clear(sums)
        top, left, lane = part()
        i, row, column = tiles[cuda.blockIdx.x, 0], tiles[cuda.blockIdx.x, 1], tiles[cuda.blockIdx.x, 2]
        a, b, m, n = table[i, A], table[i, B], table[i, M], table[i, N]
        height, pitch, depth = padded(m), padded(n), padded(table[i, K])
        if square and table[i, ALONG]:
            add_along(sums, tile_a, tile_b, a, b, row, column, height, pitch, depth, top, left, lane)
        else:
            add_up(sums, tile_a, tile_b, a, b, row, column, height, pitch, depth, top, left, lane)
        out, added = table[i, OUT], table[i, ADDED]
        store(sums, row + top, column + left, lane, out, m, n, alpha, beta, added)

    products.__name__ = kernel_name("products", square, symmetric, adds)
    return cuda.jit(launch_bounds=(THREADS, 4))(products)
