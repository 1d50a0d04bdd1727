"""Every routine refuses bad input by name and index, on both sides, and has touched nothing then."""

import numpy as np
import pytest

from checks.refused import call, refused
from refopt import cpu, gpu
from refopt.catalog import ROUTINES
from refopt.oracle.exact.build import make, step_of
from refopt.oracle.exact.cases import arguments, assert_same
from refopt.oracle.exact.placed import PlacedCase

routines = pytest.mark.parametrize("routine", ROUTINES.values(), ids=lambda routine: routine.name)


def spoiled(routine, slot, change, count=2):
    """A case with one entry of a slot, the last, changed."""
    case = make(routine, [4] * count)
    values = list(case.slots[slot])
    values[-1] = change(values[-1])
    return case.replace(**{slot: values})


@pytest.mark.clause("N1")
@routines
def test_shape_and_dtype(machine, routine):
    step = step_of(routine)
    for slot in ("grads", *(name for name in routine.states if make(routine, [1]).slots[name])):
        message = f"{slot}[1]: expected shape (4,), as params[1] has, got (5,)"
        refused(machine, spoiled(routine, slot, lambda x: np.ones(5, x.dtype)), step, ValueError, message)
    for slot in (*routine.states, *routine.scalars):
        if make(routine, [1]).slots[slot]:
            coded = (" or bfloat16" + " or uint8" * routine.elementwise) * (slot in routine.states)
            message = f"{slot}[1]: expected float32{coded}, got float64"
            refused(machine, spoiled(routine, slot, lambda x: x.astype(np.float64)), step, TypeError, message)
    for slot in routine.scalars:
        message = f"{slot}[1]: expected one element, got shape (2,)"
        refused(machine, spoiled(routine, slot, lambda x: np.ones(2, x.dtype)), step, ValueError, message)
    message = "grads[1]: expected a dtype that widens to float32, got float64"
    refused(machine, spoiled(routine, "grads", lambda x: x.astype(np.float64)), step, TypeError, message)


@routines
def test_memory(machine, routine):
    """Overlaps, read-only arrays, gaps, and arrays of the other side."""
    case = make(routine, [4, 4])
    case = case.replace(params=[case.params[0], case.params[0]])
    with pytest.raises(ValueError, match=r"params\[\d\]: expected memory of its own, got an overlap with params\[\d\]"):
        call(cpu, routine, case.slots, case.steps[0])
    for slot, optional in ((x.name, x.optional) for x in routine.slots if x.written and x.name != "master_params"):
        case = make(routine, [4, 4], optional=(slot,) * optional)
        case.slots[slot][1].flags.writeable = False
        before = case.copy().outcome()
        with pytest.raises(ValueError, match=rf"{slot}\[1\]: expected a writable array, got a read-only one"):
            call(cpu, routine, case.slots, case.steps[0])
        assert_same(before, case.outcome(), slot)
    case = make(routine, [4, 4]).replace(grads=[np.ones(4, np.float32), np.ones(8, np.float32)[::2]])
    with pytest.raises(ValueError, match=r"grads\[1\]: expected a dense array, got strides \(8,\) for \(4,\)"):
        call(cpu, routine, case.slots, case.steps[0])
    case = make(routine, [4, 4])
    slots = PlacedCase(machine, case).slots
    with pytest.raises(TypeError, match=r"grads\[0\]: expected a device array, got a NumPy array"):
        call(gpu, routine, slots | {"grads": case.grads}, case.steps[0])
    with pytest.raises(TypeError, match=r"grads\[0\]: expected a NumPy array, got"):
        call(cpu, routine, case.slots | {"grads": slots["grads"]}, case.steps[0])


@routines
def test_missing_arguments(machine, routine):
    if any(hyper.default is None for hyper in routine.hypers):
        positional, _ = arguments(routine, PlacedCase(machine, make(routine, [4])).slots)
        missing = rf"^{routine.merged_name}: missing a required (keyword-only )?argument: 'lr'$"
        with pytest.raises(TypeError, match=missing):
            getattr(gpu, routine.merged_name)(*positional)
