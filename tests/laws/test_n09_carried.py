"""N9: what one step carries to the next: powers, norms, and nothing at all where a step is skipped."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from laws.marks import few, forms_of_families, of, pairs, routines
from laws.routines import CARRYING, LARS, NOVOGRAD, WITH_NORMS, optional_states
from refopt import cpu, simt
from refopt.oracle.exact import laws
from refopt.oracle.exact.build import SIGNATURES, SMALL, make, step_of
from refopt.oracle.exact.cases import assert_same, runner
from refopt.oracle.exact.examples import varied
from refopt.oracle.exact.lars import gate, gated
from refopt.oracle.exact.laws import reference
from refopt.oracle.exact.placed import Placed, PlacedCase, kernels
from refopt.oracle.exact.strategies import cases

pytestmark = pytest.mark.clause("N9")
STORAGE = [*SIGNATURES[::2], ("float64",) * 3]
GATED = dict(gated())
RESUMED = [STORAGE[1], *(pytest.param(x, marks=pytest.mark.slow) for x in STORAGE[::2])]


def after(case, outcome):
    """The case that begins where another ended."""
    return case.replace(**{name: case.slots[name] and values for name, values in outcome.items()})


def write(machine, placed, slot, values):
    """Overwrite a slot's arrays on the device, as somebody else would."""
    for target, value in zip(placed.placed[slot], values, strict=True):
        target._memory.copy_to_device(Placed(machine, value)._memory)


def planned(machine, case, form, **given):
    """The arrays of a case, a plan with a factor and a flag over them, and how to set the two."""
    placed = PlacedCase(machine, case)
    targets = {name: Placed(machine, value) for name, value in gate(1.0).items()}
    step = placed.plan(form, **{name: target.array for name, target in targets.items()}, **given)

    def set_gate(factor, found=0.0):
        for name, value in gate(factor, found).items():
            targets[name]._memory.copy_to_device(Placed(machine, value)._memory)

    return placed, step, set_gate


# Steps that are skipped.


def gates(factors, flags):
    return [gate(*pair) for pair in zip(factors, flags, strict=True)]


@pytest.mark.clause("N8")
@pytest.mark.parametrize("flags", [[0, 1, 0, 1, 1, 0, 0], [1, 0, 1, 1, 0, 0, 1]], ids=["taken first", "skipped first"])
@pytest.mark.parametrize("dtypes", RESUMED, ids="-".join)
@forms_of_families
def test_taken_and_skipped_steps_in_any_order(machine, routine, form, dtypes, flags):
    """They leave the reference's bits, whatever the factors are."""
    numbers = [step_of(routine, lr=0.1 * k) for k in range(1, 8)]
    steps = [step | each for step, each in zip(numbers, gates([1, 0.3, 3, 1, 0.7, 0, 2], flags), strict=True)]
    laws.same_bits_as_reference(kernels(form, machine), make(routine, SMALL, dtypes, steps=steps))


@pytest.mark.clause("N8")
@pytest.mark.parametrize(("routine", "form", "name"), [
    pytest.param(*row, name, id=f"{row[0].name}-{row[1]}-{name}", marks=[pytest.mark.slow] * (
        row[1] != "carried_norm" or (name.endswith("skipped first") and not name.startswith("float32"))))
    for row in pairs(LARS) for name in GATED])
def test_taken_and_skipped_steps_of_many_tiles(machine, routine, form, name):
    """The same where norms are carried, with factors and flags of every kind."""
    laws.same_bits_as_reference(kernels(form, machine), GATED[name])


@pytest.mark.parametrize("found", [1.0, np.inf, np.nan])
@forms_of_families
def test_a_skipped_step_changes_no_bit(machine, routine, form, found):
    """Neither parameters nor states nor powers, whatever the gradients are."""
    case = make(routine, SMALL, steps=[step_of(routine) | gate(np.nan, found)] * 3)
    case.grads[0][0] = np.nan
    before = case.copy().outcome()
    for run in (reference, kernels(form, machine)):
        assert_same(before, run(case), "N9")


