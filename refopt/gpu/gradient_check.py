"""The pass over the gradients before a step: ``refopt.cpu.gradient_check``, read-only, without waiting on the host.

A block takes a chunk of a tensor, a warp a tile of 1024 elements, and a thread eight elements of each of its four rows
(`refopt.gpu.rows`); they sum squares as the norms of LARS do (`refopt.gpu.tiles`). If the sum of a tile is finite, so
are its elements; if not, the warp checks them one by one, since squares overflow before their elements do. A last,
small launch of one block joins the sums of the tensors and writes the factor and the flag that the steps read.
"""

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from refopt.checks import Array
from refopt.checks.dtypes import ACCESSES
from refopt.gpu import tables, vectors
from refopt.gpu.address_table import AddressTable
from refopt.gpu.instructions import sqrt
from refopt.gpu.kernels import Kernel, factory, kernel
from refopt.gpu.rows import PARTIAL, ROW, access, own
from refopt.gpu.runtime import Device
from refopt.gpu.tables import FANOUT, TENSOR
from refopt.gpu.target import cuda, device_function
from refopt.gpu.tiles import WHOLE_WARP, chunk_sums, joiner, rows_of, tile_sums

# The fastest of 8 bounds and 3 chunk sizes on an H200. Chunks of any dtype are as large as those of 4-byte elements.
BOUNDS, CHUNK_ITEM = (128, 8), 4
# Indices in the block of numbers, which `factor_of` takes.
MAX_NORM, EPSILON = range(2)
# Columns of the table of tensors whose tile sums are joined: the first tile sum, how many, where joined sums go, and
# where the tensor's sum goes.
FIRST, COUNT, FREE, PLACE = range(4)


@factory
def checker(dtype: str, real: Any) -> Kernel:
    """The kernel for gradients of a dtype: the sum of squares of each tensor, and whether all elements are finite."""
    zero, load = real(0), access(dtype, real).load

    @device_function
    def add_row(g, i, stop, whole, odd_ones, s):
        x = cuda.local.array((1, 8), real)
        load(g, i, stop, whole, x, 0)
        for e in range(8):
            s[0, e] = s[0, e] + x[0, e] * x[0, e]

    squares_of = tile_sums(add_row, 1, real)

    @device_function
    def tile_of(g, first, stop, aligned, odd_ones):
        squares = squares_of(g, first, stop, aligned, odd_ones)
        if squares - squares != zero:
            x, odd = cuda.local.array((1, 8), real), zero
            for row in range(rows_of(first, stop)):
                load(g, own(first + ROW * row), stop, PARTIAL, x, 0)
                for e in range(8):
                    odd += x[0, e] - x[0, e]  # 0 if it is finite, else NaN
            if cuda.any_sync(WHOLE_WARP, odd != zero) and cuda.threadIdx.x % 32 == 0:
                cuda.atomic.max(odd_ones, 0, 1)
        return squares

    sums_of = chunk_sums(tile_of, real, (0, 1))

    @kernel(BOUNDS)
    def check_gradients(addresses, positions, chunks, nodes, counters, sums, roots, odd_ones):
        c = cuda.blockIdx.x
        tensor = chunks[c, TENSOR]
        closes, squares = sums_of(c, addresses[tensor], chunks, nodes, counters, sums, odd_ones)
        if closes and cuda.threadIdx.x == 0:
            roots[0, positions[tensor]] = squares[0]

    return check_gradients


@functools.cache
def tree(real: Any) -> Callable:
    """The tree over any number of sums, computed by one block."""
    join = joiner(real).join

    @device_function
    def tree_of(roots, first, count, free):
        """Join ``count`` sums, from ``first`` on; joined sums go to ``free`` on. Returns the place of the last one."""
        while count > 1:
            parents = (count + FANOUT - 1) // FANOUT
            for parent in range(parents):
                x = join(roots, first + parent * FANOUT, min(count - parent * FANOUT, FANOUT))
                if cuda.threadIdx.x == 0:
                    roots[0, free + parent] = x
                cuda.syncthreads()
            first, count, free = free, parents, free + parents
        return first

    return tree_of


