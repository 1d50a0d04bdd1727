"""What comes of a lane that takes no part in a shuffle is undefined, through every function, until it is used."""

import math

import numpy as np
import pytest

from refopt import simt
from refopt.simt import cuda

DTYPES = [np.int8, np.int32, np.uint32, np.int64, np.uint64, np.float16, np.float32, np.float64]
LOWER = 0xFFFF
TABLE = np.arange(64)


def add(v, o):
    return v + o


def quotient(v, o):
    return o // 3


def shift(v, o):
    return int(o) << 1


def greatest(v, o):
    return max(v, o)


def least(v, o):
    return min(o, v)


def greater_by_a_branch(v, o):
    if o > v:
        v = o
    return v


def lesser_by_an_expression(v, o):
    return o if o < v else v


def root(v, o):
    return math.sqrt(o)


def absolute(v, o):
    return abs(o)


def single(v, o):
    return np.float32(o)


def real(v, o):
    return float(o)


def part(v, o):
    return complex(o, 1).real


def digits(v, o):
    return divmod(o, 3)[0]


def selected(v, o):
    return cuda.selp(o > v, o, v)


def bits(v, o):
    return cuda.popc(int(o))


def fused(v, o):
    return cuda.fma(float(o), 2.0, 1.0)


def half(v, o):
    return cuda.fp16.hmax(np.float16(v), np.float16(o))


def maximum(v, o):
    return np.maximum(v, o)


def shuffled_again(v, o):
    return cuda.shfl_sync(LOWER, o, 0)


def lane(v, o):
    return cuda.shfl_sync(LOWER, v, int(o) & 7)


def summed(v, o):
    for step in (16, 8, 4, 2, 1):
        v += cuda.shfl_down_sync(LOWER, v, step)
    return v


def element(v, o):
    return TABLE[int(o) & 7]


def count(v, o):
    for _ in range(int(o) & 7):
        v += 1
    return v


def vote(v, o):
    return cuda.ballot_sync(LOWER, o > 3)


def match(v, o):
    return cuda.match_any_sync(LOWER, o)


USES = [
    add, quotient, shift, greatest, least, greater_by_a_branch, lesser_by_an_expression, root, absolute, single, real,
    part, digits, selected, bits, fused, half, maximum, shuffled_again, lane, summed, element, count, vote, match,
]


def kernel(use, stored):
    @cuda.jit
    def body(x, y):
        t = cuda.threadIdx.x
        if t < 16:
            v = x[t]
            result = use(v, cuda.shfl_down_sync(LOWER, v, 16))
            if stored and t == 0:
                y[0] = result

    return body


@pytest.mark.filterwarnings("ignore::refopt.simt.UntypedWarning")
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("use", USES)
def test_what_is_computed_from_it_is_not_stored(use, dtype):
    x = np.arange(1, 33).astype(dtype)
    with pytest.raises(simt.UninitializedRead, match="shuffle-lanes"), simt.observe(watch=True):
        kernel(use, True)[1, 32](x, np.zeros(1))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("use", [use for use in USES if use not in (element, count, vote, match)])
def test_computing_with_it_is_no_defect(use, dtype):
    x = np.arange(1, 33).astype(dtype)
    with simt.observe(watch=True):
        kernel(use, False)[1, 32](x, np.zeros(1))


def test_what_its_value_does_not_change_is_defined():
    """The first lane of the upper half looks at none below: its answer is true in any case."""

    @cuda.jit
    def heads(keys, y):
        t = cuda.threadIdx.x
        if t >= 16:
            before = cuda.shfl_up_sync(0xFFFF0000, keys[t], 1)
            y[t] = (t == 16) | (before != keys[t])

    @cuda.jit
    def sums(x, y):
        t = cuda.threadIdx.x
        kind = np.float32
        part = cuda.local.array(1, kind)
        if t < 16:
            v = x[t]
            for step in (8, 4, 2, 1):
                v += cuda.shfl_down_sync(LOWER, v, step)
            part[0] = np.float32(0)
            if t == 0:
                y[0] = v

    y = np.zeros(32, np.int32)
    with simt.observe(watch=True):
        heads[1, 32](np.arange(32) // 4, y)
        assert y.tolist() == [0] * 16 + [1, 0, 0, 0] * 4
        sums[1, 32](np.arange(32), y)
        assert y[0] == 120
    sums[1, 32](np.arange(32), y)
    assert y[0] == 120


def test_device_functions_and_other_launches():
    """A function that shuffles is watched as a copy; unwatched it is itself."""

    @cuda.jit(device=True)
    def total(v):
        for step in (16, 8, 4, 2, 1):
            v += cuda.shfl_xor_sync(0xFFFFFFFF, v, step)
        return v

    @cuda.jit
    def body(x, y):
        v = total(x[cuda.threadIdx.x])
        if cuda.threadIdx.x == 0:
            y[0] = v * 2

    x, y = np.arange(32, dtype=np.int32), np.zeros(1, np.int32)
    for block, error in ((32, None), (20, simt.UninitializedRead), (32, None)):
        try:
            with simt.observe(watch=True):
                body[1, block](x, y)
            assert error is None and y[0] == 992
        except simt.UninitializedRead:
            assert error is not None
        body[1, 32](x, y)
        assert y[0] == 992
