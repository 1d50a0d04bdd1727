"""Accesses outside arrays and of memory that nobody has written."""

import numpy as np
from numba import cuda, int32

from benchmarks.defects.case import case, floats, ints, jit, script

TABLE = np.arange(32, dtype=np.int32)


@case("outside global memory: no guard at the end", [floats(100)], floats(100) + 1, block=64, grid=2)
def no_guard(x):
    i = cuda.grid(1)
    x[i] += 1


@case("outside a row of a matrix, within the array", [np.ones((8, 8), np.float32)], np.full((8, 8), 2), block=9)
def outside_a_row(x):
    for row in range(8):
        x[row, cuda.threadIdx.x] = 2


def fill(x):
    x[cuda.grid(1)] = 2


@script("outside the slice that a kernel is passed, within its array", fill)
def outside_a_slice():
    x = cuda.to_device(floats(64))
    jit(fill)[1, 64](x[:60])
    return x.copy_to_host(), [*[2] * 60, *range(60, 64)]


@case("outside dynamic shared memory", [ints(64)], np.arange(64)[::-1], block=64, shared_bytes=4 * 48)
def outside_dynamic_shared_memory(y):
    tile = cuda.shared.array(0, int32)
    t = cuda.threadIdx.x
    tile[t] = t
    cuda.syncthreads()
    y[t] = tile[63 - t]


@case("outside shared memory: into the array behind", [ints(64)], [0] * 32, block=64)
def outside_shared_memory(y):
    tile = cuda.shared.array(32, np.int32)
    zeros = cuda.shared.array(32, np.int32)
    t = cuda.threadIdx.x
    if t < 32:
        zeros[t] = 0
    cuda.syncthreads()
    tile[t] = 5
    cuda.syncthreads()
    if t < 32:
        y[t] = zeros[t] * tile[t]


@case("outside local memory", [np.array([4]), ints(32)], [6] * 32, block=32)
def outside_local_memory(size, y):
    own = cuda.local.array(4, np.int32)
    for k in range(size[0] + 1):
        own[k] = k
    total = 0
    for k in range(size[0]):
        total += own[k]
    y[cuda.threadIdx.x] = total


@case("outside a captured table", [ints(33)], [*range(32), 0], block=33)
def outside_a_captured_table(y):
    y[cuda.threadIdx.x] = TABLE[cuda.threadIdx.x]


@case(
    "a negative index that is not meant", [floats(64), floats(64)], [0, *range(63)], block=64,
    options=("--strict", "negative-index"),
)
def negative_index(x, y):
    y[cuda.threadIdx.x] = x[cuda.threadIdx.x - 1]


def copy(x, y):
    y[cuda.threadIdx.x] = x[cuda.threadIdx.x]


@script("a misaligned address, of a slice and view that is passed", copy)
def misaligned():
    data = cuda.to_device(np.arange(132, dtype=np.uint8))
    y = ints(32)
    jit(copy)[1, 32](data[1:129].view(np.int32), y)
    return y, np.arange(1, 129, dtype=np.uint8).view(np.int32)


@case(
    "a misaligned address, of a view made in the kernel", [np.arange(8, dtype=np.uint8), ints(1)], [67305985], block=1,
)
def misaligned_view(x, y):
    y[0] = x[1:5].view(np.int32)[0]


@case("global memory that nobody wrote", [lambda: cuda.device_array(64, np.float32)], [1] * 64, block=64)
def unwritten_global_memory(total):
    total[cuda.threadIdx.x] += 1


@case("shared memory that nobody wrote", [floats(48), floats(64)], [*range(48), *[0] * 16], block=64)
def unwritten_shared_memory(x, y):
    tile = cuda.shared.array(64, np.float32)
    t = cuda.threadIdx.x
    if t < x.size:
        tile[t] = x[t]
    cuda.syncthreads()
    y[t] = tile[t]


@case("local memory that nobody wrote", [np.ones(8, np.int32), ints(32)], [8] * 32, block=32)
def unwritten_local_memory(x, y):
    own = cuda.local.array(4, np.int32)
    for k in range(x.size):
        own[k % 4] += x[k]
    y[cuda.threadIdx.x] = own[0] + own[1] + own[2] + own[3]


@case(
    "a double in an fp32 kernel", [floats(64)], np.arange(64) / 10, block=64, options=("--doubles", "refuse"),
)
def double_in_an_fp32_kernel(x):
    x[cuda.threadIdx.x] *= 0.1
