"""The product of two bf16 or fp16 matrices on tensor cores, bit for bit equal to `refopt.cpu.matmul` (numerics, N17).

A block of four warps computes a tile of 64 x 64 elements, and a warp 32 x 32 of them: two rows of four ``mma.sync``
products. It takes k in steps of 32. In each step the threads load a tile of either matrix to shared memory, the warps
load fragments from there, and each accumulator adds two chunks of 16 products. Beyond a matrix, tiles are filled with
zeros, which change no bit. So a sum is always in the order of k, whatever the tiles are.

The sums are stored as fp32, or rounded to the matrices' dtype. `refopt.gpu.products` has the products of many
matrices in one launch, plus a matrix, as Muon's iterations need them.

A matrix may be given as its transpose in memory: ``ldmatrix`` transposes as it loads. So X X^T reads only X, and the
rows of a tile are always rows in memory.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from refopt.checks.arguments import chosen
from refopt.checks.dtypes import SIZES, name_of
from refopt.cpu.matmul import tensor_core
from refopt.gpu import cuda
from refopt.gpu.arrays import describer, device_of
from refopt.gpu.cuda import Launch, address
from refopt.gpu.kernels import factory
from refopt.gpu.runtime import device
from refopt.gpu.tensor_core import MMA, begin_copy16, end_group, ldmatrix4, ldmatrix4_transposed, wait_but
from refopt.gpu.vectors import store_of

TILE = 64  # rows and columns of a block's tile
PART = 32  # rows and columns of a warp's part of the tile
DOWN, ACROSS = PART // 16, PART // 8  # products of 16 x 8 in that part
THREADS = 128
STEP, CHUNK = 32, 8  # the step of k; the elements in 16 bytes, which a thread copies at a time
ZERO = np.float32(0)

# A lane has four numbers of each of these products, those of `C` in `refopt.gpu.tensor_core`. In a local array they are
# ``sums[i, j, 0:4]``, for rows from 16 i and columns from 8 j of the warp's part. All loops over them have constant
# lengths, so the compiler unrolls them, and the sums are in registers.


@cuda.jit(device=True)
def clear(sums):
    """Set a lane's sums to 0."""
    for i in range(DOWN):
        for j in range(ACROSS):
            for e in range(4):
                sums[i, j, e] = ZERO


