"""Products of any number of matrices in one launch, with the same bits as `refopt.gpu.products`, faster on Hopper.

Tensor cores wait during all other work: addresses, copies, barriers, and the end of a tile, where sums are rounded and
stored. So here each warp has one task. One thread **loads**, by tensor maps, into a ring of stages; two warpgroups
**multiply**, 64 rows of a tile each, and round their sums into shared memory; one thread **stores** from there, and
loads the matrices to add. They synchronize only at barriers:

    full       of a stage: its boxes have arrived
    empty      of a stage: all warps have multiplied its boxes
    ready      the tile to add has arrived, and the previous tile has left shared memory
    finished   all warps have rounded their sums

A multiplying warp has 16 rows of the tile. A lane has four numbers of every eight columns, as of `C` in
`refopt.gpu.tensor_core`: a tuple of 64 or 128 sums, since ``wgmma`` takes and returns all of them.

There is a block for each multiprocessor. It goes from tile to tile, and loads the next one while a tile ends.

Here the table of products has the addresses of tensor maps. B is stored with a row for each k, unless the product is
symmetric: then B is the transpose of A, and its memory is A's.
"""

from collections import namedtuple
from collections.abc import Callable
from typing import Any

import numpy as np

from refopt.gpu import cuda
from refopt.gpu.kernels import factory
from refopt.gpu.matmul import ZERO
from refopt.gpu.products import ADDED, ALONG, OUT, A, B, K, M, N, kernel_name
from refopt.gpu.target import device_function
from refopt.gpu.tensor_core import ldmatrix4
from refopt.gpu.vectors import FORMATS
from refopt.gpu.warpgroup import (
    BOX,
    ELEMENTS,
    arrive,
    descriptor,
    expect,
    hopper,
    init_barrier,
    load_box,
    multiplier,
    show_barriers,
    show_to_copies,
    stmatrix4,
    stmatrix4_transposed,
    store_box,
    wait,
    wait_for_reads,
    wait_for_stores,
)

HEIGHT = 128  # rows of a tile: a box for each warpgroup, and 16 for each of its warps
MULTIPLYING = LOADING = HEIGHT // 16  # the number of warps that multiply; the next one loads, and the last stores
THREADS = 32 * (MULTIPLYING + 2)
BARRIER = 4  # elements of 16 bits


Layout = namedtuple("Layout", "width stages b stage tile mirror full empty ready finished nbytes")


def layout_of(symmetric: bool) -> Layout:
    """The layout of shared memory, in elements of 16 bits: the ring, a tile, the mirrored tile, the barriers.

    Tiles are 128 x 256, or 128 x 128 if there is a mirrored one, too. In all of them, boxes that are above each other
    are consecutive in memory.
    """
    width, stages = (128, 5) if symmetric else (256, 3)
    b = HEIGHT * BOX  # in a stage, which begins with the rows of A
    stage = b + width * BOX
    tile = stages * stage
    mirror = tile + HEIGHT * width
    full = mirror + HEIGHT * width * symmetric
    empty = full + stages * BARRIER
    ready = empty + stages * BARRIER
    finished = ready + BARRIER
    return Layout(width, stages, b, stage, tile, mirror, full, empty, ready, finished, 2 * (finished + BARRIER))


@device_function
def load_boxes(memory, at, tensor_map, first, k, along, size, barrier):
    """Begin to load ``size`` rows of a matrix, or columns if it is stored ``along`` k, for 64 values of k."""
    for i in range(0, size, BOX):
        place = first + i
        column, row = (place, k) if along else (k, place)
        load_box(memory, at + i * BOX, tensor_map, (np.uint32(column), np.uint32(row)), memory, barrier)


@device_function
def store_boxes(memory, at, tensor_map, row, column, height, width):
    """Begin to store a tile."""
    for j in range(0, width, BOX):
        for i in range(0, height, BOX):
            store_box(tensor_map, (np.uint32(column + j), np.uint32(row + i)), memory, at + j * height + i * BOX)


