"""The tile tree of ``refopt.cpu.reduce``, as a warp and a block compute it (numerics, N6).

A warp takes a tile (`tile_sums`). Each of its threads has eight of the 256 lanes, adds a row at a time to them, and
joins them neighbours first: eight in the thread, then by shuffles. Tile sums go to memory, and `climb` joins them: the
last block to finish under a node of the tree adds the sums of the node's children, so every sum is computed once, by
whichever block is last, always in the same order. `chunk_sums` is all of this for a block.
"""

from collections.abc import Callable
from functools import lru_cache
from types import SimpleNamespace
from typing import Any

import numpy as np

from refopt.cpu.reduce import LANES, TILE
from refopt.gpu.instructions import fence
from refopt.gpu.rows import PARTIAL, ROW, WHOLE, of_warp, own
from refopt.gpu.tables import (
    ALIGNED,
    ARRIVALS,
    CHILDREN,
    FIRST_CHILD,
    NODE,
    OWN_SUM,
    PARENT,
    SLOT,
    START,
    STOP,
)
from refopt.gpu.target import cuda, device_function

ROWS = TILE // LANES
WHOLE_WARP = 0xFFFFFFFF

assert ROW == LANES, "a thread's eight elements of a row are its eight lanes"


@device_function
def swap_join(odd, x, y, distance):
    """One level of two trees in one shuffle: even threads continue with x, odd ones with y."""
    mine, theirs = (y, x) if odd else (x, y)
    return mine + cuda.shfl_xor_sync(WHOLE_WARP, theirs, distance)


@device_function
def lane_tree(s, a):
    """The sum of 256 lanes. Thread t has lanes 4t to 4t + 3, and the four that are 128 further, in s[a, 0:8].

    It takes 6 shuffles, not 10: from the first level on, even threads compute the tree of lanes 0 to 127 and
    odd threads that of the others.
    """
    odd = cuda.threadIdx.x & 1
    x = swap_join(odd, (s[a, 0] + s[a, 1]) + (s[a, 2] + s[a, 3]), (s[a, 4] + s[a, 5]) + (s[a, 6] + s[a, 7]), 1)
    x = x + cuda.shfl_xor_sync(WHOLE_WARP, x, 2)
    x = x + cuda.shfl_xor_sync(WHOLE_WARP, x, 4)
    x = x + cuda.shfl_xor_sync(WHOLE_WARP, x, 8)
    x = x + cuda.shfl_xor_sync(WHOLE_WARP, x, 16)
    return x + cuda.shfl_xor_sync(WHOLE_WARP, x, 1)


@device_function
def lane_tree_2(s):
    """``lane_tree`` of s[0] on even threads and of s[1] on odd ones, in 7 shuffles for both."""
    odd, second = cuda.threadIdx.x & 1, cuda.threadIdx.x & 2
    x = swap_join(odd, (s[0, 0] + s[0, 1]) + (s[0, 2] + s[0, 3]), (s[1, 0] + s[1, 1]) + (s[1, 2] + s[1, 3]), 1)
    y = swap_join(odd, (s[0, 4] + s[0, 5]) + (s[0, 6] + s[0, 7]), (s[1, 4] + s[1, 5]) + (s[1, 6] + s[1, 7]), 1)
    x = swap_join(second, x, y, 2)
    x = x + cuda.shfl_xor_sync(WHOLE_WARP, x, 4)
    x = x + cuda.shfl_xor_sync(WHOLE_WARP, x, 8)
    x = x + cuda.shfl_xor_sync(WHOLE_WARP, x, 16)
    return x + cuda.shfl_xor_sync(WHOLE_WARP, x, 2)


@device_function
def warp_tree_2(x, y):
    """The sum over a warp, neighbouring threads first: of x on even threads, of y on odd ones."""
    x = swap_join(cuda.threadIdx.x & 1, x, y, 1)
    x = x + cuda.shfl_xor_sync(WHOLE_WARP, x, 2)
    x = x + cuda.shfl_xor_sync(WHOLE_WARP, x, 4)
    x = x + cuda.shfl_xor_sync(WHOLE_WARP, x, 8)
    return x + cuda.shfl_xor_sync(WHOLE_WARP, x, 16)


