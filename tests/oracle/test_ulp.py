"""Laws of `refopt.oracle.ulp`."""


import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from refopt.oracle import ulp

DTYPES = {np.dtype(np.float16): np.uint16, np.dtype(ml_dtypes.bfloat16): np.uint16, np.dtype(np.float32): np.uint32,
          np.dtype(np.float64): np.uint64}


@st.composite
def numbers(draw, count, nan=True):
    """Numbers of one dtype from any bit patterns."""
    dtype = draw(st.sampled_from(list(DTYPES)))
    unsigned = DTYPES[dtype]
    edges = [0, 1, 2, 1 << (8 * dtype.itemsize - 1), (1 << (8 * dtype.itemsize - 1)) + 1]
    pattern = st.integers(0, int(np.iinfo(unsigned).max)) | st.sampled_from(edges)
    values = st.builds(lambda p: np.array(p, unsigned).view(dtype)[()], pattern)
    if not nan:
        values = values.filter(lambda x: not np.isnan(x))
    return [draw(values) for _ in range(count)]


def distance(a, b):
    return int(ulp.distance(a, b))


@given(numbers(2))
def test_zero_distance_is_same_bits(pair):
    a, b = pair
    assert distance(a, b) == distance(b, a) and (distance(a, b) == 0) == bool(ulp.same_bits(a, b))
    assert distance(a, a) == 0 and ulp.same_bits(a, a) and ulp.same_bits(a, a.dtype.type(np.nan)) == np.isnan(a)


@given(numbers(3, nan=False))
def test_distances_add_up_in_order(three):
    a, b, c = sorted(three, key=lambda x: (float(x), not np.signbit(x)))
    assert distance(a, c) == distance(a, b) + distance(b, c)


@given(numbers(1))
def test_nan(one):
    (a,) = one
    nan = a.dtype.type(np.nan)
    assert distance(a, nan) == (0 if np.isnan(a) else ulp.MAXIMUM) and distance(-nan, nan) == 0


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_zeros(dtype):
    zero = dtype.type(0.0)
    tiny = np.array(1, DTYPES[dtype]).view(dtype)[()]
    assert distance(-zero, zero) == 1 and not ulp.same_bits(-zero, zero)
    assert distance(zero, tiny) == distance(-zero, -tiny) == 1 and distance(-tiny, tiny) == 3


def test_every_fp16_number_is_one_from_the_next():
    every = np.arange(2**16, dtype=np.uint16).view(np.float16)
    every = every[~np.isnan(every)]
    order = every[np.lexsort((~np.signbit(every), every.astype(np.float32)))]
    assert (ulp.distance(order[:-1], order[1:]) == 1).all()


def test_shapes_and_strides():
    a = np.arange(12, dtype=np.float32).reshape(3, 4)
    b = np.nextafter(a, np.float32(np.inf))
    assert ulp.distance(a.T[::2], b.T[::2]).tolist() == [[1] * 3] * 2
    assert ulp.distance(a, a).dtype == np.uint64 and ulp.distance(a[:0], a[:0]).shape == (0, 4)


def test_refused():
    with pytest.raises(TypeError, match="one dtype"):
        ulp.distance(np.float32(1), np.float64(1))
    with pytest.raises(TypeError, match="float16, bfloat16, float32, float64"):
        ulp.bits(np.complex64(1))


@pytest.mark.parametrize(("dtype", "y"), [("uint16", [0, 7, 65535]), ("int8", [0, 7, -1])])
def test_integers_are_compared_as_integers(dtype, y):
    """Remainders, with and without a sign."""
    x, y = np.array([0, 5, 0], dtype), np.array(y, dtype)
    assert ulp.same_bits(x, y).tolist() == [True, False, False]
    assert ulp.distance(x, y).tolist() == [0, 2, abs(int(y[2]))] and ulp.bits(x).dtype.kind == "u"

