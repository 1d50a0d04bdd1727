"""N4: every form of the kernels leaves the bits that the reference leaves, for any list of tensors."""

from functools import cache

import numpy as np
import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from laws.marks import few, forms, is_shared, of, of_families, of_merged, pairs, routines
from laws.routines import ALL, CARRYING, LARS, OF_EACH_FAMILY, WITH_NORMS, check_run, optional_states
from refopt import cpu, gpu
from refopt.oracle.exact import laws
from refopt.oracle.exact.build import make, step_of
from refopt.oracle.exact.cases import arguments, assert_same, runner
from refopt.oracle.exact.examples import varied
from refopt.oracle.exact.laws import reference
from refopt.oracle.exact.placed import GATE, PlacedCase, kernels, merged_step
from refopt.oracle.exact.strategies import KINDS, cases, places, sizes, storage

pytestmark = pytest.mark.clause("N4")
# How tensors are walked is alike for all of a family, and for those with norms in their merged form.
ANY_LIST = [pytest.param(*row, marks=[pytest.mark.slow] * (
    is_shared(*row) and (row[1] == "separate" or row[0] not in WITH_NORMS))) for row in pairs(ALL)]


@pytest.mark.clause("N3", "N6", "N8", "N9", "N11", "N15", "N16")
@of(ANY_LIST)
@few(2, least=8, data=st.data())
def test_any_list_of_tensors_matches_the_reference(machine, routine, form, data):
    """For any dtypes, sizes and numbers, at any addresses, in taken and skipped steps.

    Nothing beside the arrays is written. A tensor without a gradient stays as it is, and so does all of a skipped step.
    """
    case = data.draw(cases(routine, most=5, max_steps=3, gated=True))
    got = kernels(form, machine, data.draw(places(routine)))(case)
    assert_same(reference(case), got, "N4, equal bits")
    skipped = all(step.get("found_inf", 0) != 0 for step in case.steps)
    still = [i for i, g in enumerate(case.grads) if skipped or g is None]
    left = {slot: [arrays[i] for i in still] for slot, arrays in got.items()}
    assert_same(case.only(still).outcome(), left, "N9, no step")


@pytest.mark.clause("N3")
@of([pytest.param(routine, routine.merged_form, marks=[pytest.mark.slow] * (routine not in CARRYING[:1]))
     for routine in ALL])
def test_the_cases_for_other_implementations_hold_when_merged(machine, routine, form):
    """The merged function passes the cases of `refopt.oracle.exact`."""
    run = runner(merged_step(routine, form, machine))
    # On the executor a case gives the same each time; laws that run it again need not.
    check_run(routine, cache(run) if machine.name == "executor" else run)


@of_families(pairs((*OF_EACH_FAMILY[:2], *WITH_NORMS)))
@few(4, lengths=st.lists(sizes(()), max_size=8))
@example([])
@example([0])
@example([1, 0])
@example([0, 1])
@example([1, 0, 1])
@example([5, 0, 0, 3])
def test_tensors_without_elements_may_be_anywhere(machine, routine, form, lengths):
    """Even at the end of a list: [1, 0] has broken four libraries."""
    laws.same_bits_as_reference(kernels(form, machine), make(routine, lengths, steps=[step_of(routine)] * 2))


@pytest.mark.clause("N11")
@of([pytest.param(*row, marks=[pytest.mark.slow] * (
    row[0] not in (CARRYING[0], *LARS) or row[1] != row[0].merged_form)) for row in pairs(ALL)])
@few(4, small=st.lists(st.integers(0, 5), max_size=4), times=st.integers(0, 40),
       large=st.lists(sizes((8201,)), max_size=2))
@example([1, 2, 3, 0], 15, [])
@example([3, 1, 5], 50, [8201, 0])
@example([1, 2, 3, 0], 88, [])
def test_any_number_of_tensors(machine, routine, form, small, times, large):
    """There is no limit such as Paddle's 60, 150 and 200, or 320 elsewhere; many small tensors, or a few large ones.

    Each has its own numbers.
    """
    lengths = [*small * times, *large, *small]
    steps = [step_of(routine) | varied(routine, len(lengths))] * (2 if form == "carried_norm" else 1)
    laws.same_bits_as_reference(kernels(form, machine), make(routine, lengths, steps=steps))


@pytest.mark.clause("N8")
@routines
@few(4, data=st.data())
def test_a_tensor_alone_is_a_list_of_one(machine, routine, data):
    """A routine of one tensor equals the merged one with a list of one, in NumPy and on a device, gated or not."""
    case = data.draw(cases(routine, 1, 1, max_steps=1, gated=True))
    assume(case.grads[0] is not None)
    expected, (numbers,) = reference(case), case.steps
    host, placed = case.copy(), PlacedCase(machine, case)
    for module, on, put in ((cpu, host, np.array), (gpu, placed, machine.to_device)):
        positional, named = arguments(routine, on.slots)
        given = {name.replace("master_params", "master_param"): x and x[0] for name, x in named.items()}
        given |= {name: put(x) if name in GATE else x[0] if isinstance(x, list) else x for name, x in numbers.items()}
        getattr(module, routine.name)(*(x[0] for x in positional), **given, **case.choices)
        assert_same(expected, on.outcome(), "one tensor")


@forms
@few(4, data=st.data())
def test_the_merged_function_equals_a_plan(machine, routine, form, data):
    """Calls of the function of `refopt.gpu` equal a plan's steps, in each form."""
    case = data.draw(cases(routine, most=4, kinds=KINDS, large=False))
    assert_same(reference(case), runner(merged_step(routine, form, machine))(case), "N4")


@of_merged([row for row in pairs(ALL) if row[0].forms[row[1]].merged])
@few(4, size=st.integers(1, 300), shift=st.integers(1, 9), kind=storage())
@example(260, 1, ("bfloat16", "bfloat16", "bfloat16", None))
def test_one_misaligned_slot(machine, routine, form, size, shift, kind):
    """For each slot: only its array of a tensor is misaligned, by any number of elements."""
    case = make(routine, [size, 9], tuple(filter(None, kind)), optional=optional_states(routine))
    expected = reference(case)
    for slot in routine.slots:
        if not slot.scalar and case.slots[slot.name]:
            assert_same(expected, kernels(form, machine, {slot.name: (shift, 0)})(case), f"{slot.name} {shift} off")


@routines
@given(seed=st.integers(0, 2**32 - 1))
def test_signed_slots_become_negative(routine, seed):
    """Exactly the slots that the catalogue calls signed become negative."""
    case = make(routine, [300], seed=seed, steps=[step_of(routine)] * 2, optional=optional_states(routine))
    left = reference(case)
    for slot in routine.slots:
        if slot.written and case.slots[slot.name]:
            assert bool((left[slot.name][0] < 0).any()) == slot.signed, slot.name
