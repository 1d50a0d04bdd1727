"""More kernels by lanes: rows of arrays, bits, parts and comparisons of numbers, assertions, tuples of arrays."""

import numpy as np
import pytest

from refopt.simt import cuda

from .test_lanes import both_are, by_threads, words


def rows_of_arrays(x, out):
    i = cuda.grid(1)
    own, part = cuda.local.array((2, 3), np.int32), cuda.shared.array((2, 64), np.int32)
    row, shared = own[1], part[1]
    for k in range(len(row)):
        row[k] = x[i] >> k
    shared[cuda.threadIdx.x] = x[i]
    cuda.syncthreads()
    out[i] = own[1, 2] + row[0] * row.size + row.shape[0] + row.ndim + shared[63 - cuda.threadIdx.x] * len(shared)


def bits_and_parts(x, out):
    i = cuda.grid(1)
    out[i] = np.float32(x[i]).view(np.int32) + x[i].real + np.bool_(x[i] % 3) + 2 * bool(x[i] & 1)


def in_order(x, out):
    i = cuda.grid(1)
    a, b = np.uint64(x[i]), np.int64(x[i] % 7)
    out[i] = (a < b) + 2 * (a == b) + 4 * (b >= a) + 8 * int(np.float32(x[i]) / np.float32(3))
    out[i] += 100 * int(np.float32(x[i] % 5) ** np.float32(1.5)) + 1000 * (x[i] % 5) ** (i % 3)


def asserted(x, out):
    i = cuda.grid(1)
    assert i < x.size, "never"
    out[i] = x[i]


@pytest.mark.parametrize("body", [rows_of_arrays, bits_and_parts, in_order, asserted])
def test_kernels(body, by_lanes):
    both_are([words(128, np.int32) >> 8], np.zeros(128, np.int64), body, by_lanes, 2, 64)


def of_a_tuple(pair, out):
    i = cuda.grid(1)
    out[i] = pair[0][i] * pair[1]


def test_tuples_of_arrays(by_lanes):
    both_are([(words(128, np.int32), 3)], np.zeros(128, np.int64), of_a_tuple, by_lanes, 2, 64)


def rows_of_lanes(x, out):
    i = cuda.grid(1)
    own = cuda.local.array((2, 3), np.int32)
    row = own[i % 2]
    row[0] = x[i]
    out[i] = row[0]


def test_each_lane_may_have_a_row_of_its_own(by_lanes):
    """Then threads run."""
    x, got, expected = words(128, np.int32), np.zeros(128, np.int32), np.zeros(128, np.int32)
    kernel = cuda.jit(rows_of_lanes)
    kernel[2, 64](x, got)
    by_threads(kernel[2, 64], x, expected)
    assert by_lanes == [rows_of_lanes.__name__] * 2 and got.tobytes() == expected.tobytes()
