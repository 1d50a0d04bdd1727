"""The product of a matrix and its transpose, the first of each iteration of Muon: from a thread for each element on.

The reference is ``refopt.cpu.matmul``, in NumPy (numerics, N17)::

    A[i, j] = sum over k of X[i, k] * X[j, k]          # A = X X^T, for each matrix X of a list

An optimizer reads a number, computes a little, and writes it: memory determines its time. A product of matrices of size
n takes 2 n^3 operations on 2 n^2 numbers. Each number is used n times, and the time depends on how often it is fetched
for that, and from how far. So the versions differ in where a number is kept until its next use. A product A B of two
matrices differs only in its loads.

The first three versions compute in fp32. They sum each element in the order of k, and round each product and each
addition. The others multiply matrices of bf16 on tensor cores, which add 16 products and the sum so far in one step,
and round the result to bf16. All versions of either kind match the reference bit for bit, since none changes the order
along k: tiles cut rows and columns, and cut k only into consecutive steps.

Versions:

    matmul_0    a thread for each element
    matmul_1    tiles in shared memory: a block fetches a number once for 32 uses
    matmul_2    tiles in registers: a thread has 16 elements, and uses each number that it fetches for four of them
    matmul_3    tensor cores: ``mma.sync``, with fragments straight from global memory
    matmul_4    fragments by ``ldmatrix`` from tiles in shared memory    ``kernel`` of ``refopt/gpu/matmul.py``
    matmul_5    stages: ``cp.async`` fetches tiles while others are multiplied    the same, with stages
    matmul_6    the tiles above the diagonal are mirrored, not computed    ``merged`` of ``refopt/gpu/products.py``
    matmul_7    all matrices in one launch, by a table of tiles    the same
    matmul_8    Hopper's ``wgmma``; one thread loads, by tensor maps    ``refopt/gpu/warpgroup_products.py``

Muon runs matmul_8 on Hopper for large matrices, and matmul_7 otherwise. matmul_8 does not run on the executor.

Products of 1,024 x 1,024 matrices on an NVIDIA H200, a half that is mirrored counted in full::

    version             launches of 1  ms of 1  TFLOP/s of 1  launches of 64  ms of 64  TFLOP/s of 64  registers
    matmul_0                        1    4.424           0.5              64   283.112            0.5         32
    matmul_1                        1    0.399           5.4              64    26.049            5.3         48
    matmul_2                        1    0.212          10.1              64    14.542            9.5         64
    torch.matmul, fp32              1    0.060          35.5               1     2.767           49.7
    matmul_3                        1    0.238           9.0              64    15.094            9.1         60
    matmul_4                        1    0.218           9.8              64    14.266            9.6        106
    matmul_5                        1    0.022          99.1              64     1.277          107.6        114
    matmul_6                        1    0.019         115.1              64     1.086          126.5        128
    matmul_7                        1    0.019         113.8               1     0.426          322.9        128
    matmul_8                        1    0.013         170.8               1     0.147          935.4        119
    torch.matmul, bf16              1    0.008         272.2               1     0.197          698.4
"""

from functools import partial
from typing import Any

import numpy as np

from refopt.gpu import cuda, matmul, warpgroup_products
from refopt.gpu.cuda import Launch, address, on_machine_of
from refopt.gpu.products import Product, merged, padded, tiles
from refopt.gpu.runtime import device
from refopt.gpu.tensor_core import MMA
from refopt.gpu.vectors import store_bfloat16

ZERO = np.float32(0)  # a Python number would be a double in the compiled kernel

# Matrices are arrays of one axis, stored row by row: ``shapes`` has their rows m and columns k. Those of bf16 contain
# its bits as uint16.