@pytest.mark.parametrize("dtypes", [SIGNATURES[0], ("bfloat16", "bfloat16", "float32", "uint16")], ids="-".join)
@of(pairs(LARS))
def test_a_skipped_step_touches_nothing(executor, routine, form, dtypes):
    """Once there is a norm to carry over, no array is read or written, masters and remainders included."""
    placed, step, set_gate = planned(executor, make(routine, [*SMALL, 2100], dtypes), form, **step_of(routine))
    step()
    before = placed.outcome()
    set_gate(np.nan, 1.0)
    with simt.observe() as log:
        step()
    assert len(log.launches) == step.launches
    for values in placed.slots.values():
        for x in values or ():
            assert (log.bytes_read(x), log.bytes_written(x)) == (0, 0)
    assert_same(before, placed.outcome(), "N9")


FACTORS, FLAGS = st.sampled_from([1.0, 0.3, 1 / 65536, 3.0, 0.0]), st.sampled_from([0.0, 0.0, 1.0, np.nan])


@pytest.mark.clause("N8")
@of(pairs(WITH_NORMS))
@given(data=st.data())
@few(2)
def test_any_list_of_tensors_taken_or_skipped(machine, routine, form, data):
    """For every list of tensors, and merged as one at a time."""
    case = data.draw(cases(routine, max_tensors=4, large=False, max_steps=4))
    case = case.replace(steps=[step | data.draw(st.builds(gate, FACTORS, FLAGS)) for step in case.steps])
    laws.same_bits_as_reference(kernels(form, machine), case)
    laws.merged_is_one_at_a_time(reference, case)


# A plan over many steps.


@pytest.mark.parametrize("dtypes", RESUMED, ids="-".join)
@forms_of_families
def test_stopping_and_going_on_changes_no_bit(machine, routine, form, dtypes):
    """A plan is dropped midway, and one built anew over what it has left."""
    steps = [step_of(routine, lr=lr) for lr in (0.5, 0.25, 0.125, 0.1)]
    steps[3] |= {"rescale_grad": 2.0}
    case = make(routine, [*SMALL, 2100], dtypes, steps=steps)
    first = kernels(form, machine)(case.replace(steps=steps[:2]))
    assert_same(reference(case), kernels(form, machine)(after(case, first).replace(steps=steps[2:])), "resumed")


@routines
def test_the_reference_has_no_state(routine):
    """Calling it step by step is calling it on what it has left."""
    case = make(routine, [5, 3], steps=[step_of(routine)])
    twice = reference(case.replace(steps=[step_of(routine)] * 2))
    assert_same(twice, reference(after(case, reference(case))), "resumed")


@forms_of_families
def test_gradients_may_be_others_and_none(machine, routine, form):
    """Another gradient in another place, then none, gives what the reference gives; numbers are kept."""
    one = step_of(routine)
    case, other = make(routine, [*SMALL, 2100], steps=[one]), make(routine, [*SMALL, 2100], seed=1, steps=[one])
    placed = PlacedCase(machine, case)
    step = placed.plan(form)
    step(**one)
    moved = [Placed(machine, x, 3) for x in other.grads]
    step.rebind(grads=[x.array for x in moved])
    step()
    step.rebind(grads=[None if i == 3 else x.array for i, x in enumerate(moved)])
    step()
    expected = case
    for grads in (case.grads, other.grads, [None if i == 3 else x for i, x in enumerate(other.grads)]):
        expected = after(case, reference(expected.replace(grads=grads)))
    assert_same(expected.outcome(), placed.outcome(), "rebind")


