"""Variants of routines: by default they are the catalogue's rules, to the bit; a step that is another one is named."""

import numpy as np
import pytest

from refopt import cpu, oracle
from refopt.catalog import ROUTINES as OWN
from refopt.oracle import variants
from refopt.oracle.cases import Dtypes, draw, number
from refopt.oracle.exact.cases import assert_same, runner
from refopt.oracle.variants import VARIANTS, added, neutral

pytestmark = pytest.mark.clause("N13")
L1 = dict(dtypes=["float32"], laws=["L1"])


def drawn(row, choices=None, numbers=None, count=3, dtype="float32"):
    """A case of a row, none of whose numbers is neutral unless it is named."""
    of_row = {hyper.name: number(hyper) for hyper in row.hypers} | {"rescale_grad": 1.0} | (numbers or {})
    every = {name: values[0] for name, values in row.choices.items()} | (choices or {})
    optional = [slot.name for slot in row.slots if slot.optional and slot.name != "master_params"]
    kinds = [Dtypes(dtype, dtype, dtype)]
    return draw(row, [(40,)], kinds, seed=0, numbers=of_row, choices=every, optional=optional, count=count)


@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16"])
@pytest.mark.parametrize("name", VARIANTS)
def test_by_default_they_are_the_catalogues(name, dtype):
    """Choices and numbers at their defaults change no bit."""
    row, own = VARIANTS[name].row, OWN[name]
    numbers, choices = neutral(name)
    plain = drawn(row, numbers=numbers, dtype=dtype)
    expected = runner(getattr(cpu, own.merged_name))(drawn(own, dtype=dtype))
    got = variants_step(row)(plain)
    assert_same(expected, {slot: got[slot] for slot in expected}, "by default")
    assert added(name) == {*numbers, *choices} and added(name)


def variants_step(row):
    return runner(variants.step_of(row))


@pytest.mark.parametrize("name", VARIANTS)
def test_choices_of_the_catalogue_stay(name):
    """Its slots, numbers and choices come first, with the same defaults, and no choice has other values."""
    row, own = VARIANTS[name].row, OWN[name]
    assert {*own.slots} <= {*row.slots} and {*own.hypers} <= {*row.hypers}
    assert own.choices.items() <= row.choices.items()
    assert all(slot.optional and slot.scalar for slot in {*row.slots} - {*own.slots})


def adamax(params, grads, moment, inf_norm, beta1_pow, *, lr, beta1, beta2, epsilon):
    """PyTorch's formula."""
    for p, g, m, n, power in zip(params, grads, moment, inf_norm, beta1_pow, strict=True):
        real = p.dtype.type
        m[...] = real(beta1) * m + (1 - real(beta1)) * g
        n[...] = np.maximum(real(beta2) * n, abs(g) + real(epsilon))
        p -= real(lr) / (1 - power) * m / n
        power *= real(beta1)


def test_a_step_is_told_which_variant_it_is():
    report = oracle.check("adamax", adamax, set={"epsilon_at": "gradient"}, **L1)
    report.raise_if_failed()
    assert not report.of("skipped")


def test_a_variant_that_was_not_asked_for_is_named():
    report = oracle.check("adamax", adamax, **L1)
    assert report.wrong == ["L1"]
    assert "epsilon_at=gradient: epsilon on the gradient's size, as PyTorch and optax have it (100 %" in str(report)

    def on_the_norm(params, grads, moment, inf_norm, beta1_pow, *, lr, beta1, beta2, epsilon):
        numbers = dict(lr=lr, beta1=beta1, beta2=beta2, epsilon=epsilon)
        cpu.merged_adamax(params, grads, moment, inf_norm, beta1_pow, **numbers)

    report = oracle.check("adamax", on_the_norm, set={"epsilon_at": "gradient"}, **L1)
    assert "epsilon_at=norm: epsilon on the norm before it fades" in str(report)


def test_expect_takes_variants():
    p, g = (np.linspace(-1, 1, 10, dtype=np.float32) + np.float32(k) for k in (0.25, 1.5))
    given = dict(moment=[0 * p], inf_norm=[0 * p], beta1_pow=[np.full(1, 0.875, np.float32)], lr=0.25, beta1=0.875)
    with_decay = dict(weight_decay=0.5, epsilon_at="gradient", epsilon=0.25)
    expected = oracle.expect("adamax", params=[p], grads=[g], **given, **with_decay)
    after = p.copy(), 0 * p, 0 * p, np.full(1, 0.875, np.float32)
    lists = [[after[0]], [g + np.float32(0.5) * p], [after[1]], [after[2]], [after[3]]]
    adamax(*lists, lr=0.25, beta1=0.875, beta2=0.999, epsilon=0.25)
    assert expected["params"][0].ratio(after[0]).max() <= 1 and expected["inf_norm"][0].ratio(after[2]).max() <= 1
    plain = oracle.expect("adamax", params=[p], grads=[g], **given, epsilon=0.25)
    assert plain["params"][0].ratio(after[0]).min() > 1
