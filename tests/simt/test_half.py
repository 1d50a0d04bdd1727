"""fp16, fma and cbrt: exact results rounded once, by fractions and by NumPy's conversions."""

import itertools
import math
import operator
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from refopt.simt import cuda
from refopt.simt.machine.half import rounded

HALVES = np.arange(2**16, dtype=np.uint16).view(np.float16)
finite = st.sampled_from(HALVES[np.isfinite(HALVES)].tolist()).map(np.float16)


def bits(x):
    return x.view(f"u{x.dtype.itemsize}")


@given(st.fractions(max_denominator=10**6).filter(bool) | st.floats(allow_nan=False, allow_infinity=False).filter(bool))
def test_rounding_is_that_of_a_division(x):
    exact = Fraction(x)
    assert rounded(exact, np.dtype(np.float64)) == exact.numerator / exact.denominator


numbers = st.floats(allow_nan=False, allow_infinity=False) | st.floats(-(2**-13), 2**-13) | st.floats(-1e-37, 1e-37)


@given(numbers.filter(bool), st.sampled_from(["float16", "float32"]))
def test_rounding_is_that_of_numpy(x, kind):
    with np.errstate(all="ignore"):
        assert bits(rounded(Fraction(x), np.dtype(kind))) == bits(np.float64(x).astype(kind))


def test_subnormals_are_rounded_once():
    assert rounded(Fraction(1, 2**25) + Fraction(1, 2**60), np.dtype(np.float16)) == np.float16(2**-24)


@pytest.mark.parametrize(("a", "b", "c"), [
    (1 + 2**-10, 1 + 2**-10, -(1 + 2**-9)), (2**-14, 2**-11, 2**-24), (1 + 2**-10, 2**-12, 1), (2047, 2047, 1)])
def test_fma_is_rounded_once(a, b, c):
    a, b, c = map(np.float16, (a, b, c))
    exact = Fraction(float(a)) * Fraction(float(b)) + Fraction(float(c))
    assert cuda.fp16.hfma(a, b, c) == rounded(exact, np.dtype(np.float16))


def test_fma_is_not_a_product_and_a_sum():
    a = np.float32(1 + 2**-12)
    assert cuda.fma(a, a, np.float32(-1)) == np.float32(2**-11 + 2**-24) != a * a - np.float32(1)
    assert cuda.fma(a, a, np.float32(-1)).dtype == np.float32
    assert cuda.fma(1 / 3, 3.0, -1.0) == float(Fraction(1 / 3) * 3 - 1) != (1 / 3) * 3.0 - 1.0
    assert cuda.fma(a, a, np.float64(0.1)).dtype == cuda.fma(a, np.float64(0.1), a).dtype == np.float64


@pytest.mark.parametrize(("a", "b", "c", "expected"), [
    (0.0, 1.0, -0.0, 0.0), (-0.0, 1.0, -0.0, -0.0), (1.0, 1.0, -1.0, 0.0), (math.inf, 0.0, 1.0, math.nan),
    (math.inf, 1.0, -math.inf, math.nan), (1e308, 10.0, 0.0, math.inf), (1e308, 10.0, -math.inf, -math.inf)])
def test_fma_at_the_edges(a, b, c, expected):
    assert repr(float(cuda.fma(a, b, c))) == repr(expected)


@given(finite, finite)
def test_halves_are_rounded_once(a, b):
    exact = {"hadd": Fraction(float(a)) + Fraction(float(b)), "hmul": Fraction(float(a)) * Fraction(float(b))}
    exact["hsub"] = Fraction(float(a)) - Fraction(float(b))
    if b:
        exact["hdiv"] = Fraction(float(a)) / Fraction(float(b))
    for name, value in exact.items():
        if value:
            result = getattr(cuda.fp16, name)(a, b)
            assert result.dtype == np.float16 and bits(result) == bits(rounded(value, np.dtype(np.float16)))


@given(finite)
def test_functions_of_one_half(a):
    assert bits(cuda.fp16.hneg(a)) == bits(a) ^ 0x8000
    assert bits(cuda.fp16.habs(a)) == bits(a) & 0x7FFF
    assert cuda.fp16.htrunc(a) == int(a) and cuda.fp16.hfloor(a) == math.floor(float(a))
    if a >= 0:
        root = float(cuda.fp16.hsqrt(a))
        around = np.nextafter(np.float16(root), np.float16([0, math.inf])).astype(float)
        assert abs(root**2 - float(a)) <= min(abs(around**2 - float(a)))


FUNCTIONS = {
    "hsin": math.sin, "hcos": math.cos, "hlog": math.log, "hlog2": math.log2, "hlog10": math.log10, "hexp": math.exp,
    "hexp2": lambda x: 2**x, "hexp10": lambda x: 10**x, "hrsqrt": lambda x: 1 / math.sqrt(x), "hrcp": lambda x: 1 / x,
    "hceil": math.ceil, "hrint": round}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_other_functions_of_one_half(name):
    for x in map(np.float16, (0.3, 1.5, 2.5, 3.7)):
        result = getattr(cuda.fp16, name)(x)
        assert result.dtype == np.float16 and result == np.float16(FUNCTIONS[name](float(x)))


@pytest.mark.parametrize("name", ["eq", "ne", "lt", "le", "gt", "ge"])
def test_comparisons(name):
    for a, b in itertools.product((1.0, 2.0, math.nan), repeat=2):
        assert getattr(cuda.fp16, f"h{name}")(a, b) is getattr(operator, name)(a, b)


def test_extremes():
    nan = np.float16(math.nan)
    assert cuda.fp16.hmax(nan, 1) == cuda.fp16.hmin(1, nan) == cuda.fp16.hmin(2, 1) == cuda.fp16.hmax(0, 1) == 1


def test_cube_roots():
    assert cuda.cbrt(np.float32(27)) == 3 and cuda.cbrt(np.float32(27)).dtype == np.float32
    assert cuda.cbrt(-8) == -2
    x = np.arange(1, 2000, dtype=np.float32) / 7
    assert [cuda.cbrt(each) for each in x] == np.cbrt(x.astype(np.float64)).astype(np.float32).tolist()
    for each in x.astype(np.float64):
        root = cuda.cbrt(each)
        most = Fraction(501, 1000) * Fraction(np.spacing(root))
        assert (Fraction(root) - most) ** 3 <= Fraction(each) <= (Fraction(root) + most) ** 3
