"""What bounded numbers know beside their bounds: what is never negative, averages from either end, flushed numbers."""

import numpy as np
import pytest

from refopt.catalog import KNOWN
from refopt.checks.dtypes import numpy_dtype
from refopt.oracle.bound.bounded import Arithmetic, Bounded, high, maximum, roundings_of, sign, sqrt, where
from refopt.oracle.bound.evaluate import as_stored

pytestmark = pytest.mark.clause("N13")


def test_a_square_is_never_negative_however_it_is_written():
    """So a root of it has a bound, though its error is larger than itself."""
    of = Arithmetic(np.float32)
    g, beta, tiny = (of.exact(np.float32(x)) for x in ([1e-30, -2e-30], 0.75, [1e-30, 1e-30]))
    for square in (g * g, (1 - beta) * g * g, (1 - beta) * (g * g), beta * tiny + (1 - beta) * g * g, abs(g) * tiny):
        assert square.never_negative
        assert np.all(np.isfinite(sqrt(square).error)) and sqrt(square).never_negative
    assert np.all((g * g).error > high((g * g).value))
    for other in (g * tiny, g * g - tiny * tiny, (1 - beta) * g):
        assert not other.never_negative
    with np.errstate(invalid="ignore"):
        assert np.all(sqrt(g * tiny).error == np.inf)


@pytest.mark.parametrize("real", [np.float32, np.float64])
def test_averages_may_be_evaluated_from_either_end(real):
    """y + b (x - y) loses digits where y is much larger than what comes out."""
    rng = np.random.default_rng(0)
    x, y, b = (rng.uniform(1, 2, 1000) * 2.0**-8).astype(real), rng.normal(size=1000).astype(real), real(255 / 256)
    got = y + b * (x - y)
    for regroups in (False, True):
        of = Arithmetic(real, regroups=regroups)
        one = of.exact(b)
        bound = one * of.exact(x) + (1 - one) * of.exact(y)
        low, top = bound.ends()
        assert np.all((low <= got) & (got <= top)) == regroups


def test_subnormal_numbers_may_be_flushed():
    small = np.array([2.0**-130, 1.0], np.float32)
    for flushes in (False, True):
        of = Arithmetic(np.float32, flushes=flushes)
        low, top = (of.exact(small) + of.exact(small)).ends()
        assert (low[0] <= 0 <= top[0]) == flushes and low[1] > 1.9
        low, top = (of.exact(np.full(2, 2.0**-70, np.float32)) * of.exact(np.full(2, 2.0**-60, np.float32))).ends()
        assert (low[0] <= 0 <= top[0]) == flushes
        assert (2.0**-126 <= Arithmetic(np.float32, flushes=flushes, leasts=2**12).least < 2.0**-124) == flushes


@pytest.mark.parametrize(("dtype", "half", "least"), [
    ("float16", 2.0**-11, 2.0**-24), ("bfloat16", 2.0**-8, 2.0**-133), ("float32", 0.0, 0.0)])
def test_what_is_read_again_is_off_by_half_a_unit(dtype, half, least):
    x = np.array([1, least, 0], np.float32)
    error = as_stored(Arithmetic(np.float32).exact(x), numpy_dtype(dtype)).error
    np.testing.assert_allclose(error, [half + least / 2, (half + 0.5) * least, 0], rtol=1e-6, atol=0)


def test_products_and_quotients_of_what_is_far_off():
    """Both ends of 1.5 * 1.5 and of 1.5 / 0.5 are within the error, which has no term to spare."""
    of = Arithmetic(np.float32)
    x, y = (Bounded(np.float64(1), np.float64(0.5), of) for _ in range(2))
    np.testing.assert_allclose([(x * y).error, (x / y).error], [1.25, 2], rtol=1e-6, atol=0)


def test_lambs_rule_has_a_rounding_less():
    assert {name: roundings_of(row) for name, row in KNOWN.items() if roundings_of(row) != 3} == {"lamb": 2}


def test_what_is_chosen_is_off_by_no_more_than_one_of_two():
    of = Arithmetic(np.float32)
    x = Bounded(np.array([2.0, -2.0, 0.5, 0.0]), np.array([1.0, 1.0, 1.0, 0.0]), of)
    y = Bounded(np.array([1.0, 3.0, 0.0, 0.0]), np.array([0.5, 2.0, 0.25, 0.0]), of)
    assert sign(x).value.tolist() == [1, -1, 0, 0] and sign(x).error.tolist() == [0, 0, 1, 0]
    assert maximum(x, y).value.tolist() == [2, 3, 0.5, 0] and maximum(x, y).error.tolist() == [1, 2, 1, 0]
    both = where(x > y, x, y)
    assert both.value.tolist() == [2, 3, 0.5, 0] and np.allclose(both.error, [1.5, 2, 1, 0], rtol=1e-5, atol=0)


def test_conditions_are_certain_where_no_rounding_decides():
    """What a rule chooses by one that is not may be either of both."""
    of = Arithmetic(np.float32)
    x, y = Bounded(np.array([1.0, 2.0, 3.0]), np.array([0.0, 0.0, 1.0]), of), of.exact(np.float32(2))
    one, zero = of.exact(np.float32(1)), of.exact(np.float32(0))
    for condition, chosen, certain in (
        (x >= y, [0, 1, 1], [1, 1, 0]), (x <= y, [1, 1, 0], [1, 1, 0]), (~(x >= y), [1, 0, 0], [1, 1, 0]),
        ((x >= y) & (x <= y), [0, 1, 0], [1, 1, 0]), ((x >= y) & (y < one), [0, 0, 0], [1, 1, 1]),
        ((x <= y) | (x <= one), [1, 1, 0], [1, 1, 0]), ((x <= y) | (y > one), [1, 1, 1], [1, 1, 1]),
        (np.array([True, False, True]), [1, 0, 1], [1, 1, 1]),
    ):
        found = np.where(condition, one, zero)
        assert found.value.tolist() == chosen and (np.broadcast_to(found.error, 3) == 0).tolist() == certain


def test_functions_that_no_rule_uses_have_no_bound():
    x = Arithmetic(np.float32).exact(np.ones(2, np.float32))
    for function in (np.tan, np.add.reduce, lambda x: np.add(x, x, out=np.ones(2)), lambda x: np.concatenate([x, x])):
        with pytest.raises(TypeError):
            function(x)
