"""inf and NaN in elementwise routines, on the CPU and in the kernels: where they go, and where not."""

import numpy as np
import pytest
from maps.non_finite import GATE, left

from refopt.catalog import ROUTINES
from refopt.oracle.exact.build import make, step_of
from refopt.oracle.exact.cases import assert_same
from refopt.oracle.exact.laws import reference
from refopt.oracle.exact.placed import kernels

pytestmark = pytest.mark.clause("N12")

ELEMENTWISE = [routine for routine in ROUTINES.values() if routine.elementwise]
routines = pytest.mark.parametrize("routine", ELEMENTWISE, ids=lambda routine: routine.name)
implementations = pytest.mark.parametrize("form", ["reference", "merged"])


def case_of(routine):
    optional = tuple(slot.name for slot in routine.slots if slot.optional and slot.name != "master_params")
    return make(routine, [6, 2], steps=[step_of(routine)] * 2, optional=optional)


@routines
@implementations
@pytest.mark.parametrize("value", [np.inf, -np.inf, np.nan])
def test_an_element_affects_itself_alone(machine, routine, form, value):
    """All others keep the bits that they have without it, after two steps; a NaN gradient or parameter stays."""
    run = reference if form == "reference" else kernels(form, machine)
    clean = run(case_of(routine))
    for slot in ("params", "grads", *routine.states):
        case = case_of(routine)
        case.slots[slot][0][2] = value
        left = run(case)
        assert slot in routine.states or not np.isnan(value) or np.isnan(left["params"][0][2])
        for name, arrays in left.items():
            if name in ("params", *routine.states):
                arrays[0][2] = clean[name][0][2]
        assert_same(clean, left, f"N12, {value} in {slot}")


@routines
@implementations
def test_a_scalar_affects_its_tensor(machine, routine, form):
    """A NaN in a carried scalar stays there, and reaches no other tensor."""
    run = reference if form == "reference" else kernels(form, machine)
    clean = run(case_of(routine))
    for slot in routine.scalars:
        case = case_of(routine)
        case.slots[slot][0][...] = np.nan
        left = run(case)
        assert np.isnan(left[slot][0]).all()
        second, others = ({name: arrays[1:] for name, arrays in states.items()} for states in (clean, left))
        assert_same(second, others, f"N12, NaN in {slot}")


@pytest.mark.parametrize("routine", ROUTINES.values(), ids=lambda routine: routine.name)
def test_infinity_of_either_sign_does_the_same(routine):
    """What docs/non-finite.md says of inf, and of no sign that a slot cannot have."""
    for slot in (*(slot.name for slot in routine.slots if slot.signed and slot.name != "master_params"), *GATE):
        assert left(routine, slot, np.inf) == left(routine, slot, -np.inf), slot
