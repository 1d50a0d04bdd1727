"""The tile tree of ``refopt.cpu.reduce``, as a warp and a block compute it (numerics, N6).

A warp takes a tile. Its threads carry the 256 lanes, eight each, add a row at a time to them, and join them
neighbours first: eight in the thread, then by shuffles. Tile sums go to memory, and `climb` joins them: the
last block to finish under a node of the tree adds what lies under it, so every sum is formed once, by
whichever block comes last, always in the same order.
"""

from functools import lru_cache
from types import SimpleNamespace

import numpy as np

from refopt.cpu.reduce import LANES, TILE
from refopt.gpu.target import cuda, device_function
from refopt.gpu.vectors import ROW

ROWS = TILE // LANES
FANOUT = 1024
WHOLE_WARP = 0xFFFFFFFF

# Columns of the node table: first child's slot, children, own slot, arrivals to wait for, parent or -1.
FIRST, COUNT, OUT, ARRIVALS, PARENT = range(5)

assert ROW == LANES, "a thread's eight elements of a row are its eight lanes"


@device_function
def add_squares(sums, x):
    """Eight lanes, each with the square of its element added."""
    return (
        sums[0] + x[0] * x[0],
        sums[1] + x[1] * x[1],
        sums[2] + x[2] * x[2],
        sums[3] + x[3] * x[3],
        sums[4] + x[4] * x[4],
        sums[5] + x[5] * x[5],
        sums[6] + x[6] * x[6],
        sums[7] + x[7] * x[7],
    )


@device_function
def scale8(factor, x):
    """Eight products."""
    return (
        factor * x[0],
        factor * x[1],
        factor * x[2],
        factor * x[3],
        factor * x[4],
        factor * x[5],
        factor * x[6],
        factor * x[7],
    )


@device_function
def warp_tree(x):
    """The sum over a warp, neighbouring threads first; every thread gets it."""
    x = x + cuda.shfl_xor_sync(WHOLE_WARP, x, 1)
    x = x + cuda.shfl_xor_sync(WHOLE_WARP, x, 2)
    x = x + cuda.shfl_xor_sync(WHOLE_WARP, x, 4)
    x = x + cuda.shfl_xor_sync(WHOLE_WARP, x, 8)
    return x + cuda.shfl_xor_sync(WHOLE_WARP, x, 16)


@device_function
def lane_tree(s):
    """The sum of 256 lanes where thread t holds lanes 4t.. and 128+4t.., four of each."""
    return warp_tree((s[0] + s[1]) + (s[2] + s[3])) + warp_tree((s[4] + s[5]) + (s[6] + s[7]))


@device_function
def rows_of(first, stop):
    """How many rows of the tile at ``first`` hold elements before ``stop``."""
    return min((stop - first + ROW - 1) // ROW, ROWS)


@lru_cache
def joiner(real: type) -> SimpleNamespace:
    """The joining of tile sums in an arithmetic type: ``join`` within a block, ``climb`` across blocks."""
    zero = real(0)

    @device_function
    def join(sums, row, first, count):
        """The tree over up to 1024 sums: each warp joins 32 at a time, then every warp what came of it."""
        joined = cuda.shared.array(32, real)
        warp, lane = cuda.threadIdx.x // 32, cuda.threadIdx.x % 32
        for group in range(warp, (count + 31) // 32, cuda.blockDim.x // 32):
            i = group * 32 + lane
            x = warp_tree(sums[row, first + i] if i < count else zero)
            if lane == 0:
                joined[group] = x
        cuda.syncthreads()
        x = warp_tree(joined[lane] if lane * 32 < count else zero)
        cuda.syncthreads()
        return x

    @device_function
    def is_last(node, nodes, counters):
        """Whether this block is the last under the node; if so, it sees what the others have written."""
        last = cuda.shared.array(1, np.int32)
        cuda.syncthreads()
        if cuda.threadIdx.x == 0:
            cuda.threadfence()
            last[0] = cuda.atomic.add(counters, node, 1) == nodes[node, ARRIVALS] - 1
            if last[0]:
                counters[node] = 0
                cuda.threadfence()
        cuda.syncthreads()
        return last[0] != 0

    @device_function
    def climb(node, nodes, counters, sums):
        """Join every row of sums upwards from a node. The block that forms the tensor's sums gets the slot
        they are in (only its thread 0 may read them), the others -1."""
        slot = -1
        while node >= 0:
            if nodes[node, ARRIVALS] == 1:
                cuda.syncthreads()
            elif not is_last(node, nodes, counters):
                return -1
            slot = nodes[node, OUT]
            for row in range(sums.shape[0]):
                x = join(sums, row, nodes[node, FIRST], nodes[node, COUNT])
                if cuda.threadIdx.x == 0:
                    sums[row, slot] = x
            node = nodes[node, PARENT]
        return slot

    return SimpleNamespace(join=join, climb=climb)
