"""N2: a number is rounded once to the arithmetic type, is finite there, and has no sign of zero."""

from functools import partial

import numpy as np
import pytest
from checks.refused import refused
from hypothesis import given
from hypothesis import strategies as st

from laws.marks import both_sides, few, of, pairs, routines
from laws.routines import ALL, implementation
from refopt.checks.dtypes import arithmetic
from refopt.oracle.exact.build import make, step_of
from refopt.oracle.exact.cases import assert_same
from refopt.oracle.exact.laws import reference
from refopt.oracle.exact.strategies import cases

pytestmark = pytest.mark.clause("N2")

KINDS = st.sampled_from([("float32", "float32", "float32", None), ("float64", "float32", "float64", None)])
AVERAGING = tuple(routine for routine in ALL if any(hyper.below == 1 for hyper in routine.hypers))


def beside(x):
    """A number that fp32 rounds to where it rounds x, and -0 for 0."""
    return x * (1 - 2.0**-40) or -x


def rounded(real, x):
    return abs(float(real(x)))


def with_numbers(case, change):
    """The case with each number that need not be whole changed."""
    whole = {hyper.name for hyper in case.routine.hypers if hyper.whole}
    return case.replace(steps=[{
        name: x if name in whole else list(map(change, x)) if isinstance(x, list) else change(x)
        for name, x in step.items()} for step in case.steps])


@both_sides
@few(4, data=st.data())
def test_a_number_is_rounded_once_to_the_type_of_each_tensor(machine, routine, form, data):
    """In a list of several dtypes, fp32 tensors use the rounded numbers, fp64 tensors the numbers; -0 counts as +0."""
    case = with_numbers(data.draw(cases(routine, 0, 4, KINDS, 1, large=False)), beside)
    got = implementation(form, machine)(case)
    for i, p in enumerate(case.params):
        meant = with_numbers(case.only([i]), partial(rounded, arithmetic(p.dtype)))
        assert_same(reference(meant), {slot: arrays[i : i + 1] for slot, arrays in got.items()}, f"N2, tensor {i}")


def first_averages(routine, dtype, beta):
    """A first step of averages of 0, by a gradient of 1."""
    betas = {hyper.name: beta for hyper in routine.hypers if hyper.below == 1}
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
    left = reference(first_averages(routine, "float64", 0.75))
    there = {name: left[name][0] for name in routine.states if left[name] and left[name][0] is not None}
    return [name for name, x in there.items() if x[0] == 0.25]


@of(pairs(AVERAGING, "reference"))
@given(beta=st.floats(0.5, 1 - 2.0**-24))
def test_one_minus_beta_is_one_subtraction_of_the_rounded_beta(machine, routine, form, beta):
    """A gradient of 1 leaves it in averages of 0; subtracted in double and then rounded, it would differ."""
    left = implementation(form, machine)(first_averages(routine, "float32", beta))
    assert averages(routine)
    assert_same({name: [np.full(1, 1 - np.float32(beta))] for name in averages(routine)}, left, "N2")


FORBIDDEN = st.one_of(st.floats(max_value=-(2.0**-149)), st.sampled_from([np.nan, np.inf]))


@routines
@few(4, value=FORBIDDEN, count=st.integers(2, 4))
def test_numbers_out_of_range_are_refused(machine, routine, value, count):
    """Numbers below their bound, not finite, or rounded to a forbidden value; nothing is modified."""
    case = make(routine, [4] * count)
    for hyper in routine.hypers:
        name, bound = hyper.name, "above 0" if hyper.positive else "at least 0"
        bound += f" and below {hyper.below:.10g}" if hyper.below < np.inf else ""
        kind = "whole number" if hyper.whole else "finite float32"
        beyond = [1.0, 1 - 2**-30] if hyper.below == 1 else []  # the second rounds to the first
        for x in (value, *beyond, *([0.0] if hyper.positive else [])):
            message = f"{name}: expected a {kind} {bound}, got {x!r}"
            refused(machine, case, step_of(routine, **{name: x}), ValueError, message)
        message, error = f"{name}: expected one number for all tensors, got {count + 1} values", TypeError
        if hyper.per_tensor:
            message, error = f"{name}: expected one number or one per tensor, {count}, got {count + 1}", ValueError
        refused(machine, case, step_of(routine, **{name: [0.1] * (count + 1)}), error, message)
    for name, values in routine.choices.items():
        message = f"{name}: expected one of {', '.join(map(str, values))}, got 'elsewhere'"
        refused(machine, case, step_of(routine) | {name: "elsewhere"}, ValueError, message)