@forms_of_families
def test_gradients_may_come_and_go(machine, routine, form):
    """Between steps, and per-tensor numbers stay with their tensors."""
    numbers = step_of(routine) | varied(routine, 4)
    case = make(routine, [5, 1, 2049, 7], steps=[numbers])
    placed = PlacedCase(machine, case)
    step, expected = placed.plan(form), case
    for absent in ([], [0, 2], [1], [0, 1, 2, 3], [3]):
        grads = [None if i in absent else g for i, g in enumerate(case.grads)]
        step.rebind(grads=[None if i in absent else g for i, g in enumerate(placed.grads)])
        step(**numbers)
        expected = after(case, reference(expected.replace(grads=grads)))
        assert_same(expected.outcome(), placed.outcome(), f"without {absent}")


@forms_of_families
def test_a_plan_moved_to_other_arrays_carries_nothing_there(machine, routine, form):
    """What a step carries over is dropped when the array that it was carried over for is another one."""
    dtypes, states = SIGNATURES[2], optional_states(routine)
    case, other = (make(routine, [40, 5], dtypes, seed=seed, optional=states) for seed in (0, 1))
    run, numbers = runner(getattr(cpu, routine.merged_name)), step_of(routine)
    for slot in routine.slots:
        placed, others = PlacedCase(machine, case), PlacedCase(machine, other)
        plan = placed.plan(form, **numbers)
        now = case
        for name in (slot.name, "grads"):
            for _ in range(2):
                plan()
                now = now.replace(steps=[numbers])
                now = now.replace(**run(now))
            placed.placed[name], others.placed[name] = others.placed[name], placed.placed[name]
            plan.rebind(**{name: [x.array for x in placed.placed[name]]})
            machine.synchronize()
            now = now.replace(**{name: [x.read().copy() for x in placed.placed[name]]})
        plan()
        expected = run(now.replace(steps=[numbers]))
        machine.synchronize()
        got = {name: [x.read() for x in placed.placed[name]] for name in expected if now.slots[name]}
        assert_same({name: expected[name] for name in got}, got, f"N9, {slot.name} rebound")


@forms_of_families
def test_a_rebound_plan_keeps_factor_and_flag(machine, routine, form):
    """Other gradients, and fewer of them, are multiplied and skipped like the first ones."""
    one = step_of(routine)
    case = make(routine, [5, 300, 7], steps=[one])
    placed, step, set_gate = planned(machine, case, form, **one)
    grads, expected = placed.grads, case
    for absent, factor, found in ((None, 0.3, 0.0), (1, 0.7, 0.0), (1, 0.7, 1.0), (0, 0.2, 0.0)):
        step.rebind(grads=[None if i == absent else g for i, g in enumerate(grads)])
        set_gate(factor, found)
        step()
        now = [None if i == absent else g for i, g in enumerate(case.grads)]
        expected = after(case, reference(expected.replace(grads=now, steps=[one | gate(factor, found)])))
    assert_same(expected.outcome(), placed.outcome(), "rebind")


@forms_of_families
def test_numbers_hold_until_others_are_given(machine, routine, form):
    """One number for all tensors and one for each may alternate."""
    many = varied(routine, len(SMALL))
    given = [step_of(routine), {}, many, {}, dict(lr=0.75), many]
    meant = [{}]
    for numbers in given:
        meant.append(meant[-1] | numbers)
    case = make(routine, SMALL, steps=meant[1:])
    placed = PlacedCase(machine, case)
    step = placed.plan(form)
    for numbers in given:
        step(**numbers)
    assert_same(reference(case), placed.outcome(), "numbers kept")


# What somebody else has written to the arrays that are carried over.


@of(pairs(CARRYING))
def test_scalars_written_by_somebody_else(machine, routine, form):
    """A plan carries scalars from step to step by itself; told by `refresh`, it takes them from the arrays again."""
    one = step_of(routine)
    case = make(routine, SMALL, steps=[one])
    for told in (False, True):
        placed = PlacedCase(machine, case)
        step = placed.plan(form)
        step(**one)
        middle = placed.outcome()
        name = routine.scalars[0]
        halved = [x * x.dtype.type(0.5) for x in middle[name]]
        write(machine, placed, name, halved)
        if told:
            step.refresh()
        step(**one)
        expected = reference(after(case, middle | ({name: halved} if told else {})))
        assert_same(expected, placed.outcome(), "refresh")


