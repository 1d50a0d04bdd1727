"""N1: loads widen exactly, arithmetic is fp32, or fp64 for fp64 parameters, and a store rounds once."""

import numpy as np
import pytest
from checks.refused import refused
from hypothesis import strategies as st

from laws.marks import both_sides, few, routines
from laws.routines import implementation
from refopt.checks.dtypes import REMAINDERS, arithmetic
from refopt.cpu.remainder import join, split
from refopt.oracle.exact.build import make, step_of
from refopt.oracle.exact.cases import assert_same
from refopt.oracle.exact.laws import reference
from refopt.oracle.exact.strategies import cases, storage

pytestmark = pytest.mark.clause("N1")


def exact(p, master):
    """The exact parameter: that with its remainder, the master, or the parameter itself."""
    return p if master is None else np.asarray(join(p, master)) if master.dtype.name in REMAINDERS else master


def widened(case):
    """The case with all arrays of a tensor in its arithmetic type, of the same values."""
    lists = case.lists()
    lists["params"] = list(map(exact, lists["params"], lists.pop("master_params")))
    real = [arithmetic(p.dtype) for p in case.params]
    wide = {name: [x if x is None else x.astype(to) for x, to in zip(xs, real, strict=True)]
            for name, xs in lists.items()}
    return case.replace(**wide, master_params=None)


def stored(left, case):
    """What a step leaves of a widened case, rounded once to the arrays of the case that have a gradient."""
    lists = case.lists()
    with np.errstate(all="ignore"):
        pairs = [(x, None) if like is None else split(x, like.dtype.name) if like.dtype.name in REMAINDERS else (x, x)
                 for x, like in zip(left["params"], lists["master_params"], strict=True)]
        left |= {"params": [p for p, _ in pairs], "master_params": [r for _, r in pairs]}
        return {name: [was if was is None or g is None else np.asarray(x).astype(was.dtype)
                       for x, was, g in zip(xs, lists[name], case.grads, strict=True)] for name, xs in left.items()}


@pytest.mark.clause("N15")
@both_sides
@few(4, data=st.data())
def test_a_step_widens_what_it_loads_and_rounds_once_what_it_stores(machine, routine, form, data):
    """A step gives the rounded result of a step on arrays of the arithmetic type; exact with a master or a remainder.

    A routine with norms may read states again as it has stored them, so its states are wide, and its norm the master's.
    """
    fixed = {"norm_of": "master"} if "norm_of" in routine.choices else {}
    fixed |= {"rounding": "nearest"} if "rounding" in routine.choices else {}
    case = data.draw(cases(routine, kinds=storage(wide=not routine.elementwise), max_steps=1, **fixed))
    assert_same(stored(reference(widened(case)), case), implementation(form, machine)(case), "N1")


@routines
@few(4, count=st.integers(1, 5), data=st.data())
def test_a_gradient_wider_than_the_arithmetic_is_refused(machine, routine, count, data):
    """So are states of neither the parameter's nor the arithmetic dtype; nothing is modified."""
    case, wrong = make(routine, [4] * count), data.draw(st.integers(0, count - 1))
    for slot in ("grads", *(name for name in routine.states if case.slots[name])):
        wide = [x.astype(np.float64) if i == wrong else x for i, x in enumerate(case.slots[slot])]
        stored = "float32 or bfloat16" + " or uint8" * routine.elementwise
        expected = "a dtype that widens to float32" if slot == "grads" else stored
        message = f"{slot}[{wrong}]: expected {expected}, got float64"
        refused(machine, case.replace(**{slot: wide}), step_of(routine), TypeError, message)
