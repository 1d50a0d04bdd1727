"""State dictionaries: stopping and going on changes no bit, and what does not fit is refused."""

import copy
import pickle

import numpy as np
import pytest
from laws.routines import OF_EACH_FAMILY

from refopt import cpu, gpu, state
from refopt.catalog import ROUTINES
from refopt.oracle.exact.build import make, step_of
from refopt.oracle.exact.cases import arguments, assert_same
from refopt.oracle.exact.examples import varied
from refopt.oracle.exact.laws import reference
from refopt.oracle.exact.placed import Placed, PlacedCase
from state.cases import changed, refusals, refused

EVERY = list(ROUTINES.values())
slow = pytest.mark.slow
SIGNATURES = [("float32",) * 3, ("float16", "float16", "float32", "float32"), ("bfloat16", "float32", "bfloat16"),
              ("float64",) * 3]
REMAINDER = "bfloat16", "float32", "bfloat16", "uint16"
# Each routine has scalars of its own; what is done about dtypes is the same for all, and about low bits by family.
PAIRS = [
    pytest.param(routine, dtypes, marks=[] if routine.name == "adam" or dtypes == SIGNATURES[0]
                 or (dtypes == REMAINDER and routine in OF_EACH_FAMILY) else slow)
    for routine in EVERY for dtypes in [*SIGNATURES, REMAINDER]]
pairs = pytest.mark.parametrize(("routine", "dtypes"), PAIRS, ids=lambda x: getattr(x, "name", None) or "-".join(x))
SIZES = [3, 1, 0, 7, 70]


def optional_states(routine):
    return tuple(slot.name for slot in routine.slots if slot.optional and slot.name in routine.states)


def run_of(routine, dtypes, seed=0):
    """Four steps of tensors of which one has no gradient: what a step is given again is what the one before had."""
    one, other = step_of(routine), step_of(routine, lr=0.125) | varied(routine, len(SIZES))
    case = make(routine, SIZES, dtypes, seed, [one, other, other, one], optional_states(routine))
    return case.replace(grads=[*case.grads[:3], None, *case.grads[4:]])


def stranger(case, params):
    """The case over arrays of its own that hold the parameters given, and everywhere else what they like."""
    slots = case.lists() | {"params": params}
    spoiled = {slot.name: [None if x is None else np.full_like(x, 0.75) for x in slots[slot.name]]
               for slot in case.routine.slots
               if slot.written and slot.name != "params"}
    return case.replace(**{name: case.slots[name] and x for name, x in (slots | spoiled).items()})


# Going on.


@pairs
def test_going_on(machine, routine, dtypes):
    """Saving, a new plan over other arrays, loading and going on: the bits of not stopping."""
    case = run_of(routine, dtypes)
    expected = reference(case)
    for form in routine.forms:
        placed = PlacedCase(machine, case)
        step = placed.plan(form)
        for numbers in case.steps[:2]:
            step(**numbers)
        saved = pickle.loads(pickle.dumps(step.state_dict()))
        resumed = PlacedCase(machine, stranger(case, placed.outcome()["params"]))
        for numbers in case.steps[2:]:
            step(**numbers)
        assert_same(expected, placed.outcome(), "saving changes nothing")
        step = resumed.plan(form)
        step.load_state_dict(saved)
        step()
        step(**case.steps[3])
        assert_same(expected, resumed.outcome(), f"going on, {form}")


@pytest.mark.parametrize("routine", [
    pytest.param(routine, marks=[slow] * (routine not in OF_EACH_FAMILY)) for routine in EVERY
], ids=lambda routine: routine.name)
def test_loading_into_a_plan_that_has_stepped(machine, routine):
    """What the plan has carried over from its own last step is forgotten."""
    case = run_of(routine, SIGNATURES[1])
    for form in routine.forms:
        placed = PlacedCase(machine, case)
        step = placed.plan(form)
        step(**case.steps[0])
        saved, before = step.state_dict(), placed.outcome()["params"]
        step(**case.steps[1])
        for target, value in zip(placed.placed["params"], before, strict=True):
            target._memory.copy_to_device(Placed(machine, value)._memory)
        step.load_state_dict(saved)
        for numbers in case.steps[1:]:
            step(**numbers)
        assert_same(reference(case), placed.outcome(), f"going back, {form}")


@pairs
def test_going_on_with_numpy(routine, dtypes):
    """The same without a plan: the numbers that are loaded go into the next call."""
    case = run_of(routine, dtypes)
    positional, named = arguments(routine, (ours := case.copy()).slots)
    merged = getattr(cpu, routine.merged_name)
    for numbers in case.steps[:2]:
        merged(*positional, **named, **numbers, **case.choices)
    saved = state.state_dict(routine.name, ours.slots, numbers | case.choices)
    other = stranger(case, [x.copy() for x in ours.params]).copy()
    merged(*positional, **named, **numbers, **case.choices)
    kept = state.load(saved, routine.merged_name, other.slots)
    positional, named = arguments(routine, other.slots)
    merged(*positional, **named, **kept)
    assert_same(ours.outcome(), other.outcome(), "going on with NumPy")