def loader(layout: Layout, square: bool, symmetric: bool) -> Callable:
    """The work of the loading thread."""
    @device_function
    def load(memory, tiles, products):
        at, parity = 0, 1  # at a new barrier, a wait for parity 1 returns at once
        for n in range(cuda.blockIdx.x, tiles.shape[0], cuda.gridDim.x):
            i, row, column = tiles[n, 0], tiles[n, 1], tiles[n, 2]
            a, b, a_along = products[i, A], products[i, B], square and products[i, ALONG] != 0
            b_along, alone = a_along or not symmetric, symmetric and row == column and a == b
            for k in range(0, products[i, K], BOX):
                came, start = layout.full + at * BARRIER, at * layout.stage
                wait(memory, layout.empty + at * BARRIER, parity)
                expect(memory, came, 2 * (layout.b if alone else layout.stage))
                load_boxes(memory, start, a, row, k, a_along, HEIGHT, came)
                if not alone:
                    load_boxes(memory, start + layout.b, b, column, k, b_along, layout.width, came)
                at += 1
                if at == layout.stages:
                    at, parity = 0, 1 - parity

    return load


def saver(layout: Layout, symmetric: bool, adds: bool) -> Callable:
    """The work of the storing thread."""
    @device_function
    def save(memory, tiles, products):
        turn = 0
        for n in range(cuda.blockIdx.x, tiles.shape[0], cuda.gridDim.x):
            i, row, column = tiles[n, 0], tiles[n, 1], tiles[n, 2]
            out = products[i, OUT]
            if adds:
                expect(memory, layout.ready, 2 * HEIGHT * layout.width)
                for j in range(0, layout.width, BOX):
                    at = layout.tile + j * HEIGHT
                    load_boxes(memory, at, products[i, ADDED], row, column + j, False, HEIGHT, layout.ready)
            else:
                arrive(memory, layout.ready)
            wait(memory, layout.finished, turn)
            store_boxes(memory, layout.tile, out, row, column, HEIGHT, layout.width)
            if symmetric and row != column:
                store_boxes(memory, layout.mirror, out, column, row, layout.width, HEIGHT)
            wait_for_reads()
            turn = 1 - turn
        wait_for_stores()

    return save