@of(pairs(NOVOGRAD))
def test_second_moments_written_by_somebody_else(machine, routine, form):
    """A plan keeps none to itself: every step takes what is in the arrays, and `rebind` other arrays."""
    one = step_of(routine)
    case = make(routine, [1300, 0, 5], steps=[one])
    placed = PlacedCase(machine, case)
    step = placed.plan(form)
    step(**one)
    for moved in (False, True):
        middle = placed.outcome()
        halved = [v / np.float32(2) for v in middle["second_moment"]]
        expected = reference(after(case, middle | {"second_moment": halved}))
        if moved:
            placed.placed["second_moment"] = [Placed(machine, v, 3) for v in halved]
            step.rebind(second_moment=[v.array for v in placed.placed["second_moment"]])
        else:
            write(machine, placed, "second_moment", halved)
        step()
        assert_same(expected, placed.outcome(), "second moment")


@pytest.mark.parametrize("dtypes", [
    STORAGE[0], *(pytest.param(x, marks=pytest.mark.slow) for x in (STORAGE[1], ("bfloat16", "float32", "bfloat16")))],
                         ids="-".join)
@of(pairs(WITH_NORMS))
def test_parameters_written_by_somebody_else(machine, routine, form, dtypes):
    """Told by `refresh`, any plan goes on with them; untold, ``carried_norm`` alone goes on with the old norm."""
    case = make(routine, [5, 1100], dtypes, steps=[step_of(routine)])
    for told in (True, False):
        placed = PlacedCase(machine, case)
        step = placed.plan(form)
        step(**step_of(routine))
        middle = placed.outcome()
        larger = [(x * x.dtype.type(2)).astype(x.dtype) for x in middle["params"]]
        write(machine, placed, "params", larger)
        if told:
            step.refresh()
            step.refresh()  # a second time does no harm
        step(**step_of(routine))
        expected = reference(after(case, middle | {"params": larger}))
        if told or form != "carried_norm":
            assert_same(expected, placed.outcome(), "refresh")
        else:
            with pytest.raises(AssertionError, match="velocities"):
                assert_same({"velocities": expected["velocities"]}, placed.outcome(), "refresh")


@of(pairs(LARS))
def test_a_norm_to_be_taken_anew_is_taken_in_a_skipped_step(machine, routine, form):
    """And carried over, whether or not the step is."""
    one = step_of(routine)
    case = make(routine, [5, 1100], steps=[one])
    placed, step, set_gate = planned(machine, case, form, **one)
    step()
    middle = placed.outcome()
    larger = [x * np.float32(2) for x in middle["params"]]
    write(machine, placed, "params", larger)
    step.refresh()
    for found in (1.0, 1.0, 0.0):
        set_gate(0.5, found)
        step()
    expected = reference(after(case, middle | {"params": larger}).replace(steps=[one | gate(0.5)]))
    assert_same(expected, placed.outcome(), "N9")


@of(pairs(CARRYING))
def test_captured_steps_settle(executor, routine, form, monkeypatch):
    """A step that is captured, and every one after it, reads its scalars where it has read them before."""
    one = step_of(routine)
    case = make(routine, SMALL, steps=[one] * 6)
    placed = PlacedCase(executor, case)
    step = placed.plan(form)
    step(**one)
    monkeypatch.setattr(executor, "capturing", lambda stream: True)
    with simt.observe(count=()) as log:
        step()  # with the numbers that it has: new ones are refused in a capture
    captured = [launch.kernel for launch in log.launches]
    assert captured[-1] == "settle_scalars" and len(captured) == step.launches + 1
    monkeypatch.undo()
    for _ in range(4):  # a replay does what a step does now
        step(**one)
    assert_same(reference(case), placed.outcome(), "captured")
    assert len({group._phase for group in step._steps}) == 1
