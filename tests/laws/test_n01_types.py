"""N1: loads widen exactly, arithmetic is fp32, or fp64 for fp64 parameters, and a store rounds once."""

import numpy as np
import pytest
from checks.refused import refused

from laws.marks import both_sides, routines
from laws.routines import implementation
from refopt.checks.dtypes import numpy_dtype
from refopt.oracle.exact.build import SMALL, make, step_of
from refopt.oracle.exact.cases import assert_same
from refopt.oracle.exact.laws import reference

pytestmark = pytest.mark.clause("N1")
NARROW = pytest.mark.parametrize("dtype", ["float16", "bfloat16"])


def widened(case, dtype):
    """The case with all arrays in another dtype, of the same values."""
    lists = {name: values and [x.astype(dtype) for x in values] for name, values in case.slots.items()}
    return case.replace(**lists)


@NARROW
@both_sides
def test_a_step_widens_what_it_loads_and_rounds_once_what_it_stores(machine, routine, form, dtype):
    """16-bit parameters and gradients leave what fp32 ones of their values leave, rounded to nearest even."""
    case = make(routine, [*SMALL, 1100], (dtype, dtype, "float32"))
    expected = reference(widened(case, np.float32))
    expected["params"] = [x.astype(numpy_dtype(dtype)) for x in expected["params"]]
    assert_same(expected, implementation(form, machine)(case), "N1")


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
@both_sides
def test_the_gradients_dtype_is_independent_of_the_parameters(machine, routine, form, dtype):
    """Gradients of any dtype that is no wider than the arithmetic leave what their values leave in it."""
    for real in ("float32", "float64"):
        case = make(routine, [*SMALL, 1100], (real, dtype, real))
        expected = reference(case.replace(grads=[g.astype(real) for g in case.grads]))
        assert_same(expected, implementation(form, machine)(case), "N1")


@NARROW
@both_sides
def test_arithmetic_is_that_of_the_parameter_that_is_exact(machine, routine, form, dtype):
    """With an fp32 master the step is the master's, and the parameter its rounding."""
    choices = {"norm_of": "master"} if "norm_of" in routine.choices else {}
    case = make(routine, [*SMALL, 1100], (dtype, dtype, "float32", "float32"), **choices)
    alone = make(routine, [*SMALL, 1100], ("float32",) * 3, **choices)
    alone = alone.replace(**{name: case.slots[name] for name in case.slots if name not in ("master_params", "grads")})
    alone = alone.replace(params=case.master_params, grads=[g.astype(np.float32) for g in case.grads])
    expected = reference(alone)
    got = implementation(form, machine)(case)
    assert_same({"master_params": expected["params"]}, {"master_params": got["master_params"]}, "N1")
    rounded = [x.astype(numpy_dtype(dtype)) for x in expected["params"]]
    assert_same({"params": rounded}, {"params": got["params"]}, "N1")


@routines
def test_a_gradient_wider_than_the_arithmetic_is_refused(machine, routine):
    """As are states of neither the parameter's nor the arithmetic's dtype; and no byte is changed then."""
    case = make(routine, [4, 4])
    for slot in ("grads", *(name for name in routine.states if case.slots[name])):
        wide = [case.slots[slot][0], case.slots[slot][1].astype(np.float64)]
        expected = "a dtype that widens to float32" if slot == "grads" else "float32"
        message = f"{slot}[1]: expected {expected}, got float64"
        refused(machine, case.replace(**{slot: wide}), step_of(routine), TypeError, message)
