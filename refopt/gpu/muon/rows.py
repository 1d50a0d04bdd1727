"""The two launches by which NorMuon finds the factor of each row, after the iterations (``refopt.cpu.normuon``).

In the first, a warp takes a row of x: it sums the squares along the tree of N6, updates the average, and keeps the sum
and the divisor. In the second, whose tables are those of `refopt.gpu.tables` with rows for elements, blocks sum both
over the rows of each matrix, along the same tree, and the last one keeps what restores the norm.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from refopt.checks.dtypes import SIZES
from refopt.cpu.reduce import TILE
from refopt.gpu import tables
from refopt.gpu.gate import gate
from refopt.gpu.group import Group
from refopt.gpu.instructions import sqrt
from refopt.gpu.kernels import Kernel, factory, kernel
from refopt.gpu.muon.elements import BETA2, BY_ROW, DIVISORS, FIRST, INNER_ROW, OUTER_ROW, ROW_EPSILON, SQUARES
from refopt.gpu.muon.matrices import LAST_X, OF_TENSOR, Matrix, uploaded
from refopt.gpu.norms import NORM_BOUNDS
from refopt.gpu.products import padded
from refopt.gpu.rows import OFFSETS, WHOLE, access
from refopt.gpu.tables import TENSOR
from refopt.gpu.target import cuda, device_function
from refopt.gpu.tiles import chunk_sums, tile_sums
from refopt.gpu.vectors import load_of, store_of

# More columns of the table of rows: first number and distance in the state, columns, and the strides of x.
STATE, APART, COLUMNS, DOWN, RIGHT = range(3, 8)
assert (FIRST, OUTER_ROW, INNER_ROW) == (0, 1, 2)
BAND = 16  # rows of a block
LEVELS = 40  # of a tree of tiles


class Rows(NamedTuple):
    """What launches know of rows: the ``table``, each row's two ``numbers``, and each matrix's ``shares``."""

    table: Any
    numbers: Any
    shares: Any


def none(group: Group) -> Rows:
    """Those of Muon, which does not read them."""
    return Rows(uploaded(group.machine, np.zeros((1, 8))), group.zeros(2, 1), group.zeros(1))


def launches(
    group: Group, matrices: Sequence[Matrix], compute: str, places: Any, factor: str | None
) -> tuple[Rows, Iterator[Callable[[Any], None]]]:
    """The arrays, and both launches."""
    machine, (_, found_at) = group.machine, group.gate
    firsts = np.cumsum([0, *(m.rows for m in matrices)]).tolist()
    table = [_row(m, first) for m, first in zip(matrices, firsts, strict=False)]
    bands = [(i, at, min(at + BAND, m.rows)) for i, m in enumerate(matrices) for at in range(0, m.rows, BAND)]
    rows = Rows(uploaded(machine, table), group.zeros(2, max(1, firsts[-1])), group.zeros(max(1, len(matrices))))
    host = tables.build([m.rows for m in matrices], [False] * len(matrices), group.chunk_tiles)
    chunks, nodes = uploaded(machine, host.chunks), uploaded(machine, host.nodes)
    counters, sums = machine.to_device(np.zeros(len(host.nodes), np.uint32)), group.zeros(2, max(1, host.slots))

    def made() -> Iterator[Callable[[Any], None]]:
        args = group.addresses, places, rows.table, uploaded(machine, bands), group.hypers.values, rows.numbers
        averaging = averages_kernel(group.real, compute, factor)
        yield machine.prepare(averaging, len(bands), NORM_BOUNDS[0], (*args, found_at))
        closing = rows.table, chunks, nodes, counters, sums, rows.numbers, rows.shares
        yield machine.prepare(shares_kernel(group.real), len(host.chunks), NORM_BOUNDS[0], closing)

    return rows, made()


def _row(m: Matrix, first: int) -> tuple[int, ...]:
    apart = padded(m.inner)
    strides = (apart, 1) if m.by_rows else (1, apart)
    return first, int(m.by_rows), int(not m.by_rows), m.first, m.apart, m.columns, *strides


@factory
def averages_kernel(real: Any, compute: str, factor: str | None) -> Kernel:
    """The first launch, a block for each band of rows."""
    wide, x_size, zero, one = np.dtype(real).name, SIZES[compute], real(0), real(1)
    load8_x, load_x, load_w, store_w, w_size = access(compute, real).load, *map(load_of, (compute, wide)), store_of(
        wide), SIZES[wide]
    found, _ = gate(real, factor)

    @device_function
    def add_row(at, i, stop, whole, k, s):
        """Add the squares of eight elements of a row of x to the thread's lanes."""
        x_at, right = at
        x = cuda.local.array((1, 8), real)
        if whole:
            load8_x(x_at, i, stop, WHOLE, x, 0)
        else:
            for e in range(8):
                n = i + OFFSETS[e]
                x[0, e] = real(load_x(x_at + x_size * right * n)) if n < stop else zero
        for e in range(8):
            s[0, e] = s[0, e] + x[0, e] * x[0, e]

    tile = tile_sums(add_row, 1, real)

    @device_function
    def sum_of_row(at, columns):
        """By a warp. ``levels`` has the sums of 1, 2, 4, ... tiles that wait for their neighbours."""
        levels, count = cuda.local.array(LEVELS, real), 0
        for first in range(0, columns, TILE):
            x, level, before = tile(at, first, columns, at[1] == 1, zero), 0, count
            while before & 1:
                x, level, before = levels[level] + x, level + 1, before >> 1
            levels[level] = x
            count += 1
        x, level = zero, 0
        while count:
            if count & 1:
                x = levels[level] + x
            level, count = level + 1, count >> 1
        return x

    @kernel(NORM_BOUNDS)
    def merged_normuon_averages(addresses, places, rows, bands, hyper, numbers, found_at):
        b, warp = cuda.blockIdx.x, cuda.threadIdx.x // 32
        if not found(found_at):
            matrix = bands[b, 0]
            tensor, columns, first = places[matrix, OF_TENSOR], rows[matrix, COLUMNS], rows[matrix, FIRST]
            w_at, beta2 = addresses[BY_ROW, tensor] + w_size * rows[matrix, STATE], hyper[BETA2, tensor]
            for row in range(bands[b, 1] + warp, bands[b, 2], cuda.blockDim.x // 32):
                at = places[matrix, LAST_X] + x_size * row * rows[matrix, DOWN], rows[matrix, RIGHT]
                n = sum_of_row(at, columns)
                if cuda.threadIdx.x % 32 == 0:
                    own = w_at + w_size * row * rows[matrix, APART]
                    w = beta2 * load_w(own) + (one - beta2) * (n / real(columns))
                    store_w(own, w)
                    numbers[SQUARES, first + row] = n
                    numbers[DIVISORS, first + row] = sqrt(w) + hyper[ROW_EPSILON, tensor]

    return merged_normuon_averages


@factory
def shares_kernel(real: Any) -> Kernel:
    """The second launch, a block for each chunk of rows: the root of the squares before over that of those after."""
    zero = real(0)

    @device_function
    def add_row(at, i, stop, whole, k, s):
        numbers, first = at
        for e in range(8):
            n = i + OFFSETS[e]
            if n < stop:
                x, d = numbers[SQUARES, first + n], numbers[DIVISORS, first + n]
                if x != zero:
                    s[0, e] = s[0, e] + x
                    s[1, e] = s[1, e] + x / d / d

    sums_of = chunk_sums(tile_sums(add_row, 2, real), real)

    @kernel(NORM_BOUNDS)
    def merged_normuon_shares(rows, chunks, nodes, counters, sums, numbers, shares):
        c = cuda.blockIdx.x
        matrix = chunks[c, TENSOR]
        closes, squares = sums_of(c, (numbers, rows[matrix, FIRST]), chunks, nodes, counters, sums, zero)
        if closes and cuda.threadIdx.x == 0:
            shares[matrix] = sqrt(squares[0]) / sqrt(squares[1])

    return merged_normuon_shares
