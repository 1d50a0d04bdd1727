"""`expect`: values in twice the precision, bounds, what slots may hold of them, and what is refused."""

from fractions import Fraction

import numpy as np
import pytest

from refopt import cpu, oracle
from refopt.checks.dtypes import REMAINDERS, numpy_dtype
from refopt.oracle.bound import storage, sums

pytestmark = pytest.mark.clause("N13")
BF16 = numpy_dtype("bfloat16")


def arrays(count, dtype, seed=0):
    return np.random.default_rng(seed).normal(size=count).astype(dtype)


def test_values_have_twice_the_precision():
    """Those of fp64 are high and low parts."""
    p, g, lr = arrays(50, np.float64), arrays(50, np.float64, 1), 0.1
    found = oracle.expect("sgd", params=[p], grads=[g], lr=lr)["params"][0]
    for k in range(50):
        exact = Fraction(float(p[k])) - Fraction(lr) * Fraction(float(g[k]))
        got = Fraction(float(found.value[k])) + Fraction(float(found.rest[k]))
        assert abs(got - exact) <= abs(exact) * Fraction(2) ** -95
        assert found.low[k] <= found.value[k] <= found.high[k] and found.error[k] < 1e-14


def test_a_ratio_is_that_of_the_error_and_its_bound():
    p, g = arrays(50, np.float32), arrays(50, np.float32, 1)
    found = oracle.expect("sgd", params=[p], grads=[g], lr=0.1)["params"][0]
    for share in (0.5, 1.5, -3.0):
        assert np.allclose(found.ratio(found.value + share * found.error), abs(share), rtol=0.35)
    assert repr(found) == f"Expected(value={found.value}, error={found.error})"


def test_numbers_per_tensor_and_factors():
    p, g = arrays(50, np.float32), arrays(50, np.float32, 1)
    factor = np.full(1, 0.5, np.float32)
    two = oracle.expect("sgd", params=[p, p.copy()], grads=[g, g.copy()], lr=[0.1, 0.2], grad_factor=factor)["params"]
    for found, rate in zip(two, (0.05, 0.1), strict=True):
        assert np.allclose(found.value, p - rate * g.astype(np.float64), atol=1e-7)


def test_what_is_left_alone_may_be_anything():
    p = np.array([1, np.nan, np.inf], np.float32)
    found = oracle.expect("sgd", params=[p], grads=[None], lr=0.25)["params"][0]
    assert found.ratio(p).tolist() == [0, 0, 0] and found.ratio(p + 1)[0] > 1 and found.ratio(p[[0, 0, 2]])[1] > 1


def test_shapes_and_orders_of_axes_are_the_tensors():
    p, g = (arrays(12, np.float32, k).reshape(3, 4).T for k in (0, 1))
    found = oracle.expect("sgd", params=[p], grads=[g], lr=0.25)["params"][0]
    assert found.value.shape == (4, 3) and np.allclose(found.value, p - 0.25 * g.astype(np.float64), atol=0, rtol=1e-14)


def adamw(p, g, **more):
    real = np.float64 if p.dtype == np.float64 else np.float32
    states = dict(moment1=[np.zeros(p.shape, real)], moment2=[np.zeros(p.shape, real)])
    powers = dict(beta1_pow=[np.full(1, 0.875, real)], beta2_pow=[np.full(1, 0.99609375, real)])
    return dict(params=[p], grads=[g], **states, **powers, lr=0.1, beta1=0.875, beta2=0.99609375) | more


@pytest.mark.parametrize("master", ["float32", *REMAINDERS])
def test_masters_and_remainders(master):
    """The exact parameters have a bound; a remainder alone has none."""
    exact, g = arrays(100, np.float32), arrays(100, BF16, 1)
    if master in REMAINDERS:
        p, rest = cpu.remainder.split(exact, master)
    else:
        p, rest = exact.astype(BF16), exact.copy()
    given = adamw(p, g, master_params=[rest])
    expected = oracle.expect("adamw", **given)
    cpu.merged_adamw(**given)
    name = "exact_params" if master in REMAINDERS else "master_params"
    assert set(expected) == {"params", "moment1", "moment2", "beta1_pow", "beta2_pow", name}
    found = cpu.remainder.join(p, rest) if master in REMAINDERS else rest
    assert expected[name][0].ratio(found).max() <= (1 if master == "int8" else 0.8)
    assert expected["params"][0].ratio(p).max() <= 1
    assert expected[name][0].ratio(found + np.float32(1e-4)).max() > 1
    given = dict(params=[p], grads=[g * 0], master_params=[rest], lr=0.1, rounding="stochastic")
    by_chance = oracle.expect("sgd", **given)["params"][0]
    assert ((by_chance.low == by_chance.high).mean() > 0.9) == (master in REMAINDERS)  # its upper half


def test_what_is_skipped_stays():
    p, g = arrays(5, np.float32), arrays(5, np.float32, 1)
    flags = [np.full(1, x, np.float32) for x in (1, -1, np.nan)]
    for more in ({"grads": [None]}, *({"found_inf": flag} for flag in flags)):
        found = oracle.expect("adamw", **adamw(p, g, **more))
        assert set(found["params"][0].error) == {0.0} and list(found["params"][0].value) == list(p.astype(np.float64))
        assert found["beta1_pow"][0].value[0] == 0.875


def test_by_chance_either_neighbour():
    p, g = arrays(1000, BF16), arrays(1000, np.float32, 1)
    found = oracle.expect("sgd", params=[p], grads=[g], lr=0.001, rounding="stochastic")["params"][0]
    for seed in range(5):
        after = p.copy()
        cpu.merged_sgd([after], [g], lr=0.001, rounding="stochastic", seed=seed)
        assert found.ratio(after).max() <= 1
    assert (found.low != found.high).mean() > 0.9
    assert found.ratio((p.astype(np.float32) * np.float32(1 + 2**-6)).astype(BF16)).max() > 1


def test_a_sum_has_the_allowance_that_was_asked_for():
    p, g = arrays(10000, np.float32), arrays(10000, np.float32, 1)
    given = dict(params=[p], grads=[g], velocities=[np.zeros_like(p)], lr=0.1, mu=0.9)
    widths = [oracle.expect("lars_momentum", **given, sum_of=kind)["velocities"][0].error.mean()
              for kind in (14, "random", "any")]
    assert widths[0] < widths[1] / 5 < widths[2] / 25
    assert sums.any_order(100) == 100 and sums.random_data(10**6) == 8000 and sums.declared(3)(100) == 3
    assert sums.declared(300)(100) == 100
    assert sums.random_data(4) == 4 and sums.tree(1024) == 11 and sums.tree(1025) == 12


def test_what_slots_hold_of_a_number_is_what_the_package_stores():
    """Around ties, of either parity."""
    low = np.array([0, 1, 0x7F80, 0x80, 0x7FFF, 0x8000, 0x8001, 0xFFFF], np.uint32)
    exact = np.concatenate([high | low for high in (0x3F80_0000, 0x3F81_0000, 0xBF81_0000)]).view(np.float32)
    for kind in REMAINDERS:
        p, rest = cpu.remainder.split(exact, kind)
        assert [x.tobytes() for x in storage.split(exact, kind)] == [p.tobytes(), rest.tobytes()]
        joined = cpu.remainder.join(p, rest).tobytes()
        assert storage.joined(p, rest).tobytes() == joined and (kind == "int8" or joined == exact.tobytes())
    assert storage.stored(exact, BF16).tobytes() == exact.astype(BF16).astype(np.float32).tobytes()