def adder(dtype: str, layout: Layout, a_along: bool, b_along: bool) -> Callable:
    """A function that sums the products of a warpgroup's rows of a tile, and returns the next stage and its parity.

    It multiplies all columns or, if no more are needed, only the first 64, or none.
    """
    multiply, multiply_few = (multiplier(dtype, width, a_along, b_along) for width in (layout.width, BOX))
    describe_a, describe_b, count = descriptor(a_along), descriptor(b_along), BOX // 2

    @device_function
    def come(memory, at, parity):
        """Wait for a stage; how far it is from the first, as descriptors count."""
        wait(memory, layout.full + at * BARRIER, parity)
        return at * (2 * layout.stage >> 4)

    @device_function
    def leave(memory, at, parity):
        """Give a stage back; the next one."""
        if cuda.threadIdx.x % 32 == 0:
            arrive(memory, layout.empty + at * BARRIER)
        last = at + 1 == layout.stages
        return 0 if last else at + 1, 1 - parity if last else parity

    @device_function
    def add_up(sums, memory, depth, from_b, columns, at, parity):
        a = describe_a(memory, cuda.threadIdx.x // 128 * ELEMENTS)
        b = describe_b(memory, from_b)
        if columns > BOX:
            for _ in range(0, depth, BOX):
                away = come(memory, at, parity)
                sums = multiply(a + away, b + away, sums)
                at, parity = leave(memory, at, parity)
        else:
            few = sums[:count]
            for _ in range(0, depth, BOX):
                away = come(memory, at, parity)
                if columns > 0:
                    few = multiply_few(a + away, b + away, few)
                at, parity = leave(memory, at, parity)
            sums = few + sums[count:]
        return sums, at, parity

    return add_up


@device_function
def element(height, row, column):
    """Where an element of a tile is: boxes of 64 columns, in which chunks of eight are permuted by the row."""
    return (column // BOX * height + row) * BOX + (column % BOX // 8 ^ row % 8) * 8 + column % 8


def of_twice(finish: Callable, count: int) -> Callable:
    """``finish`` for a tuple of twice ``count`` sums. A tuple in registers has only constant indices, so nothing loops.
    """
    columns = count // 8  # of 16 each

    @device_function
    def both(sums, q, *where):
        finish(sums[:count], q, *where)
        finish(sums[count:], q + columns, *where)

    return both


def finisher(dtype: str, layout: Layout, symmetric: bool, adds: bool) -> Callable:
    """A function that rounds a warp's sums, 16 rows of a tile, into the tile and the mirrored one.

    If it ``adds``, it first adds ``beta`` times the tile's elements to ``alpha`` times the sums. In symmetric products,
    an element above the diagonal is the one below it.
    """
    short = {"bfloat16": "bf16x2", "float16": "f16x2"}[dtype]
    widen = FORMATS[dtype].widen_pair.format(w="$2", x="$0", y="$1")

    @hopper(f"cvt.rn.{short}.f32 $0, $2, $1;", "=r,f,f", "r", "ff")
    def narrowed(numbers):
        """Two numbers, rounded, as a word."""

    @hopper(f"{{ .reg .b16 h0, h1; {widen}}}", "=f,=f,r", "ff", "r")
    def widened(word):
        """The two numbers of a word."""

    @device_function
    def rounded(word, sums, alpha, beta):
        low, high = widened(word)
        return narrowed((beta * low + alpha * sums[0], beta * high + alpha * sums[1]))

    @device_function
    def finish8(x, q, memory, at, mirror, last, line, part, alpha, beta):
        """Round a lane's eight sums in columns 16 q to 16 q + 15, unless q is beyond the ``last``."""
        if not symmetric or q <= last:
            spot = at + q // 4 * (HEIGHT * BOX) + (q % 4 * 2 + part ^ line) * 8
            if adds:
                c = ldmatrix4(memory, spot)
                words = (rounded(c[0], x[0:2], alpha, beta), rounded(c[1], x[2:4], alpha, beta),
                         rounded(c[2], x[4:6], alpha, beta), rounded(c[3], x[6:8], alpha, beta))
            else:
                words = narrowed(x[0:2]), narrowed(x[2:4]), narrowed(x[4:6]), narrowed(x[6:8])
            stmatrix4(memory, spot, words)
            if symmetric:
                beside = layout.mirror - layout.tile if q == last else 0
                stmatrix4_transposed(memory, mirror + beside + q * (16 * BOX), words)

    every, count = finish8, 8
    while count < layout.width // 2:
        every, count = of_twice(every, count), 2 * count

    @device_function
    def finish(sums, memory, row, lane, diagonal, alpha, beta):
        # A lane has the address of a row of one of four matrices of 8 x 8. A row of the mirrored tile is a column of
        # the tile. A tile on the diagonal is its own mirrored one: a warp has 16 columns there in which some elements
        # are above the diagonal; it stores them beside the tile, and then takes those.
        line, part = lane % 8, lane // 16
        at = layout.tile + (row + lane % 16) * BOX
        across = (row % BOX // 8 + lane // 8 % 2 ^ line) * 8
        mirror = layout.tile if diagonal else layout.mirror
        mirror += row // BOX * (layout.width * BOX) + (part * 8 + line) * BOX + across
        every(sums, 0, memory, at, mirror, row // 16 if diagonal else layout.width, line, part, alpha, beta)
        if symmetric and diagonal:
            cuda.syncwarp()
            for e in range(lane, 256, 32):
                r, c = row + e // 16, row + e % 16
                if r < c:
                    place = element(HEIGHT, r, c)
                    memory[layout.tile + place] = memory[layout.mirror + place]

    return finish


@device_function
def clear(memory, at, height, row, column):
    """Set a row of a tile to 0 from ``column`` up to the end of its chunk."""
    for c in range(column, (column + 7) // 8 * 8):
        memory[at + element(height, row, c)] = 0


def summer(dtype: str, layout: Layout, square: bool, symmetric: bool, adds: bool) -> Callable:
    """The work of the multiplying warps."""
    add_up, add_along = adder(dtype, layout, False, not symmetric), adder(dtype, layout, True, True)
    finish, zeros = finisher(dtype, layout, symmetric, adds), (ZERO,) * (layout.width // 2)

    @device_function
    def sum_up(memory, tiles, products, alpha, beta):
        at, parity, turn = 0, 0, 0
        top, lane = cuda.threadIdx.x // 32 * 16, cuda.threadIdx.x % 32
        for n in range(cuda.blockIdx.x, tiles.shape[0], cuda.gridDim.x):
            i, sums = tiles[n, 0], zeros
            below, right = products[i, M] - tiles[n, 1], products[i, N] - tiles[n, 2]
            diagonal = symmetric and tiles[n, 1] == tiles[n, 2]
            first = top // BOX * BOX  # row of the warpgroup
            needed = min(right, first + BOX) if diagonal else right
            columns = needed if first < below else 0
            # On the diagonal of X X^T and of A A, the columns of B are the rows of A, and loaded once.
            from_b = 0 if diagonal and products[i, A] == products[i, B] else layout.b
            if square and products[i, ALONG] != 0:
                sums, at, parity = add_along(sums, memory, products[i, K], from_b, columns, at, parity)
            else:
                sums, at, parity = add_up(sums, memory, products[i, K], from_b, columns, at, parity)
            wait(memory, layout.ready, turn)
            finish(sums, memory, top, lane, diagonal, alpha, beta)
            # A store skips whole chunks of eight elements beyond the matrix, but no part of a chunk. Sums there can be
            # NaN times 0, but padding must stay 0.
            cuda.syncwarp()
            # A diagonal tile is cleared as its mirror image alone, by the one warp that has the matrix's last row.
            if right < layout.width and lane < 16 and not diagonal:
                clear(memory, layout.tile, HEIGHT, top + lane, right)
            if symmetric and top <= below < top + 16:
                for line in range(lane, top + 16 if diagonal else layout.width, 32):
                    clear(memory, layout.tile if diagonal else layout.mirror, layout.width, line, below)
            show_to_copies()
            cuda.syncwarp()
            if lane == 0:
                arrive(memory, layout.finished)
            turn = 1 - turn

    return sum_up


@factory
def merged(dtype: str, square: bool, symmetric: bool, adds: bool) -> Any:
    """The kernel of `products.merged`, with the same arguments, for the tiles of `Layout`."""
    layout = layout_of(symmetric)
    load, save = loader(layout, square, symmetric), saver(layout, symmetric, adds)
    sum_up = summer(dtype, layout, square, symmetric, adds)

    def warpgroup_products(tiles, products, alpha, beta):
        memory = cuda.shared.array(0, np.uint16, alignment=1024)
        warp, lane = cuda.threadIdx.x // 32, cuda.threadIdx.x % 32
        if cuda.threadIdx.x == 0:
            for s in range(layout.stages):
                init_barrier(memory, layout.full + s * BARRIER, 1)
                init_barrier(memory, layout.empty + s * BARRIER, MULTIPLYING)
            init_barrier(memory, layout.ready, 1)
            init_barrier(memory, layout.finished, MULTIPLYING)
            show_barriers()
        cuda.syncthreads()
        if warp < MULTIPLYING:
            sum_up(memory, tiles, products, alpha, beta)
        elif lane == 0:
            if warp == LOADING:
                load(memory, tiles, products)
            else:
                save(memory, tiles, products)

    warpgroup_products.__name__ = kernel_name("warpgroup_products", square, symmetric, adds)
    return cuda.jit(launch_bounds=(THREADS, 1), dynamic_shared=layout.nbytes)(warpgroup_products)