@device_function
def rows_of(first, stop):
    """How many rows of the tile at ``first`` hold elements before ``stop``."""
    return min((stop - first + ROW - 1) // ROW, ROWS)


def tile_sums(add_row: Callable, norms: int, real: Any, stores: bool = False) -> Callable:
    """``tile_of(at, first, stop, aligned, k)``: a warp's sums of squares over a tile, of one or two values per element.

    ``add_row(at, i, stop, whole, k, s)`` adds the squares of a thread's eight elements of a row, from i on, to its
    lanes s[n, 0:8] of each norm n. ``at`` and ``k`` are passed on to it. Unless it also ``stores``, for which loads of
    the next row would have to wait, the loads of all rows of a tile can be in flight at a time.

    Every thread of the warp has a single sum; of two, even threads have the first and odd ones the second.
    """
    zero = real(0)

    @device_function
    def tile_of(at, first, stop, aligned, k):
        s = cuda.local.array((norms, 8), real)
        for n in range(norms):
            for e in range(8):
                s[n, e] = zero
        i = own(first)
        if aligned and first + TILE <= stop:
            if stores:
                for row in range(ROWS):
                    add_row(at, i + ROW * row, stop, WHOLE, k, s)
            else:  # the compiler would not unroll a loop of this size
                add_row(at, i, stop, WHOLE, k, s)
                add_row(at, i + ROW, stop, WHOLE, k, s)
                add_row(at, i + 2 * ROW, stop, WHOLE, k, s)
                add_row(at, i + 3 * ROW, stop, WHOLE, k, s)
        elif stores:
            for row in range(rows_of(first, stop)):
                add_row(at, i + ROW * row, stop, PARTIAL, k, s)
        else:  # two rows at a time, so that their loads are in flight together; a row beyond the end adds zeros
            for row in range(0, rows_of(first, stop), 2):
                add_row(at, i + ROW * row, stop, PARTIAL, k, s)
                add_row(at, i + ROW * row + ROW, stop, PARTIAL, k, s)
        if norms == 2:
            return lane_tree_2(s)
        return lane_tree(s, 0)

    return tile_of


@lru_cache
def joiner(real: type) -> SimpleNamespace:
    """Functions that join tile sums, two rows at a time: ``join`` within a block, ``climb`` across blocks.

    Both return the sum of the first row on even threads, of the second on odd ones.
    """
    zero = real(0)

    @device_function
    def join_sums(sums, first, count):
        """The tree over at most 1024 sums: each warp joins 32 at a time, then every warp joins the results."""
        joined = cuda.shared.array((2, 32), real)
        warp, lane = cuda.threadIdx.x // 32, cuda.threadIdx.x % 32
        for group in range(warp, (count + 31) // 32, cuda.blockDim.x // 32):
            i = group * 32 + lane
            here = i < count
            x = warp_tree_2(sums[0, first + i] if here else zero, sums[1, first + i] if here else zero)
            if lane < 2:
                joined[lane, group] = x
        cuda.syncthreads()
        here = lane * 32 < count
        x = warp_tree_2(joined[0, lane] if here else zero, joined[1, lane] if here else zero)
        cuda.syncthreads()
        return x

    @device_function
    def is_last(node, arrivals, counters):
        """Whether this block is the last under the node; if so, it sees the sums that the others have written."""
        last = cuda.shared.array(1, np.int32)
        cuda.syncthreads()
        if arrivals == 1:
            return True
        if cuda.threadIdx.x == 0:
            fence()
            # The last arrival resets the counter to 0 for the next step.
            last[0] = cuda.atomic.inc(counters, node, arrivals - 1) == arrivals - 1
            fence()
        cuda.syncthreads()
        return last[0] != 0

    @device_function
    def climb(node, arrivals, nodes, counters, sums):
        """Join upwards from a node that waits for ``arrivals`` arrivals.

        Returns whether this block has computed the sums of the tensor, and if so the sums.
        """
        x = zero
        while node >= 0:
            if not is_last(node, arrivals, counters):
                return False, zero
            x = join_sums(sums, nodes[node, FIRST_CHILD], nodes[node, CHILDREN])
            if cuda.threadIdx.x < 2:
                sums[cuda.threadIdx.x, nodes[node, OWN_SUM]] = x
            node = nodes[node, PARENT]
            if node >= 0:
                arrivals = nodes[node, ARRIVALS]
        return True, x

    return SimpleNamespace(join=join_sums, climb=climb)


def chunk_sums(tile: Callable, real: Any, rows: tuple[int, int] = (0, 2)) -> Callable:
    """``sums_of(c, at, chunks, nodes, counters, sums, k)``: a chunk's sums of squares and, in the tensor's last block,
    the tensor's.

    ``tile(at, first, stop, aligned, k)`` sums a tile, as `tile_sums` makes it. The lane of number n writes row n of
    ``sums``, for n from ``rows[0]`` to ``rows[1] - 1``. It returns whether this block is the last of the tensor and, if
    so, on even threads the tensor's sums of both rows.
    """
    climb, zero = joiner(real).climb, real(0)
    first_row, stop_row = rows

    @device_function
    def sums_of(c, at, chunks, nodes, counters, sums, k):
        start, stop, slot, node = chunks[c, START], chunks[c, STOP], chunks[c, SLOT], chunks[c, NODE]
        # How many chunks the node counts. Loaded early, since the last block to finish would have to wait for it.
        arrivals = nodes[node, ARRIVALS]
        lane = cuda.threadIdx.x % 32
        for first in of_warp(start, stop, TILE):
            x = tile(at, first, stop, chunks[c, ALIGNED], k)
            if first_row <= lane < stop_row:
                sums[lane, slot + (first - start) // TILE] = x
        # The last block to finish under a node of the tree joins its sums, so none waits for another.
        closes, x = climb(node, arrivals, nodes, counters, sums)
        if closes:
            return True, (x, cuda.shfl_xor_sync(WHOLE_WARP, x, 1))
        return False, (zero, zero)

    return sums_of
