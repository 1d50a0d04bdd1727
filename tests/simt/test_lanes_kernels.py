"""More kernels by lanes: elements and views of local arrays, tuples of arrays, atomics on floats."""

import numpy as np
import pytest

from refopt import simt
from refopt.simt import cuda

from .test_lanes import both_are, words

FIRST = np.int64(0)


def constant_indices(x, out):
    """Elements of a local array as variables: written by all lanes and by some, then read by an index of each lane."""
    i = cuda.grid(1)
    own = cuda.local.array((2, 4), np.int16)
    for a in range(2):
        for e in range(4):
            own[a, e] = x[i] * (a + 1) + e
    kept = own[0, 1]
    own[FIRST, 1], own[1, -1] = own[1, 2], 70_000
    if x[i] % 3:
        own[0, 0] = own[0, 1] + own[1, 3]
        if x[i] % 2:
            own[0, 2] = own[0, 0]
    total = own[0, 0] + own[0, 2] * 3 + own[1, 3] + kept * 5
    for turn in range(x[i] & 3):
        own[1, 0] = own[1, 0] + own[0, turn]
        total += own[1, 0]
    own[x[i] & 1, 2] += 7
    wide = cuda.local.array(2, np.float64)
    wide[0], wide[1] = np.float32(x[i]) / np.float32(3), 2
    out[i] = total + own[0, 2] * 2 + own[1, x[i] & 3] * 9 + int(wide[0] * wide[0] / wide[1] * 1e9) % 1000
    if i % 3:
        later = cuda.local.array(2, np.int64)
        later[0], later[1] = i, x[i]
        if i % 2:
            latest = cuda.local.array(1, np.int64)
            latest[0], later[0] = x[i] * 2, later[1] + x[i]
            if x[i] & 1:
                later[0] += latest[0]
        out[i] += later[0]


def of_a_tuple(pair, out):
    i = cuda.grid(1)
    out[i] = pair[0][i] * pair[1]


def test_tuples_of_arrays(by_lanes):
    both_are([(words(128, np.int32), 3)], np.zeros(128, np.int64), of_a_tuple, by_lanes, 2, 64)


@cuda.jit(device=True)
def ends(part, n):
    """Of a view of each lane: elements from both ends, sizes, and what parts of it hold."""
    total = part.size * 1000 + len(part) * 100
    for k in range(n):
        total += part[k] * (k + 1)
    part[-1] += n
    rest = part[1:][::1]
    return total + rest[rest.size - 1] + part[:-1].size


def views_of_lanes(x, out):
    i, t = cuda.grid(1), cuda.threadIdx.x
    own, tile = cuda.local.array((4, 6), np.int32), cuda.shared.array((64, 5), np.int32)
    for j in range(4):
        row = own[j]
        for k in range(row.size):
            row[k] = x[i] >> (j + k)
    for k in range(5):
        tile[t, k] = x[i] >> k
    cuda.syncthreads()
    n = i % 3
    total = ends(own[n, 1:5], 3) + ends(tile[63 - t], 2) + ends(own[i % 4][n : n + 2], 2)
    part = own[n] if i % 2 else own[3, 1:]
    total += part.size * 7 + part[n]
    if i % 5 < 2:
        part = own[0][n - 4 : 99]
    total += part[np.int8(-1)] + own[n - 4, -2] + own[0, 5 - n : n].size + own[0, n:].size
    while part.size > 1 and part[0] > 100:
        part = part[1 if i % 2 else 2 :]
        total += part.size
    out[i] = total + x[i:][0] + x[i : i + 1].size + tile[t, np.uint16(n) :][0]


def holding(yes, no):
    @cuda.jit(device=True)
    def held(x, i):
        """Both sides of `and` and `or` with a value that is known before the kernel runs, and a load."""
        return 1 if yes and x[i] > 0 else 2 if no or x[i] < -7 else 3 if x[i] < -3 and yes else 4 if x[i] or no else 5

    return held


held = holding(True, False)


def known_conditions(x, out):
    i = cuda.grid(1)
    out[i] = held(x, i) if i % 3 else 16


@pytest.mark.parametrize("body", [constant_indices, views_of_lanes, known_conditions])
def test_kernels(body, by_lanes):
    both_are([words(128, np.int32) >> 8], np.zeros(128, np.int64), body, by_lanes, 2, 64)


def adds_floats(x, out):
    cuda.atomic.add(out, cuda.grid(1) % 3, x[cuda.grid(1)])


def adds_by_blocks(x, out):
    total, i = cuda.shared.array((2, 1), np.float32), cuda.grid(1)
    if cuda.threadIdx.x < 2:
        total[cuda.threadIdx.x, 0] = 0
    cuda.syncthreads()
    cuda.atomic.sub(total[1], 0, x[i])
    cuda.syncthreads()
    if cuda.threadIdx.x == 0:
        cuda.atomic.add(out, 0, total[1, 0])


def adds_and_asks(x, out):
    i = cuda.grid(1)
    x[i] = cuda.atomic.add(out, 1, x[i]) + cuda.atomic.nanmax(x[:], i, 0.5)


def least_number(x, out):
    cuda.atomic.nanmin(out, 0, x[cuda.grid(1)] * 0)


def swaps(x, out):
    i = cuda.grid(1)
    x[i] = cuda.atomic.cas(out, i % 7, 0, i + 1) + cuda.atomic.dec(x, i, 9)


@pytest.mark.parametrize("body", [
    adds_floats, adds_by_blocks, adds_and_asks, least_number])
def test_atomics_in_the_order_of_the_threads(body, by_lanes):
    random = np.random.default_rng(0)
    x = (random.standard_normal(512) * 10 ** random.uniform(-3, 3, 512)).astype(np.float32)
    x[7], x[40:80] = np.nan, -0.0
    both_are([x], np.zeros(9), body, by_lanes, 8, 64)


def test_compare_and_swap(by_lanes):
    both_are([words(128)], np.zeros(8, np.int64), swaps, by_lanes, 2, 64)


def test_an_index_past_the_end_of_a_view_is_an_error():
    """Also where the array that it is a view of goes on."""

    @cuda.jit
    def kernel(x, n, out):
        i = cuda.grid(1)
        out[i] = x[i : i + 2][n[i]]

    x, n, out = np.arange(300), np.ones(256, np.int64), np.zeros(256, np.int64)
    kernel[4, 64](x, n, out)
    assert simt.how(kernel[4, 64], x, n, out).by == "lanes" and np.array_equal(out, np.arange(1, 257))
    for n[100] in (2, -3):
        with pytest.raises(IndexError):
            kernel[4, 64](x, n, out)