def operand(along_k: bool) -> tuple[Callable, Callable, Callable, int]:
    """Functions that fill the tile of a matrix, begin to fill it, and load its fragments; and its number of elements.

    ``along_k`` is whether the matrix has a row for each k.
    """
    rows, columns = (STEP, TILE) if along_k else (TILE, STEP)
    load = ldmatrix4_transposed if along_k else ldmatrix4
    narrow, chunks, parts = columns == 32, columns // CHUNK, rows * columns // CHUNK // THREADS

    @cuda.jit(device=True)
    def spot(row, chunk):
        # Eight rows that a warp loads together must be in different banks of shared memory, which repeat every 128
        # bytes: so chunks change places from row to row, or from pair to pair of rows if a row has 64 bytes.
        return row * columns + (chunk ^ (row // 2 % 4 if narrow else row % 8)) * CHUNK

    @cuda.jit(device=True)
    def fill(tile, x, first, extent, k, depth):
        top, left, height, width = (k, first, depth, extent) if along_k else (first, k, extent, depth)
        # Neighbouring threads take neighbouring elements of a row in memory.
        for i in range(cuda.threadIdx.x, rows * columns, THREADS):
            r, c = i // columns, i % columns
            inside = top + r < height and left + c < width
            tile[spot(r, c // CHUNK) + c % CHUNK] = x[(top + r) * width + left + c] if inside else 0

    @cuda.jit(device=True)
    def begin(tile, base, x, first, extent, k, depth):
        top, left, height, width = (k, first, depth, extent) if along_k else (first, k, extent, depth)
        # The same, eight elements at a time. A row has a multiple of eight elements, so all eight are inside, or none.
        for n in range(parts):
            i = cuda.threadIdx.x + n * THREADS
            r, c = i // chunks, i % chunks
            inside = top + r < height and left + c * CHUNK < width
            start = (top + r) * width + left + c * CHUNK if inside else 0
            begin_copy16(tile, base + spot(r, c), x + 2 * start, 16 if inside else 0)

    @cuda.jit(device=True)
    def fragment(tile, base, first, k, apart, k_apart):
        # Each lane gives the address of a row of one of four matrices of 8 x 8.
        line = cuda.threadIdx.x % 8
        if along_k:
            return load(tile, base + spot(k + k_apart + line, (first + apart) // CHUNK))
        return load(tile, base + spot(first + apart + line, (k + k_apart) // CHUNK))

    return fill, begin, fragment, rows * columns


@cuda.jit(device=True)
def part():
    """Row and column of the warp's part in a tile, and the lane."""
    warp = cuda.threadIdx.x // 32
    return warp // 2 * PART, warp % 2 * PART, cuda.threadIdx.x % 32


def storer(dtype: str) -> Callable:
    """A function that stores a warp's sums, rounded to a dtype."""
    store_one, size = store_of(dtype), SIZES[dtype]

    @cuda.jit(device=True)
    def store(sums, out, row, column, lane, m, n):
        row, column = row + lane // 4, column + lane % 4 * 2
        for i in range(DOWN):
            for j in range(ACROSS):
                for e in range(4):
                    r, s = row + 16 * i + e // 2 * 8, column + 8 * j + e % 2
                    if r < m and s < n:
                        store_one(out + size * (r * n + s), sums[i, j, e])

    return store


def multiplier(dtype: str, fragment_a: Callable, fragment_b: Callable) -> Callable:
    """A function that adds the products of two tiles, at given elements of shared memory, to a warp's sums."""
    mma = MMA[dtype]

    @cuda.jit(device=True)
    def add(sums, i, j, x, low, high):
        s = sums[i, j, 0], sums[i, j, 1], sums[i, j, 2], sums[i, j, 3]
        s = mma((x[i, 0], x[i, 1], x[i, 2], x[i, 3], low, high), s)
        sums[i, j, 0], sums[i, j, 1], sums[i, j, 2], sums[i, j, 3] = s

    @cuda.jit(device=True)
    def multiply(tile_a, base_a, tile_b, base_b, sums, top, left, lane):
        # In one direction matrices 1 and 3 begin eight elements after the others, in the other direction 2 and 3.
        odd, late = lane // 8 % 2 * 8, lane // 16 * 8
        x = cuda.local.array((DOWN, 4), np.uint32)
        for k in range(0, STEP, 16):
            # Fragments have 16 x 16 numbers; one of B serves two products of 16 x 8.
            for i in range(DOWN):
                x[i, 0], x[i, 1], x[i, 2], x[i, 3] = fragment_a(tile_a, base_a, top + 16 * i, k, odd, late)
            for j in range(0, ACROSS, 2):
                y = fragment_b(tile_b, base_b, left + 8 * j, k, late, odd)
                for i in range(DOWN):
                    add(sums, i, j, x, y[0], y[1])
                    add(sums, i, j + 1, x, y[2], y[3])

    return multiply


def direct(dtype: str, a_transposed: bool, b_transposed: bool) -> tuple[Callable, int, int]:
    """A function that sums the products of a tile, and the elements of shared memory for either matrix."""
    fill_a, _, fragment_a, a_size = operand(a_transposed)
    fill_b, _, fragment_b, b_size = operand(not b_transposed)
    multiply = multiplier(dtype, fragment_a, fragment_b)

    @cuda.jit(device=True)
    def add_up(sums, tile_a, tile_b, a, b, row, column, m, n, depth, top, left, lane):
        for first in range(0, depth, STEP):
            fill_a(tile_a, a, row, m, first, depth)
            fill_b(tile_b, b, column, n, first, depth)
            cuda.syncthreads()
            multiply(tile_a, 0, tile_b, 0, sums, top, left, lane)
            cuda.syncthreads()

    return add_up, a_size, b_size


# A load from memory takes hundreds of cycles, and until then `direct` has nothing to multiply. ``cp.async``
# copies to shared memory while the warps continue, without passing through registers. So there are three pairs of
# tiles: one is multiplied while two are in flight.

STAGES = 3
wait_but_one = wait_but(STAGES - 2)


def pipeline(dtype: str, a_transposed: bool, b_transposed: bool) -> tuple[Callable, int, int]:
    """`direct` in stages, with asynchronous copies.

    Rows in memory must be multiples of 16 bytes. Its row and column counts are those in memory.
    """
    _, begin_a, fragment_a, a_size = operand(a_transposed)
    _, begin_b, fragment_b, b_size = operand(not b_transposed)
    multiply = multiplier(dtype, fragment_a, fragment_b)

    @cuda.jit(device=True)
    def add_up(sums, tile_a, tile_b, a, b, row, column, m, n, depth, top, left, lane):
        inside = row + top < m and column + left < n  # at least one element of the warp's part
        for stage in range(STAGES - 1):
            begin_a(tile_a, stage * a_size, a, row, m, stage * STEP, depth)
            begin_b(tile_b, stage * b_size, b, column, n, stage * STEP, depth)
            end_group()
        for first in range(0, depth, STEP):
            # A thread waits for its own copies, and at the barrier for those of the others. After the barrier all warps
            # have also multiplied the previous step's tiles, which the next copies overwrite.
            wait_but_one()
            cuda.syncthreads()
            ahead, stage = first + (STAGES - 1) * STEP, first // STEP % STAGES
            free = ahead // STEP % STAGES
            begin_a(tile_a, free * a_size, a, row, m, ahead, depth)
            begin_b(tile_b, free * b_size, b, column, n, ahead, depth)
            end_group()
            if inside:
                multiply(tile_a, stage * a_size, tile_b, stage * b_size, sums, top, left, lane)

    return add_up, STAGES * a_size, STAGES * b_size


@factory
def kernel(dtype: str, a_transposed: bool, b_transposed: bool, stored: str, stages: bool) -> Any:
    """The kernel of a product.

    Args:
        dtype: of the matrices.
        a_transposed, b_transposed: whether either is given as its transpose.
        stored: the dtype of the result.
        stages: whether to copy asynchronously, for which rows in memory must be multiples of 16 bytes.
    """
    add_up, a_size, b_size = (pipeline if stages else direct)(dtype, a_transposed, b_transposed)
    store = storer(stored)

    @cuda.jit(launch_bounds=(THREADS, 4))
    def product(a, b, out, m, n, k):
        tile_a = cuda.shared.array(a_size, np.uint16, alignment=16)
        tile_b = cuda.shared.array(b_size, np.uint16, alignment=16)
        sums = cuda.local.array((DOWN, ACROSS, 4), np.float32)
        clear(sums)
        tiles = (n + TILE - 1) // TILE
        row, column = cuda.blockIdx.x // tiles * TILE, cuda.blockIdx.x % tiles * TILE
        top, left, lane = part()
        add_up(sums, tile_a, tile_b, a, b, row, column, m, n, k, top, left, lane)
        store(sums, out, row + top, column + left, lane, m, n)

    return product


def launch(
    a: Any, b: Any, out: Any, shape: tuple[int, int, int], dtype: str, a_transposed: bool = False,
    b_transposed: bool = False,
) -> Launch:
    """The launch of a product, with asynchronous copies if rows in memory are multiples of 16 bytes.

    Args:
        a, b: the bits of the matrices, uint16 arrays of one axis on one machine: (m, k) and (k, n) row by row, or
            their transposes.
        out: array of m * n elements for the result: fp32, or uint16 for the sums rounded to the dtype.
        shape: m, n and k.
        dtype: ``"bfloat16"`` or ``"float16"``.
        a_transposed, b_transposed: whether a matrix is given as its transpose.

    Raises:
        ValueError, TypeError: an argument is unsuitable, and the message names it; or the arithmetic of the machine's
            tensor cores has not been measured.
    """
    arrays = {"a": a, "b": b, "out": out}
    where, (m, n, k) = device_of([*arrays.values()]), shape
    tensor_core(device(where).properties.capability)
    chosen("matmul: dtype", dtype, MMA)
    sizes = {"a": m * k, "b": k * n, "out": m * n}
    for name, x in arrays.items():
        array = describer(where)(x, f"matmul: {name}")
        kinds = ["float32", "uint16"] if name == "out" else ["uint16"]
        if array.shape != (sizes[name],) or array.dtype not in kinds or not array.in_c_order():
            expected = f"{sizes[name]} elements of {' or '.join(kinds)}, for shape {shape}"
            raise ValueError(f"matmul: {name}: expected {expected}, got shape {array.shape} of {array.dtype}")
    starts = address(a), address(b)
    rows = m if a_transposed else k, k if b_transposed else n
    aligned = not any(x % 16 for x in starts) and not any(x % 8 for x in rows)
    stored = "float32" if name_of(out.dtype) == "float32" else dtype
    made: Any = kernel(dtype, a_transposed, b_transposed, stored, aligned)
    args = *(starts if aligned else (a, b)), address(out), m, n, k
    return Launch(made, -(-m // TILE) * -(-n // TILE), THREADS, args, keep=[*arrays.values()])
