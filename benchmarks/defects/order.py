"""Accesses that nothing orders: races within a warp, between warps, blocks and streams, and with the host."""

import numpy as np
from numba import cuda

from benchmarks.defects.case import case, floats, ints, jit, script

FULL = 0xFFFFFFFF


@case("race within a warp: no `syncwarp`", [ints(32)], np.arange(32)[::-1], block=32)
def no_syncwarp(y):
    tile = cuda.shared.array(32, np.int32)
    t = cuda.threadIdx.x
    tile[t] = t
    y[t] = tile[31 - t]


@case("race within a warp: a vote in place of `syncwarp`", [ints(32)], np.arange(32)[::-1], block=32)
def vote_for_syncwarp(y):
    tile = cuda.shared.array(32, np.int32)
    t = cuda.threadIdx.x
    tile[t] = t
    cuda.any_sync(FULL, True)
    y[t] = tile[31 - t]


@case("race between warps: no `syncthreads`", [ints(256)], np.arange(256)[::-1], block=256)
def no_syncthreads(y):
    tile = cuda.shared.array(256, np.int32)
    t = cuda.threadIdx.x
    tile[t] = t
    y[t] = tile[255 - t]


@case("race between warps: one of two barriers in a loop", [ints(256)], np.arange(256)[::-1] + 3, block=256)
def one_barrier_in_a_loop(y):
    tile = cuda.shared.array(256, np.int32)
    t = cuda.threadIdx.x
    for k in range(4):
        tile[t] = t + k
        cuda.syncthreads()
        y[t] = tile[255 - t]


@case("race in global memory: a histogram without atomics", [np.arange(256) % 4, ints(4)], [64] * 4, block=256)
def histogram_without_atomics(x, counts):
    counts[x[cuda.threadIdx.x]] += 1


@case("race between blocks: elements of another block", [floats(256)], (np.arange(256) + 64) % 256, block=64, grid=4)
def elements_of_another_block(x):
    i = cuda.grid(1)
    x[i] = x[(i + 64) % 256]


@case("race between blocks: the last block, no fence", [ints(8), ints(1), ints(1)], [36], block=32, grid=8)
def last_block_without_a_fence(parts, count, total):
    if cuda.threadIdx.x == 0:
        parts[cuda.blockIdx.x] = cuda.blockIdx.x + 1
        if cuda.atomic.add(count, 0, 1) == cuda.gridDim.x - 1:
            for k in range(cuda.gridDim.x):
                total[0] += parts[k]


@case("race between blocks: a flag, no fence", [ints(1), ints(1), ints(1)], [7], block=32, grid=2)
def flag_without_a_fence(message, flag, y):
    if cuda.threadIdx.x == 0:
        if cuda.blockIdx.x == 0:
            message[0] = 7
            cuda.atomic.exch(flag, 0, 1)
        else:
            while cuda.atomic.add(flag, 0, 0) == 0:
                pass
            y[0] = message[0]


def fill(x):
    i = cuda.grid(1)
    for k in range(100):
        x[i] = k


def copy(x, y):
    i = cuda.grid(1)
    y[i] = x[i]


@script("race between streams: no event", copy)
def streams_without_an_event():
    x, y = (cuda.to_device(ints(1024)) for _ in range(2))
    first, second = cuda.stream(), cuda.stream()
    cuda.synchronize()
    jit(fill)[8, 128, first](x)
    jit(copy)[8, 128, second](x, y)
    cuda.synchronize()
    return y.copy_to_host(), ints(1024, 99)


@script("race with the host: a pinned array read before its stream is done", fill)
def pinned_array_read_too_early():
    x, stream = cuda.to_device(ints(1 << 10)), cuda.stream()
    host = cuda.pinned_array(1 << 10, np.int32)
    cuda.synchronize()
    jit(fill)[8, 128, stream](x)
    x.copy_to_host(host, stream=stream)
    values = host + 0
    cuda.synchronize()
    return values, ints(1 << 10, 99)
