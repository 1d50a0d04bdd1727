"""N9: what one step carries to the next: powers, norms, and nothing at all where a step is skipped."""

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from laws.marks import few, forms_of_families, of, pairs, routines
from laws.routines import CARRYING, LARS
from laws.test_n06_reduction import up_to
from refopt import simt
from refopt.oracle.exact.build import SIGNATURES, SMALL, make, step_of
from refopt.oracle.exact.cases import assert_same
from refopt.oracle.exact.lars import gate
from refopt.oracle.exact.laws import reference
from refopt.oracle.exact.placed import Placed, PlacedCase
from refopt.oracle.exact.strategies import FACTORS, FLAGS, KINDS, cases, hyperparameters, sizes

pytestmark = pytest.mark.clause("N9")


def after(case, **steps):
    """The case that begins where another ended."""
    left = reference(case.replace(**steps))
    return case.replace(**{name: case.slots[name] and values for name, values in left.items()})


@routines
@given(data=st.data())
def test_the_reference_has_no_state(routine, data):
    """Each call depends only on the arrays that the previous call left."""
    case = data.draw(cases(routine, max_steps=4, gated=True))
    now = case
    for step in case.steps:
        now = after(now, steps=[step])
    assert_same(now.outcome(), reference(case), "resumed")


def changed(arrays, factor):
    """Arrays of other values."""
    with np.errstate(all="ignore"):
        return [x if x is None else np.asarray(x * x.dtype.type(factor)) for x in arrays]


class Life:
    """A plan whose arrays, numbers, factor and flag are on a device, and the case that the reference makes of it."""

    def __init__(self, machine, case, form):
        self.machine, self.form, self.now, self.grads = machine, form, case, list(case.grads)
        (self.numbers,) = case.steps
        self.placed = PlacedCase(machine, case)
        self.gate = {name: Placed(machine, value) for name, value in gate(1.0).items()}
        self.resume()

    def resume(self):
        """Another plan, of what this one has left."""
        gates = {name: target.array for name, target in self.gate.items()}
        self.plan = self.placed.plan(self.form, **gates, **self.numbers)

    def step(self, numbers, factor, found):
        """A step with new numbers, or some, or those that it has; one whose flag is set is skipped."""
        self.numbers = self.numbers | numbers
        for name, value in gate(factor, found).items():
            self._write(self.gate[name], value)
        self.plan(**numbers)
        self.now = after(self.now, steps=[self.numbers | gate(factor, found)])

    def give(self, absent, factor, shift):
        """Other gradients, in another place, of which some are not there."""
        grads = [None if i in absent else g for i, g in enumerate(changed(self.grads, factor))]
        self._move("grads", grads, shift)

    def move(self, slot, factor, shift):
        """Other arrays of a slot, in another place."""
        self._move(slot, changed(self.now.lists()[slot], factor), shift)

    def write(self, slot, factor):
        """Somebody else writes arrays, and the plan is told."""
        arrays = changed(self.now.lists()[slot], factor)
        for target, value in zip(self.placed.placed[slot], arrays, strict=True):
            if target is not None:
                self._write(target, value)
        self.now = self.now.replace(**{slot: arrays})
        self.plan.refresh()

    def _write(self, target, value):
        target._memory.copy_to_device(Placed(self.machine, value, target.shift)._memory)

    def _move(self, slot, arrays, shift):
        self.placed.placed[slot] = [x if x is None else Placed(self.machine, x, shift) for x in arrays]
        self.placed.slots[slot] = [x if x is None else x.array for x in self.placed.placed[slot]]
        self.plan.rebind(**{slot: self.placed.slots[slot]})
        self.now = self.now.replace(**{slot: arrays})


def events(case):
    """What may happen to a plan: the name of a method of `Life`, and its arguments. Most of it is steps."""
    there = [name for name, xs in case.slots.items() if xs is not None and name != "grads"]
    slots = st.sampled_from([*case.routine.scalars, "params", *there])
    factors, shifts = st.sampled_from([2, 0.5, 0]), st.integers(0, 3)
    numbers = st.sampled_from([{}, {"lr": 0.75}]) | hyperparameters(case.routine, len(case))
    step, write = st.tuples(st.just("step"), numbers, FACTORS, FLAGS), st.tuples(st.just("write"), slots, factors)
    move = st.tuples(st.just("move"), slots, factors, shifts)
    give = st.tuples(st.just("give"), st.sets(st.integers(0, 3)), factors, shifts)
    return up_to(12, st.one_of(step, step, step, write, move, give, st.just(("resume",))))


@pytest.mark.clause("N2", "N4", "N8")
@forms_of_families
@few(2, least=8, data=st.data())
def test_a_plan_carries_the_references_values(machine, routine, form, data):
    """A plan carries the same values between steps as the reference, however arrays and numbers change.

    Steps are taken and skipped; gradients come and go; arrays are moved, or written by somebody else; and a plan is
    dropped midway, and another one built over what it has left.
    """
    case = data.draw(cases(routine, 1, 4, KINDS, max_steps=1, large=False))
    life = Life(machine, case, form)
    for name, *arguments in [*data.draw(events(case)), ("step", {}, 1.0, 0.0)]:
        getattr(life, name)(*arguments)
    life.placed.case = life.now
    assert_same(life.now.outcome(), life.placed.outcome(), "N9")


@pytest.mark.parametrize("dtypes", [SIGNATURES[0], ("bfloat16", "bfloat16", "float32", "uint16")], ids="-".join)
@of(pairs(LARS))
@few(4, lengths=st.lists(sizes(()), max_size=5), found=FLAGS.filter(bool))
@example([*SMALL, 2100], 1.0)
def test_a_skipped_step_touches_nothing(executor, routine, form, dtypes, lengths, found):
    """Once a norm is carried over, the step reads and writes no array, not even masters or remainders."""
    life = Life(executor, make(routine, lengths, dtypes), form)
    life.step({}, 1.0, 0.0)
    with simt.observe() as log:
        life.step({}, np.nan, found)
    assert len(log.launches) == life.plan.launches
    for values in life.placed.slots.values():
        for x in values or ():
            assert (log.bytes_read(x), log.bytes_written(x)) == (0, 0)
    assert_same(life.now.outcome(), life.placed.outcome(), "N9")


@of(pairs(CARRYING))
@few(4, lengths=st.lists(sizes(()), min_size=1, max_size=5), times=st.integers(1, 5))
@example(SMALL, 4)
def test_captured_steps_keep_their_addresses(executor, routine, form, lengths, times):
    """A captured step, and every later one, reads its scalars at the same addresses as before."""
    one = step_of(routine)
    case = make(routine, lengths, steps=[one] * (2 + times))
    placed = PlacedCase(executor, case)
    step = placed.plan(form)
    step(**one)
    with pytest.MonkeyPatch.context() as patch, simt.observe(count=()) as log:
        patch.setattr(executor, "capturing", lambda stream: True)
        step()  # with the numbers that it has: new ones are refused in a capture
    captured = [launch.kernel for launch in log.launches]
    assert captured[-1] == "settle_scalars" and len(captured) == step.launches + 1
    for _ in range(times):  # a replay does what a step does now
        step(**one)
    assert_same(reference(case), placed.outcome(), "captured")
    assert len({group._phase for group in step._steps}) == 1