def squares(kernel, height, width, threads, xs, outs, shapes):
    """A launch for each matrix, with a block for each tile of its product, ``height`` by ``width`` elements."""
    return [
        Launch(kernel, -(-m // height) * -(-m // width), threads, (x, out, m, k))
        for x, out, (m, k) in zip(xs, outs, shapes, strict=True)
    ]


# A thread for each element.

SIDE = 32  # of a block's tile


@cuda.jit
def matmul_0(x, out, m, k):
    across = (m + SIDE - 1) // SIDE
    i = cuda.blockIdx.x // across * SIDE + cuda.threadIdx.x // SIDE
    j = cuda.blockIdx.x % across * SIDE + cuda.threadIdx.x % SIDE
    if i < m and j < m:
        total = ZERO
        for p in range(k):
            # Two loads for a multiplication and an addition. The lanes of a warp share i, and so one of the two
            # numbers. They have 32 values of j, whose numbers are k apart: 32 sectors of 32 bytes, and 4 bytes of each
            # are used. The next seven values of p find the other bytes in the cache, if they are still there.
            total += x[i * k + p] * x[j * k + p]
        out[i * m + j] = total


launches_0 = partial(squares, matmul_0, SIDE, SIDE, SIDE * SIDE)


# Tiles in shared memory.

APART = SIDE + 1  # numbers from row to row


@cuda.jit
def matmul_1(x, out, m, k):
    # A tile of the product has 1,024 elements, which need 32 rows of X on either side. In steps of 32 columns, each
    # thread fetches one number for either side, and 32 threads use each number.
    rows = cuda.shared.array((SIDE, SIDE), np.float32)
    # A warp reads a column of this one. If its rows were 32 numbers long, a column would be in one of the 32 banks of
    # shared memory, and a bank serves one number at a time. With rows of 33 each number is in a different bank.
    columns = cuda.shared.array((SIDE, APART), np.float32)
    across = (m + SIDE - 1) // SIDE
    top, left = cuda.blockIdx.x // across * SIDE, cuda.blockIdx.x % across * SIDE
    r, c = cuda.threadIdx.x // SIDE, cuda.threadIdx.x % SIDE
    total = ZERO
    for first in range(0, k, SIDE):
        p = first + c
        # Neighbouring threads fetch neighbouring numbers of a row: every byte of a sector is used at once. Beyond the
        # matrix, zeros fill the tile. They change no bit: x + 0 is x, and a sum that begins at +0 is never -0.
        rows[r, c] = x[(top + r) * k + p] if top + r < m and p < k else ZERO
        columns[r, c] = x[(left + r) * k + p] if left + r < m and p < k else ZERO
        cuda.syncthreads()  # all numbers are stored before any is used
        for q in range(SIDE):
            total += rows[r, q] * columns[c, q]
        cuda.syncthreads()  # and all are used before the next ones overwrite them
    if top + r < m and left + c < m:
        out[(top + r) * m + left + c] = total


launches_1 = partial(squares, matmul_1, SIDE, SIDE, SIDE * SIDE)


# Tiles in registers.

# Shared memory is near, but matmul_1 still reads two numbers from it for each multiplication. A thread that has four
# rows and four columns of the product reads eight numbers for sixteen multiplications. The block's tile is 64 x 64, so
# each number from global memory is used 64 times.

LARGE, DEPTH, EACH = 64, 16, 4  # a block's tile, the columns of X in a step, and a thread's rows and columns
# A tile has a row for each column of X, so that a warp reads neighbours. A warp stores two rows of X at a time, which
# are columns of the tile: with rows of 66 numbers, its 32 stores go to 32 banks.
PITCH = LARGE + 2


@cuda.jit
def matmul_2(x, out, m, k):
    tile_a = cuda.shared.array((DEPTH, PITCH), np.float32)
    tile_b = cuda.shared.array((DEPTH, PITCH), np.float32)
    # Despite its name, no memory: the compiler unrolls loops of fixed length, and then each element is a register.
    a, sums = cuda.local.array(EACH, np.float32), cuda.local.array((EACH, EACH), np.float32)
    for i in range(EACH):
        for j in range(EACH):
            sums[i, j] = ZERO
    t, across = cuda.threadIdx.x, (m + LARGE - 1) // LARGE
    top, left = cuda.blockIdx.x // across * LARGE, cuda.blockIdx.x % across * LARGE
    # A thread's rows are 16 apart, and so are its columns: neighbouring threads read, and finally write, neighbouring
    # columns.
    r, c = t // 16, t % 16
    for first in range(0, k, DEPTH):
        for n in range(t, LARGE * DEPTH, 256):
            row, p = n // DEPTH, n % DEPTH
            inside = first + p < k
            tile_a[p, row] = x[(top + row) * k + first + p] if inside and top + row < m else ZERO
            tile_b[p, row] = x[(left + row) * k + first + p] if inside and left + row < m else ZERO
        cuda.syncthreads()
        for p in range(DEPTH):
            for i in range(EACH):
                a[i] = tile_a[p, r + 16 * i]
            for j in range(EACH):
                b = tile_b[p, c + 16 * j]
                for i in range(EACH):
                    sums[i, j] += a[i] * b
        cuda.syncthreads()
    for i in range(EACH):
        for j in range(EACH):
            if top + r + 16 * i < m and left + c + 16 * j < m:
                out[(top + r + 16 * i) * m + left + c + 16 * j] = sums[i, j]


launches_2 = partial(squares, matmul_2, LARGE, LARGE, 256)


# Tensor cores.

# Now arithmetic is the limit. A multiprocessor of an H100 does 128 fp32 operations in a cycle, and a product and its
# addition are two of them if each is rounded. Its tensor cores do 2,048 products of 16-bit numbers in a cycle, with
# their additions. One instruction of a warp multiplies 16 x 16 by 16 x 8 elements, and each lane supplies a part of
# either matrix (see ``refopt/gpu/tensor_core.py``). ``refopt.cpu.matmul`` computes the same result with integers.

mma = MMA["bfloat16"]
WARPS = 4  # of a block, side by side: its tile is 16 x 32


@cuda.jit(device=True)
def pair_of(x, row, p, m, k):
    """Two neighbours of a row as a word, the first in its lower half; zeros beyond the matrix."""
    low = x[row * k + p] if row < m and p < k else 0
    high = x[row * k + p + 1] if row < m and p + 1 < k else 0
    return low | high << 16


@cuda.jit
def matmul_3(x, out, m, k):
    across = (m + 8 * WARPS - 1) // (8 * WARPS)
    warp, lane = cuda.threadIdx.x // 32, cuda.threadIdx.x % 32
    g, t = lane // 4, lane % 4
    top, left = cuda.blockIdx.x // across * 16, cuda.blockIdx.x % across * 8 * WARPS + 8 * warp
    sums = ZERO, ZERO, ZERO, ZERO
    for first in range(0, k, 16):
        p = first + 2 * t
        # Two rows of X for the left side, eight apart, and one for the right, a column of the transpose.
        a = pair_of(x, top + g, p, m, k), pair_of(x, top + g + 8, p, m, k)
        b = pair_of(x, top + g, p + 8, m, k), pair_of(x, top + g + 8, p + 8, m, k)
        c = pair_of(x, left + g, p, m, k), pair_of(x, left + g, p + 8, m, k)
        # All lanes take part, even those beyond the matrix: an instruction of the warp waits for all of them.
        sums = mma((a[0], a[1], b[0], b[1], c[0], c[1]), sums)
    for n in range(4):
        i, j = top + g + n // 2 * 8, left + 2 * t + n % 2
        if i < m and j < m:
            store_bfloat16(out + 2 * (i * m + j), sums[n])


def launches_3(xs, outs, shapes):
    return squares(matmul_3, 16, 8 * WARPS, 32 * WARPS, xs, map(address, outs), shapes)


# Fragments from shared memory.

# Each lane of matmul_3 fetches twelve numbers, one by one, for each instruction. ``refopt/gpu/matmul.py`` combines the
# instruction with the methods of the first versions: a block's tiles are in shared memory, and a warp has 32 x 32 of
# its 64 x 64 elements in registers. ``ldmatrix`` loads four matrices of 8 x 8 into the lanes' registers at once.


def launches_4(xs, outs, shapes):
    return [
        launch._replace(kernel=matmul.kernel("bfloat16", False, True, "bfloat16", False), args=(x, x, *launch.args[2:]))
        for x, launch in zip(xs, launches_5(xs, outs, shapes), strict=True)
    ]


def launches_5(xs, outs, shapes):
    """With stages if rows are multiples of 16 bytes, else like matmul_4."""
    return [
        matmul.launch(x, x, out, (m, m, k), "bfloat16", False, True)
        for x, out, (m, k) in zip(xs, outs, shapes, strict=True)
    ]


# Halves, and a table.

# The sums for (i, j) and (j, i) are bitwise equal: a block off the diagonal stores its tile twice. A small matrix
# fills only a part of the GPU: with a table of tiles, one launch computes all matrices.


def launches_6(xs, outs, shapes):
    """A launch for each matrix."""
    return [launch for one in zip(xs, outs, shapes, strict=True) for launch in launches_7(*([each] for each in one))]


def tables(places, shapes, side):
    """The tables of tiles and of products, from the addresses of X and A for each matrix."""
    for i, shape in enumerate(shapes):
        if any(padded(size) != size for size in shape):
            raise ValueError(f"tables: shapes[{i}]: expected multiples of eight, got {shape}")
    products = [Product(x, x, out, 0, m, m, k) for (x, out), (m, k) in zip(places, shapes, strict=True)]
    return tiles(products, True, side, side), np.array(products, np.int64)


def launches_7(xs, outs, shapes):
    """One launch for all matrices. Their sizes must be multiples of eight; Muon pads others (`padded`)."""
    both = tables(zip(map(address, xs), map(address, outs), strict=True), shapes, matmul.TILE)
    if not len(both[0]):
        return []
    args = *(on_machine_of(xs[0], table) for table in both), ZERO, ZERO
    kernel: Any = merged("bfloat16", True, True, False)
    return [Launch(kernel, len(both[0]), matmul.THREADS, args, keep=[*xs, *outs])]


# Warpgroups.

# ``mma.sync`` needs its operands in registers, and the warps that multiply also spend time fetching them. ``wgmma``
# reads them from shared memory. One thread requests copies of whole boxes, using a tensor map that describes the
# matrix; other warps only multiply.


def launches_8(xs, outs, shapes):
    """One launch for all matrices, with at most one block per multiprocessor."""
    machine: Any = device("gpu")
    sizes = [*((m, k, k) for m, k in shapes), *((m, m, m) for m, _ in shapes)]
    maps = machine.tensor_maps([*map(address, xs), *map(address, outs)], sizes)
    at = [address(maps) + 128 * i for i in range(len(sizes))]
    both = tables(zip(at[: len(xs)], at[len(xs) :], strict=True), shapes, warpgroup_products.HEIGHT)
    args = *map(machine.to_device, both), ZERO, ZERO
    kernel: Any = warpgroup_products.merged("bfloat16", True, True, False)
    grid = min(len(both[0]), machine.properties.multiprocessors)
    return [Launch(kernel, grid, warpgroup_products.THREADS, args, keep=[maps, *xs, *outs])]


RUNGS = {
    "matmul_0": launches_0, "matmul_1": launches_1, "matmul_2": launches_2, "matmul_3": launches_3,
    "matmul_4": launches_4, "matmul_5": launches_5, "matmul_6": launches_6, "matmul_7": launches_7,
}
HOPPER = {"matmul_8": launches_8}
PLAIN = "matmul_0", "matmul_1", "matmul_2"  # of fp32; the others of bf16

if __name__ == "__main__":
    from refopt.gpu.ladder import bench

    bench.main("matmul")