def test_axis_orders(machine):
    """Arrays of any axis order, and scalars of any shape of one element, are saved and loaded element by element."""
    x = np.random.default_rng(0).random((2, 3, 4), np.float32)
    shapes = {"beta1_pow": [(), (1, 1)], "beta2_pow": [(1,), (1,)]}
    slots = {name: [x.transpose(2, 0, 1), x] for name in ("params", "grads", "moment1", "moment2")}
    slots |= {name: [np.full(shape, 0.5, "f4") for shape in pair] for name, pair in shapes.items()}
    on_device = [[Placed(machine, a.copy(order="K")).array for a in values] for values in slots.values()]
    step = gpu.plan("adam", *on_device, lr=0.1)
    saved = step.state_dict()
    for name in ("moment1", "moment2", "beta1_pow"):
        for a, b in zip(saved["slots"][name], slots[name], strict=True):
            assert (a == b).all() and a.shape == b.shape
    turned = copy.deepcopy(saved)
    turned["slots"]["moment1"] = [np.ascontiguousarray(a + 1) for a in saved["slots"]["moment1"]]
    turned["slots"]["beta1_pow"] = [np.full(1, 0.125, "f4")] * 2
    step.load_state_dict(turned)
    again = step.state_dict()["slots"]
    assert all((a == b + 1).all() for a, b in zip(again["moment1"], slots["moment1"], strict=True))
    assert [(a.shape, a.item()) for a in again["beta1_pow"]] == [((), 0.125), ((1, 1), 0.125)]


def test_numbers(machine):
    """Numbers are saved as given, but for those that have not been given; a number that is left out stays."""
    case = make(ROUTINES["momentum"], [3, 2])
    step = PlacedCase(machine, case).plan("merged")
    first = step.state_dict()["hypers"]
    assert first.items() >= {"l2_decay": 0.0, "rescale_grad": 1.0, "use_nesterov": False}.items()
    assert not {"lr", "mu"} & first.keys()
    step.set(lr=[0.1, 0.2], mu=0.9)
    saved = step.state_dict()
    assert saved["hypers"]["lr"] == [0.1, 0.2] and saved["hypers"]["mu"] == 0.9
    step.set(lr=0.3, mu=0.8)
    assert saved["hypers"]["lr"] == [0.1, 0.2]
    del saved["hypers"]["mu"]
    step.load_state_dict(saved)
    assert step.state_dict()["hypers"] == saved["hypers"] | {"mu": 0.8}


# Refused.


REFUSED = {TypeError: [
], ValueError: [
    ("slots.moment2.0", np.ones(3), "state: moment2[0]: expected float32 of shape (3,), got float64 of shape (3,)"),
    ("slots.moment2_max.1", np.zeros(2, "f4"), "state: moment2_max[1]: expected None, got float32 of shape (2,)"),
    ("hypers.epsilon_at", "uncorrected", "state: epsilon_at: expected corrected, as planned, got uncorrected")]}


@refusals(REFUSED)
def test_refused(machine, row):
    """Named, and nothing is modified: no array, no number."""
    error, place, value, message = row
    case = make(ROUTINES["adam"], [3, 2], optional=("moment2_max",))
    case = case.replace(moment2_max=[case.moment2_max[0], None])
    placed = PlacedCase(machine, case)
    step = placed.plan("merged", lr=0.5)
    saved = copy.deepcopy(step.state_dict())
    for name, values in saved["slots"].items():
        for x in values:
            if x is not None:
                x += 1 if name in case.routine.states else -0.125
    saved["hypers"]["lr"] = 0.25
    changed(saved, place, value)
    ours = case.copy()
    for load in (step.load_state_dict,
                 lambda saved: state.load(saved, "adam", ours.slots, choices={"epsilon_at": "corrected"})):
        assert refused(error, message, load, saved) == f"merged_adam: {message}"
    assert_same(case.outcome(), placed.outcome(), message)
    assert_same(case.outcome(), ours.outcome(), message)
    assert step.state_dict()["hypers"]["lr"] == 0.5


def test_refused_targets(machine):
    """Arrays of another machine, and those that cannot be written."""
    case = make(ROUTINES["momentum"], [3, 4])
    saved = state.state_dict("momentum", case.slots)
    frozen = case.copy()
    frozen.velocities[1].flags.writeable = False
    with pytest.raises(ValueError, match=r"velocities\[1\]: expected a writable array, got a read-only one"):
        state.load(saved, "momentum", frozen.slots)
    assert (frozen.velocities[0] == case.velocities[0]).all()
    placed = PlacedCase(gpu.device("executor"), case)
    with pytest.raises(TypeError, match=r"velocities\[0\]: expected a NumPy array, got refopt.simt.\S+DeviceArray"):
        state.state_dict("momentum", case.slots | {"velocities": placed.velocities})
    placed = PlacedCase(machine, case)
    with pytest.raises(TypeError, match=r"velocities\[0\]: expected a device array, got a NumPy array"):
        slots = placed.slots | {"velocities": case.velocities}
        state.load(saved, "momentum", slots, memory=gpu.Transfer(placed.params[0]))


def test_no_copies_into_a_capture(executor, monkeypatch):
    """A host copy has no place in a graph."""
    step = PlacedCase(executor, make(ROUTINES["momentum"], [3])).plan("merged", lr=0.1, mu=0.9)
    saved = step.state_dict()
    monkeypatch.setattr(executor, "capturing", lambda stream: True)
    for call in (step.state_dict, lambda: step.load_state_dict(saved)):
        with pytest.raises(RuntimeError, match="merged_momentum: stream: expected no capture while states are read"):
            call()
