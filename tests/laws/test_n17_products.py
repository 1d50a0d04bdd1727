"""N17: matrix products have specified bits: a tensor core's by exact rational arithmetic, others term by term."""

from fractions import Fraction
from math import inf, trunc

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from refopt.cpu.matmul import HOPPER, NAN, TensorCore, by_integers, matmul, tensor_core

bfloat16 = pytest.importorskip("ml_dtypes").bfloat16

pytestmark = pytest.mark.clause("N17")
NARROW = {"bfloat16": (np.dtype(bfloat16), 7, 127), "float16": (np.dtype(np.float16), 10, 15)}
SEEDS = st.integers(0, 2**32 - 2)
CORES = HOPPER, TensorCore(4, 23), TensorCore(8, 25, "nearest"), TensorCore(5, 11)
narrow = pytest.mark.parametrize("dtype", [NARROW[name][0] for name in NARROW], ids=list(NARROW))
dtypes = pytest.mark.parametrize("dtype", [bfloat16, *map(np.dtype, ("f2", "f4", "f8"))],
                                 ids=["bfloat16", "float16", "float32", "float64"])


def bits(x):
    return x.view(f"u{x.itemsize}")


def same(x, y):
    assert (x.shape, x.dtype) == (y.shape, y.dtype)
    assert bits(np.ascontiguousarray(x)).tobytes() == bits(np.ascontiguousarray(y)).tobytes()


def normal(seed, *shape, spread=0):
    rng = np.random.default_rng(seed)
    return rng.standard_normal(shape) * 2.0 ** rng.integers(-spread, spread + 1, shape)


# The model by its words, in rational numbers.


def exponent(x):
    """floor(log2(|x|)) of a rational number that is not 0."""
    guess = x.numerator.bit_length() - x.denominator.bit_length()
    return guess if abs(x) >= Fraction(2) ** guess else guess - 1


def stored_exponent(x, bias):
    """The exponent that a number is stored with: subnormal numbers have that of the smallest normal one."""
    return max(exponent(x), 1 - bias)


def added(accumulator, xs, ys, bias, core):
    """A chunk: the terms exactly, truncated to a unit and added; then rounded to 24 bits or multiples of 2**-149."""
    terms = [(x * y, stored_exponent(x, bias) + stored_exponent(y, bias)) for x, y in zip(xs, ys, strict=True) if x * y]
    terms += [(accumulator, stored_exponent(accumulator, 127))] if accumulator else []
    if not terms:
        return Fraction(0)
    unit = Fraction(2) ** (max(core.lowest, *(top for _, top in terms)) - core.kept)
    total = sum(trunc(term / unit) * unit for term, _ in terms)
    if not total:
        return total
    last = Fraction(2) ** max(exponent(total) - 23, -149)
    return (trunc if core.rounding == "truncate" else round)(total / last) * last


def by_fractions(a, b, core):
    bias = NARROW[a.dtype.name][2]
    product = np.zeros((a.shape[0], b.shape[1]), np.float32)
    rows, columns = ([[Fraction(float(x)) for x in line] for line in lines] for lines in (a, b.T))
    for i, row in enumerate(rows):
        for j, column in enumerate(columns):
            accumulator = Fraction(0)
            for k in range(0, len(row), core.chunk):
                if abs(accumulator) < 2**128:
                    of = slice(k, k + core.chunk)
                    accumulator = added(accumulator, row[of], column[of], bias, core)
            product[i, j] = float(accumulator) if abs(accumulator) < 2**128 else inf if accumulator > 0 else -inf
    return product


