"""Kernels that are right on a GPU of compute capability 7.0 or later, and look as if they were not."""

import numpy as np
from numba import cuda

from benchmarks.defects.case import case, floats, ints

FULL = 0xFFFFFFFF


@case("a return before a barrier", [floats(20), np.zeros(1, np.float32)], [190], block=32, right=True)
def return_before_a_barrier(x, total):
    tile = cuda.shared.array(32, np.float32)
    t = cuda.threadIdx.x
    if t >= x.size:
        return
    tile[t] = x[t]
    cuda.syncthreads()
    if t == 0:
        for k in range(x.size):
            total[0] += tile[k]


@case("one value from all threads", [ints(1)], [7], block=64, right=True)
def one_value_from_all(y):
    y[0] = 7


@case("the last block, with a fence", [ints(8), ints(1), ints(1)], [36], block=32, grid=8, right=True)
def last_block_with_a_fence(parts, count, total):
    if cuda.threadIdx.x == 0:
        parts[cuda.blockIdx.x] = cuda.blockIdx.x + 1
        cuda.threadfence()
        if cuda.atomic.add(count, 0, 1) == cuda.gridDim.x - 1:
            cuda.threadfence()
            for k in range(cuda.gridDim.x):
                total[0] += parts[k]


@case("a lock", [ints(1), ints(1)], [8], block=1, grid=8, right=True)
def lock(held, total):
    while cuda.atomic.cas(held, 0, 0, 1) != 0:
        pass
    cuda.threadfence()
    total[0] += 1
    cuda.threadfence()
    cuda.atomic.exch(held, 0, 0)


@case("a flag, with fences", [ints(1), ints(1), ints(1)], [7], block=32, grid=2, right=True)
def flag_with_fences(message, flag, y):
    if cuda.threadIdx.x == 0:
        if cuda.blockIdx.x == 0:
            message[0] = 7
            cuda.threadfence()
            cuda.atomic.exch(flag, 0, 1)
        else:
            while cuda.atomic.add(flag, 0, 0) == 0:
                pass
            cuda.threadfence()
            y[0] = message[0]


@case("two calls of `syncthreads`, one for each warp", [ints(64)], np.arange(64)[::-1], block=64, right=True)
def barrier_of_each_warp(y):
    tile = cuda.shared.array(64, np.int32)
    t = cuda.threadIdx.x
    tile[t] = t
    if t < 32:
        cuda.syncthreads()
    else:
        cuda.syncthreads()
    y[t] = tile[63 - t]


@case("a sum in a warp, with `syncwarp`", [floats(32), np.zeros(1, np.float32)], [496], block=32, right=True)
def sum_with_syncwarp(x, total):
    tile = cuda.shared.array(32, np.float32)
    t = cuda.threadIdx.x
    tile[t] = x[t]
    cuda.syncwarp()
    step = 16
    while step:
        if t < step:
            tile[t] += tile[t + step]
        cuda.syncwarp()
        step //= 2
    if t == 0:
        total[0] = tile[0]


@case("values of a shuffle that nobody needs", [floats(32), np.zeros(1, np.float32)], [28], block=32, right=True)
def sum_of_eight_lanes(x, total):
    t = cuda.threadIdx.x
    if t < 8:
        value = x[t]
        for delta in (4, 2, 1):
            value += cuda.shfl_down_sync(0xFF, value, delta)
        if t == 0:
            total[0] = value


@case("a barrier of the grid", [ints(64), ints(64)], np.arange(64)[::-1], block=32, grid=2, right=True)
def barrier_of_the_grid(x, y):
    grid = cuda.cg.this_grid()
    i = cuda.grid(1)
    x[i] = i
    grid.sync()
    y[i] = x[63 - i]


@case("two shared arrays of one line", [ints(32)], [7] * 32, block=32, right=True)
def shared_arrays_of_one_line(y):
    ones, sixes = cuda.shared.array(32, np.int32), cuda.shared.array(32, np.int32)
    t = cuda.threadIdx.x
    ones[t] = 1
    sixes[t] = 6
    cuda.syncthreads()
    y[t] = ones[31 - t] + sixes[31 - t]


@case("neighbouring bytes", [np.zeros(64, np.uint8)], np.arange(64), block=64, right=True)
def neighbouring_bytes(y):
    y[cuda.threadIdx.x] = cuda.threadIdx.x


@case("an index that counts from the end", [floats(64)], [0, 1, 2], block=64, right=True)
def index_from_the_end(x):
    if cuda.threadIdx.x < 3:
        x[-1 - cuda.threadIdx.x] = x[cuda.threadIdx.x]


@case("sums of bytes, in 64 bits", [np.full(64, 200, np.uint8), ints(64)], [200] * 64, block=64, right=True)
def mean_of_bytes(x, y):
    t = cuda.threadIdx.x
    y[t] = (x[t] + x[63 - t]) // 2
