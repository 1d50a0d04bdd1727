"""Warp operations of lanes that do not all take part, and barriers that not all threads reach."""

import numpy as np
from numba import cuda

from benchmarks.defects.case import case, floats, ints

FULL = 0xFFFFFFFF


@case("a shuffle from lanes that have exited", [floats(20), np.zeros(1, np.float32)], [190], block=32)
def shuffle_from_exited_lanes(x, total):
    t = cuda.threadIdx.x
    if t >= x.size:
        return
    value = x[t]
    for delta in (16, 8, 4, 2, 1):
        value += cuda.shfl_down_sync(FULL, value, delta)
    if t == 0:
        total[0] = value


@case("a shuffle from lanes outside the mask", [floats(32), np.zeros(1, np.float32)], [120], block=32)
def shuffle_from_outside_the_mask(x, total):
    t = cuda.threadIdx.x
    value = x[t]
    if t < 16:
        for delta in (16, 8, 4, 2, 1):
            value += cuda.shfl_down_sync(0xFFFF, value, delta)
        if t == 0:
            total[0] = value


@case("a shuffle whose lanes meet from two branches", [ints(32)], np.arange(32) ^ 16, block=32)
def shuffle_of_two_branches(y):
    t = cuda.threadIdx.x
    if t < 16:
        y[t] = cuda.shfl_xor_sync(FULL, t, 16)
    else:
        y[t] = cuda.shfl_xor_sync(FULL, t, 16) + 0 * y[t]


@case("a mask without the lane that calls", [ints(32)], np.arange(32), block=32)
def mask_without_the_caller(y):
    y[cuda.threadIdx.x] = cuda.threadIdx.x
    cuda.syncwarp(0xFFFF)


@case("`syncthreads` that half a warp reaches", [ints(64)], [1] * 64, block=64)
def barrier_in_a_branch(y):
    t = cuda.threadIdx.x
    if t % 32 < 16:
        cuda.syncthreads()
        y[t] = 1
    y[t] += 1 - y[t]


@case("`syncthreads` in a loop of another length in each warp", [ints(64)], np.arange(64) // 32 + 1, block=64)
def barriers_of_another_number(y):
    t = cuda.threadIdx.x
    for _ in range(t // 32 + 1):
        y[t] += 1
        cuda.syncthreads()


@case("two calls of `syncthreads` in one warp", [ints(64)], np.arange(64) % 2, block=64)
def two_barriers_in_one_warp(y):
    t = cuda.threadIdx.x
    if t % 2:
        y[t] = 1
        cuda.syncthreads()
    else:
        y[t] = 0
        cuda.syncthreads()
