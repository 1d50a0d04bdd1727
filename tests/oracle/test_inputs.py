"""Numbers that the arithmetic rounds: code that keeps them in double is within the bound, and a report says so."""

from fractions import Fraction

import numpy as np
import pytest

from oracle.kept import assert_kept, digits
from refopt import oracle
from refopt.catalog import ROUTINES
from refopt.oracle.bound.double_double import high
from refopt.oracle.cases import _lost_in_double, alike, choices_of, draw, in_one_order, noise, numbers_of, truth
from refopt.oracle.identity.candidates import _away
from refopt.oracle.variants import row_for

pytestmark = pytest.mark.clause("N13")
L1 = dict(dtypes=["float32"], laws=["L1"], examples=0, diagnose=False, process=False)


def adam_of(beta1, beta2):
    """Adam in fp32, whose numbers are double until they meet an array."""

    def adam(params, grads, moment1, moment2, *, lr, epsilon, step):
        for p, g, m, v in zip(params, grads, moment1, moment2, strict=True):
            real = p.dtype.type
            m += real(1 - beta1) * (g - m)
            v[...] = real(beta2) * v + real(1 - beta2) * g * g
            first, second = 1 - beta1**step, 1 - beta2**step
            p -= real(lr / first) * m / (np.sqrt(v) / real(second**0.5) + real(epsilon))

    return adam


def test_double_is_within_the_bound():
    """Of betas that fp32 has not."""
    given = {"beta1": 0.9, "beta2": 0.9999}
    report = oracle.check("adam", adam_of(0.9, 0.9999), set=given, **L1)
    report.raise_if_failed()
    (note,) = [note for note in report.notes if "in double" in note]
    assert note.startswith("float32: beta1=0.9, beta2=0.9999: not numbers of float32")
    assert note in oracle.check("adam", adam_of(0.9, 0.9999), set=given, **L1).notes  # with bounds that are known
    assert not oracle.check("adam", adam_of(0.9, 0.99992), set=given, **L1).ok


def test_numbers_that_fp32_has_are_not_spoken_of():
    given = {"beta1": 0.875, "beta2": 0.99609375}
    report = oracle.check("adam", adam_of(0.875, 0.99609375), set=given, **L1)
    report.raise_if_failed()
    assert not any("in double" in note for note in report.notes)


def test_expect_allows_for_them():
    """The bound of one product has the rounding of its factor; in fp64 there is none."""
    g, lr = np.linspace(1, 2, 9), 0.1
    errors = {}
    for real, one in ((np.float32, lr), (np.float32, 0.125), (np.float64, lr)):
        p, got = np.zeros(9, real), g.astype(real)
        errors[real, one] = oracle.expect("sgd", params=[p], grads=[got], lr=one)["params"][0].error / one
    off = abs(float(np.float32(lr)) - lr) / lr * g
    assert np.all(errors[np.float32, lr] >= off) and np.all(errors[np.float64, lr] < 1e-3 * off)
    assert np.allclose(errors[np.float32, lr] - errors[np.float32, 0.125], off, rtol=1e-3)


def test_a_case_is_put_in_one_order_where_orders_differ():
    row = ROUTINES["momentum"]
    case = draw(row, [(2, 3), (4,)], [alike("float32")] * 2, seed=0, numbers=numbers_of(row), choices=choices_of(row))
    got = {"params": [x.copy() for x in case.params]}
    assert in_one_order(case, got) == (case, got) and in_one_order(case, got)[1] is got
    turned = case.replace(params=[np.asfortranarray(case.params[0]), case.params[1]])
    same, (first, _) = in_one_order(turned, got)[0], turned.params
    assert same is not turned and same.params[0].flags.c_contiguous and not first.flags.c_contiguous


def test_small_arrays_of_noise_are_drawn_once_and_cannot_be_written():
    """A cached array that somebody writes would change later cases."""
    one, same, large, again = (noise([0, 1, 2], shape) for shape in ((7,), (7,), (2000,), (2000,)))
    assert one is same and large is not again and large.tobytes() == again.tobytes()
    with pytest.raises(ValueError, match="read-only"):
        one[0] = 0


def test_where_results_are_not_finite_they_are_equal_or_infinitely_far():
    x, nan = np.ones(2), np.full(2, np.nan)
    assert _away(nan, nan, x) == 0 and _away(nan, x, x) == np.inf == _away(x, np.full(2, np.inf), x)


def test_how_much_of_radams_rho_a_double_loses():
    lost = [_lost_in_double(beta2, count) for beta2 in (0.5, 0.999) for count in (1, 7, 900)]
    assert_kept({"rho in double": str(digits({"lost": lost}))})


@pytest.mark.parametrize("count", [1, 2, 7, 60, 3000])
@pytest.mark.parametrize(("real", "exponent"), [(np.float32, -40), (np.float64, -80)])
def test_scalars_without_rounding(real, exponent, count):
    """Powers, the paper's rho and the step number, beside rational numbers."""
    numbers = {"beta1": 0.9, "beta2": 0.999}
    first, second = (Fraction(float(real(x))) for x in numbers.values())
    power = second**count
    rho = 2 / (1 - second) - 1 - 2 * count * power / (1 - power)
    of_radam = {"beta1_pow": first**count, "beta2_pow": power, "rho": rho}
    for row, of in ((ROUTINES["radam"], of_radam), (row_for("adagrad", ["lr_decay"]), {"step_number": count})):
        assert set(row.scalars) == of.keys()
        for name, right in of.items():
            x = truth(row, name, numbers, {}, count, real)
            value = Fraction(float(high(x))) + Fraction(float(getattr(x, "low", 0)))
            assert abs(value - right) <= Fraction(2) ** exponent * right, name