@st.composite
def operands(draw, finite=True):
    """Two small matrices of any patterns, of one 16-bit type, whose exponents are of some range or of any.

    Some terms are zero, and some cancel others, or nearly.
    """
    dtype, fraction, _ = NARROW[draw(st.sampled_from(list(NARROW)))]
    top = (2 << 14 - fraction) - 1
    low = draw(st.integers(0, top - 1))
    fields = st.integers(low, draw(st.integers(low, top if not finite else top - 1)))
    pattern = st.builds(lambda s, e, m: s << 15 | e << fraction | m, st.integers(0, 1), fields,
                        st.integers(0, (1 << fraction) - 1))
    m, k, n = draw(st.tuples(st.integers(1, 3), st.integers(0, 37), st.integers(1, 3)))
    a, b = (draw(hnp.arrays(np.uint16, shape, elements=pattern)) for shape in ((m, k), (k, n)))
    zeros, cancels = draw(st.sets(st.integers(0, 36), max_size=3)), draw(st.integers(0, k // 2))
    a[:, cancels : 2 * cancels] = a[:, :cancels] ^ 0x8000
    b[cancels : 2 * cancels] = b[:cancels] ^ draw(st.integers(0, 1))
    a[:, [i for i in zeros if i < k]] &= 0x8000
    return a.view(dtype), b.view(dtype)


@settings(max_examples=max(settings().max_examples, 60))
@given(operands(), st.sampled_from(CORES))
def test_a_tensor_core_is_rational_arithmetic(sides, core):
    """Both implementations, for numbers of any exponent, including subnormal numbers and zeros of both signs.

    For several ways to add. A zero has no exponent that others are aligned to; every zero that comes out is +0.
    """
    a, b = sides
    expected = by_fractions(a, b, core)
    same(matmul(a, b, core=core), expected)
    same(by_integers(a, b, core=core), expected)


@settings(max_examples=max(settings().max_examples, 24))
@given(operands(finite=False))
def test_both_forms_agree_on_non_finite_values(sides):
    """For infinities and NaN among random patterns."""
    same(matmul(*sides), by_integers(*sides))


@narrow
def test_non_finite_values_in_products(dtype):
    """inf * 0, inf - inf and NaN give 0x7fffffff; sums of 2**128 or more are infinite, smaller ones truncated."""
    def of(*pairs):
        a, b = np.array(pairs, dtype).T
        return matmul(a[None], b[:, None])[0, 0]

    for pairs in ([(inf, 0)], [(inf, 1), (-inf, 1)], [(np.nan, 1)], [(inf, 1), *[(1, 1)] * 15, (inf, -1)]):
        assert bits(of(*pairs)) == 0x7FFFFFFF
    assert bits(NAN) == 0x7FFFFFFF and of((inf, -2), (3, 3)) == -inf
    if dtype == bfloat16:
        largest = np.finfo(np.float32).max
        high = 2.0**64
        assert of((high, high)) == inf and of((high, -high), (0, 1)) == -inf
        assert of((high, high / 2), (high, high / 2)) == inf
        assert of((high, high), (-(2.0**52), 2.0**51)) == largest  # 2**128 - 2**103, cut off and not rounded
        assert of((high, high), (-high, high)) == 0  # a product is no fp32 number, and does not overflow


SHAPES = st.tuples(st.integers(1, 40), st.integers(0, 70), st.integers(1, 300))


@dtypes
@given(shape=SHAPES, seed=SEEDS, spread=st.integers(0, 4), pads=st.integers(0, 40))
@example((37, 35, 300), 4, 3, 40)  # beyond the blocks that are computed at once
def test_rows_columns_and_transposes(dtype, shape, seed, spread, pads):
    """Rows and columns are independent, B^T A^T = (A B)^T, appended zeros change no bit, X X^T is symmetric.

    So a kernel may take any of them in any order, fill up the last chunk, and operands may have any strides.
    """
    m, k, n = shape
    a, b = normal(seed, m, k, spread=spread).astype(dtype), normal(seed + 1, k, n, spread=spread).astype(dtype)
    rng, product = np.random.default_rng(seed), matmul(a, b)
    rows, columns = rng.permutation(m)[: pads + 1], rng.permutation(n)[: pads + 1]
    same(matmul(a[rows], b[:, columns]), product[rows][:, columns])
    same(matmul(b.T, a.T), product.T)
    same(matmul(np.asfortranarray(a), b[:, ::-1])[:, ::-1], product)
    same(matmul(np.pad(a, ((0, 0), (0, pads))), np.pad(b, ((0, pads), (0, 0)))), product)
    square = matmul(a, a.T)
    same(square, square.T)
    narrowed = square.astype(dtype)
    same(matmul(narrowed, narrowed), matmul(narrowed, narrowed).T)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@given(shape=st.tuples(*[st.integers(0, 12)] * 3), seed=SEEDS)
@example((3, 40, 3), 14)
def test_plain_products_are_a_sequence(dtype, shape, seed):
    """Starting from +0, one rounded multiplication and one rounded addition for each k."""
    m, terms, n = shape
    a, b = normal(seed, m, terms, spread=4).astype(dtype), normal(seed + 1, terms, n, spread=4).astype(dtype)
    expected = np.zeros((m, n), dtype)
    for i, j, k in np.ndindex(m, n, terms):
        expected[i, j] = expected[i, j] + a[i, k] * b[k, j]
    same(matmul(a, b), expected)


def test_hopper_is_the_default():
    """Only this generation has been measured; others are refused."""
    a, b = normal(16, 8, 64).astype(bfloat16), normal(17, 64, 8).astype(bfloat16)
    assert tensor_core((9, 0)) == HOPPER == TensorCore(chunk=16, kept=25, rounding="truncate", lowest=-133)
    same(matmul(a, b, core=TensorCore(16, 25, "truncate")), matmul(a, b))
    for changed in ({"chunk": 8}, {"kept": 24}, {"rounding": "nearest"}):
        assert (matmul(a, b, core=HOPPER._replace(**changed)) != matmul(a, b)).any()
    with pytest.raises(ValueError, match=r"^tensor_core: capability: expected one that has been .*, got \(10, 0\)$"):
        tensor_core((10, 0))
    for wrong in ([9, 0], "90", 9, None, (9.0, 0), ([9], 0), np.array([9, 0])):
        with pytest.raises(ValueError, match=r"^tensor_core: capability: expected one that has been .*, got "):
            tensor_core(wrong)


SQUARE = np.ones((2, 2), np.float32)
REFUSED = {"a: expected a matrix, got shape (2,)": (SQUARE[0], SQUARE, HOPPER),
           "b: expected a matrix, got shape (1, 2, 2)": (SQUARE, SQUARE[None], HOPPER),
           "a: expected one of float16, bfloat16, float32, float64, got int8": (SQUARE.astype("i1"), SQUARE, HOPPER),
           "b: expected float32, as a has, got float16": (SQUARE, SQUARE.astype("f2"), HOPPER),
           "b: expected 2 rows, as many as a has columns, got 1": (SQUARE, SQUARE[:1], HOPPER),
           "a: expected a NumPy array, got builtins.list": ([[1.0]], SQUARE, HOPPER),
           "core: expected a TensorCore, got (16, 25, 'truncate')": (SQUARE, SQUARE, (16, 25, "truncate")),
           "core.chunk: expected an integer from 1 to 1024, got 0": (SQUARE, SQUARE, TensorCore(chunk=0)),
           "core.kept: expected an integer from 1 to 40, got 41": (SQUARE, SQUARE, TensorCore(kept=41)),
           "core.lowest: expected an integer from -300 to 0, got 1": (SQUARE, SQUARE, TensorCore(lowest=1)),
           "core.rounding: expected one of truncate, nearest, got 'up'": (SQUARE, SQUARE, TensorCore(rounding="up"))}


@pytest.mark.parametrize("message", REFUSED)
def test_invalid_products_are_refused(message):
    """The error names the argument, what was expected and what was passed."""
    a, b, core = REFUSED[message]
    with pytest.raises((ValueError, TypeError)) as caught:
        matmul(a, b, core=core)
    assert str(caught.value) == f"matmul: {message}"


def test_products_by_integers_are_for_16_bits():
    """The reference by integers multiplies only bf16 and fp16 matrices."""
    with pytest.raises(TypeError, match=r"^by_integers: a: expected bfloat16 or float16, got float32$"):
        by_integers(SQUARE, SQUARE)


# Bits of two rows, two columns and their products, as an H100 has given them.
SMALL = [
    ("19ce181d1b7c9adf9b4b9b971b031c109aa41b1a1c2c9ad59b9c9a8b99fe9a8f",
     "99fa1b6b1a879aae9bf61b901a6b9a9b1aad99429ab499429ba41ba21a681a83", 0x3),
    ("9afd1bd81a931b781abc1b159b479b231a591b1b9b469ac99b279b429a319b6b",
     "1b091b159a159b191b751abe1acb1b329a8a1b041b6e1b859b221a3d9b0719d0", 0x80000015)]


@pytest.mark.parametrize(("row", "column", "expected"), SMALL)
def test_terms_of_subnormal_sums_are_aligned_to_a_least_exponent(row, column, expected):
    """In sums below 2**-133, for which an unlimited exponent would keep more bits."""
    a, b = (np.frombuffer(bytes.fromhex(x), ">u2").astype(np.uint16).view(bfloat16) for x in (row, column))
    for product in (matmul, by_integers):
        assert product(a[None], b[:, None]).view(np.uint32) == expected
        assert product(a[None], b[:, None], core=TensorCore(lowest=-300)).view(np.uint32) != expected
