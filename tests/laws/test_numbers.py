"""Hyperparameters, on the CPU and in the kernels: what the arithmetic makes of the numbers that are given."""

import numpy as np
import pytest

from refopt.catalog import ROUTINES
from refopt.oracle.exact.build import make, step_of
from refopt.oracle.exact.cases import assert_same
from refopt.oracle.exact.laws import reference
from refopt.oracle.exact.placed import kernels

pytestmark = pytest.mark.clause("N2")

FORMS = [(routine, form) for routine in ROUTINES.values() for form in ("reference", routine.merged_form)]
forms = pytest.mark.parametrize(("routine", "form"), FORMS, ids=lambda x: getattr(x, "name", x))
# The state that holds (1 - beta) * g, or times g * g, after a first step.
AVERAGES = {
    "adam": {"beta1": "moment1", "beta2": "moment2"},
    "adamw": {"beta1": "moment1", "beta2": "moment2"},
    "rmsprop": {"rho": "mean_square"},
    "lion": {"beta2": "moment"},
    "adadelta": {"rho": "avg_squared_grad"},
    "adamax": {"beta1": "moment"},
    "nadam": {"beta1": "moment1", "beta2": "moment2"},
    "radam": {"beta1": "moment1", "beta2": "moment2"},
    "lamb": {"beta1": "moment1", "beta2": "moment2"},
    "novograd": {"beta1": "moment"},
}
WITH_AVERAGES = [(row, form) for row, form in FORMS if row.name in AVERAGES]


def implementation(form, machine):
    return reference if form == "reference" else kernels(form, machine)


@pytest.mark.parametrize(("routine", "form"), WITH_AVERAGES, ids=lambda x: getattr(x, "name", x))
def test_one_minus_beta_is_one_subtraction_of_the_rounded_beta(machine, routine, form):
    """A gradient of 1 leaves it in averages of 0. Formed in double and rounded it would be another number."""
    betas = dict.fromkeys(AVERAGES[routine.name], 0.9)
    choices = {"grad_averaging": True} if "grad_averaging" in routine.choices else {}
    step = step_of(routine) | betas | {"rescale_grad": 1.0}
    step |= dict.fromkeys({"epsilon", "weight_decay"} & step.keys(), 0.0)
    case = make(routine, [1], steps=[step], **choices)
    for name in (*routine.states, *(n for n in routine.scalars if n == "second_moment")):
        if case.slots[name]:
            case.slots[name][0][...] = 0
    case.grads[0][...] = 1
    left = implementation(form, machine)(case)
    expected = np.float32(1) - np.float32(0.9)
    assert expected != np.float32(1 - 0.9)
    assert_same({n: [np.full(1, expected)] for n in AVERAGES[routine.name].values()}, left, "N2")


@forms
def test_a_number_is_rounded_once_and_zero_has_no_sign(machine, routine, form):
    """A number and its rounding to fp32 give the same bits, and so do -0 and +0."""
    run = implementation(form, machine)
    for hyper in routine.hypers:
        if hyper.whole:
            continue
        given = step_of(routine)[hyper.name]
        pairs = [(given, float(np.float32(given)))] + [(-0.0, 0.0)] * (not hyper.positive)
        for pair in pairs:
            one, other = (run(make(routine, [5], steps=[step_of(routine, **{hyper.name: x})])) for x in pair)
            assert_same(one, other, f"N2, {hyper.name} of {pair}")
