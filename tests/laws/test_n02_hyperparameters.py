"""N2: a number is rounded once to the arithmetic type, is finite there, and has no sign of zero."""

import numpy as np
import pytest
from checks.refused import refused

from laws.marks import implementations, of, pairs, routines
from laws.routines import ALL, implementation
from refopt.oracle.exact.build import make, step_of
from refopt.oracle.exact.cases import assert_same
from refopt.oracle.exact.laws import reference

pytestmark = pytest.mark.clause("N2")

BETA = 0.9
AVERAGING = tuple(routine for routine in ALL if any(hyper.below == 1 for hyper in routine.hypers))


@implementations
def test_a_number_is_rounded_once_and_zero_has_no_sign(machine, routine, form):
    """A number and its rounding to fp32 give the same bits, and so do -0 and +0."""
    run = implementation(form, machine)
    for hyper in routine.hypers:
        if hyper.whole:
            continue
        given = step_of(routine)[hyper.name]
        for pair in [(given, float(np.float32(given)))] + [(-0.0, 0.0)] * (not hyper.positive):
            one, other = (run(make(routine, [5], steps=[step_of(routine, **{hyper.name: x})])) for x in pair)
            assert_same(one, other, f"N2, {hyper.name} of {pair}")


def first_averages(routine, dtype):
    """A first step of averages of 0, by a gradient of 1."""
    betas = {hyper.name: BETA for hyper in routine.hypers if hyper.below == 1}
    choices = {"grad_averaging": True} if "grad_averaging" in routine.choices else {}
    step = step_of(routine) | betas | {"rescale_grad": 1.0}
    step |= dict.fromkeys({"epsilon", "weight_decay"} & step.keys(), 0.0)
    case = make(routine, [1], (dtype,) * 3, steps=[step], **choices)
    for name in (*routine.states, *(n for n in routine.scalars if n == "second_moment")):
        if case.slots[name]:
            case.slots[name][0][...] = 0
    case.grads[0][...] = 1
    return case


def averages(routine):
    """The states that hold 1 - beta then, as fp64 has it."""
    left = reference(first_averages(routine, "float64"))
    there = {name: left[name][0] for name in routine.states if left[name] and left[name][0] is not None}
    return [name for name, x in there.items() if abs(x[0] - (1 - BETA)) < 1e-9]


@of(pairs(AVERAGING, "reference"))
def test_one_minus_beta_is_one_subtraction_of_the_rounded_beta(machine, routine, form):
    """A gradient of 1 leaves it in averages of 0. Formed in double and rounded it would be another number."""
    left = implementation(form, machine)(first_averages(routine, "float32"))
    expected = np.float32(1) - np.float32(BETA)
    assert expected != np.float32(1 - BETA) and averages(routine)
    assert_same({name: [np.full(1, expected)] for name in averages(routine)}, left, "N2")


@implementations
def test_each_tensor_has_numbers_of_its_own_type(machine, routine, form):
    """In a list of fp32 and fp64 tensors, each computes with numbers rounded to its own."""
    double, single = (make(routine, [5], (dtype,) * 3) for dtype in ("float64", "float32"))
    both = {name: values and values + single.slots[name] for name, values in double.slots.items()}
    got = implementation(form, machine)(double.replace(**both))
    for k, alone in enumerate((double, single)):
        assert_same(reference(alone), {slot: arrays[k : k + 1] for slot, arrays in got.items()}, "N2")


@routines
def test_numbers_out_of_range_are_refused(machine, routine):
    """Below their bound, not finite, or rounded to what they may not be; and no byte is changed then."""
    case = make(routine, [4, 4])
    for name, hyper in {hyper.name: hyper for hyper in routine.hypers}.items():
        bound = "above 0" if hyper.positive else "at least 0"
        bound += f" and below {hyper.below:.10g}" if hyper.below < np.inf else ""
        kind = "whole number" if hyper.whole else "finite float32"
        beyond = [1.0, 1 - 2**-30] if hyper.below == 1 else []  # the second rounds to the first
        for value in (-1.0, np.nan, np.inf, *beyond, *([0.0] if hyper.positive else [])):
            message = f"{name}: expected a {kind} {bound}, got {value!r}"
            refused(machine, case, step_of(routine, **{name: value}), ValueError, message)
        if hyper.per_tensor:
            message = f"{name}: expected one number or one per tensor, 2, got 3"
            refused(machine, case, step_of(routine, **{name: [0.1] * 3}), ValueError, message)
        else:
            message = f"{name}: expected one number for all tensors, got 2 values"
            refused(machine, case, step_of(routine, **{name: [0.1] * 2}), TypeError, message)
    for name, values in routine.choices.items():
        message = f"{name}: expected one of {', '.join(map(str, values))}, got 'elsewhere'"
        refused(machine, case, step_of(routine) | {name: "elsewhere"}, ValueError, message)