@factory
def finisher(real: Any) -> Kernel:
    """The kernel that joins the sums of the tensors and writes what the steps need, in one block."""
    tree_of, one, load_scale = tree(real), real(1), vectors.load_float32

    @device_function
    def factor_of(norm, inverse, max_norm, epsilon):
        clip = max_norm / (norm + epsilon)
        if clip < one:
            return inverse * clip
        return inverse

    @kernel()
    def finish_check(roots, count, odd_ones, numbers, scale_at, grad_factor, found_inf, grad_norm):
        root = tree_of(roots, 0, count, count)
        if cuda.threadIdx.x == 0:
            inverse = one / real(load_scale(scale_at))
            norm = sqrt(roots[0, root]) * inverse
            grad_norm[0] = norm
            grad_factor[0] = factor_of(norm, inverse, numbers[MAX_NORM], numbers[EPSILON])
            found_inf[0] = odd_ones[0] != 0  # several ranks may have summed their flags
            odd_ones[0] = 0

    return finish_check


class Pass:
    """The launch over the gradients of one dtype. Each sum of squares goes to its place in ``roots[0]``."""

    def __init__(
        self, machine: Device, dtype: str, pairs: list[tuple[int, Array]], real: Any, roots: Any, odd_ones: Any
    ) -> None:
        places, arrays = zip(*pairs, strict=True)
        self._places = np.array(places, np.int64)
        addresses = np.array([array.address for array in arrays], np.int64)
        self.table = AddressTable(machine, addresses, np.full(len(arrays), ACCESSES[dtype], np.int64))
        host = tables.build([array.size for array in arrays], self.table.aligned, tables.tiles_per_chunk(CHUNK_ITEM))
        args = (
            self.table.array,
            machine.to_device(self._places),
            *(machine.to_device(table) for table in (host.chunks, host.nodes)),
            machine.to_device(np.zeros(len(host.nodes), np.uint32)),
            machine.to_device(np.zeros((2, host.slots), real)),
            roots,
            odd_ones,
        )
        self.launch = machine.prepare(checker(dtype, real), len(host.chunks), BOUNDS[0], args)

    def rows_of(self, addresses: np.ndarray) -> dict[int, np.ndarray]:
        """By row of the table, its addresses, picked from those of all gradients."""
        return {0: addresses[self._places]}

    def __call__(self, stream: Any) -> None:
        """Launch."""
        self.launch(stream)


def first_pass(
    machine: Device, arrays: Mapping[int, Array | None], real: Any, roots: Any, odd_ones: Any
) -> list[Pass]:
    """The launches over the gradients, one for each dtype; each sum goes to its place in ``roots[0]``."""
    members: dict[str, list[tuple[int, Array]]] = {}
    for place, array in arrays.items():
        if array and array.size:
            members.setdefault(array.dtype, []).append((place, array))
    return [Pass(machine, dtype, pairs, real, roots, odd_ones) for dtype, pairs in members.items()]


@factory
def tile_joiner(real: Any) -> Kernel:
    """The kernel that joins the tile sums of tensors, a block for each tensor."""
    tree_of = tree(real)

    @kernel()
    def join_tiles(roots, tensors, sums):
        b = cuda.blockIdx.x
        root = tree_of(roots, tensors[b, FIRST], tensors[b, COUNT], tensors[b, FREE])
        if cuda.threadIdx.x == 0:
            sums[tensors[b, PLACE]] = roots[0, root]

    return join_tiles


def tile_joins(
    machine: Device, counts: Sequence[int], positions: Sequence[int], real: Any, sums: Any
) -> tuple[Any, Any]:
    """Room for the tile sums of some tensors, and the launch that joins them and writes the tensors' to ``sums``."""
    rows, first, free = [], 0, sum(counts)
    for count, place in zip(counts, positions, strict=True):
        rows.append((first, count, free, place))
        first += count
        while count > 1:
            count = -(-count // FANOUT)
            free += count
    roots = machine.to_device(np.zeros((2, free), real))
    table = machine.to_device(np.array(rows, np.int64))
    return roots, machine.prepare(tile_joiner(real), len(rows), BOUNDS[0], (roots, table, sums))
