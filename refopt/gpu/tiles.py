"""The tile tree of ``refopt.cpu.reduce``, as a warp and a block compute it (numerics, N6).

A warp takes a tile. Each of its threads has eight of the 256 lanes, adds a row at a time to them, and joins them
neighbours first: eight in the thread, then by shuffles. Tile sums go to memory, and `climb` joins them: the
last block to finish under a node of the tree adds the sums of the node's children, so every sum is computed once, by
whichever block is last, always in the same order.
"""

from functools import lru_cache
from types import SimpleNamespace

import numpy as np

from refopt.cpu.reduce import LANES, TILE
from refopt.gpu.target import cuda, device_function, fence
from refopt.gpu.unroll import gather
from refopt.gpu.vectors import ROW

ROWS = TILE // LANES
FANOUT = 1024
WHOLE_WARP = 0xFFFFFFFF

# Columns of the node table: the slot of the first child's sum, the number of children, the slot of the node's own sum,
# the number of arrivals that it waits for, and its parent or -1.
FIRST_CHILD, CHILDREN, OWN_SUM, ARRIVALS, PARENT = range(5)

assert ROW == LANES, "a thread's eight elements of a row are its eight lanes"


# Add the square of its element to each of eight lanes; and scale eight elements.
add_squares = gather("add_squares", "sums[{k}] + x[{k}] * x[{k}]", "sums, x", 8)
scale8 = gather("scale8", "factor * x[{k}]", "factor, x", 8)


@device_function
def swap_join(odd, x, y, distance):
    """One level of two trees in one shuffle: even threads continue with x, odd ones with y."""
    mine, theirs = (y, x) if odd else (x, y)
    return mine + cuda.shfl_xor_sync(WHOLE_WARP, theirs, distance)


@device_function
def lane_tree(s):
    """The sum of 256 lanes. Thread t has lanes 4t to 4t + 3, and the four that are 128 further.

    It takes 6 shuffles, not 10: from the first level on, even threads compute the tree of lanes 0 to 127 and
    odd threads that of the others.
    """
    odd = cuda.threadIdx.x & 1
    x = swap_join(odd, (s[0] + s[1]) + (s[2] + s[3]), (s[4] + s[5]) + (s[6] + s[7]), 1)
    x = x + cuda.shfl_xor_sync(WHOLE_WARP, x, 2)
    x = x + cuda.shfl_xor_sync(WHOLE_WARP, x, 4)
    x = x + cuda.shfl_xor_sync(WHOLE_WARP, x, 8)
    x = x + cuda.shfl_xor_sync(WHOLE_WARP, x, 16)
    return x + cuda.shfl_xor_sync(WHOLE_WARP, x, 1)


@device_function
def lane_tree_2(s, t):
    """``lane_tree`` of s on even threads and of t on odd ones, in 7 shuffles for both."""
    odd, second = cuda.threadIdx.x & 1, cuda.threadIdx.x & 2
    x = swap_join(odd, (s[0] + s[1]) + (s[2] + s[3]), (t[0] + t[1]) + (t[2] + t[3]), 1)
    y = swap_join(odd, (s[4] + s[5]) + (s[6] + s[7]), (t[4] + t[5]) + (t[6] + t[7]), 1)
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
