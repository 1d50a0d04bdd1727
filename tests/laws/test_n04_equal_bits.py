"""N4: every form of the kernels leaves the bits that the reference leaves, for any list of tensors."""

from functools import cache

import pytest
from hypothesis import given
from hypothesis import strategies as st

from laws.marks import few, forms, implementations, is_shared, of, of_families, of_merged, pairs, routines, signatures
from laws.routines import ALL, CARRYING, LARS, NOVOGRAD, OF_EACH_FAMILY, WITH_NORMS, implementation, optional_states
from refopt import cpu, gpu
from refopt.oracle.exact import laws
from refopt.oracle.exact.build import SIGNATURES, SMALL, make, step_of
from refopt.oracle.exact.cases import arguments, assert_same, runner
from refopt.oracle.exact.examples import examples
from refopt.oracle.exact.laws import reference
from refopt.oracle.exact.placed import PlacedCase, kernels, merged_step
from refopt.oracle.exact.strategies import cases

pytestmark = pytest.mark.clause("N4")
# How tensors are walked is alike for all of a family, and for those with norms in their merged form.
ANY_LIST = [pytest.param(*row, marks=[pytest.mark.slow] * (
    is_shared(*row) and (row[1] == "separate" or row[0] not in WITH_NORMS))) for row in pairs(ALL)]
shifts = st.lists(st.integers(0, 9), min_size=1, max_size=4)


@pytest.mark.clause("N3", "N6")
@of(ANY_LIST)
@given(data=st.data())
@few(2)
def test_any_list_of_tensors_has_the_bits_of_the_reference(machine, routine, form, data):
    """Wherever the tensors lie in memory; nothing beside them is written."""
    at = data.draw(shifts)
    laws.same_bits_as_reference(kernels(form, machine, at), data.draw(cases(routine, max_tensors=5)))


@pytest.mark.clause("N3")
@of([pytest.param(routine, routine.merged_form, marks=[pytest.mark.slow] * (routine not in CARRYING[:1]))
     for routine in ALL])
def test_the_cases_for_other_implementations_hold_when_merged(machine, routine, form):
    """Those of `refopt.oracle.exact`, by the function that takes lists."""
    run = runner(merged_step(routine, form, machine))
    # On the executor a case gives the same each time; laws that run it again need not.
    laws.check_run(routine.name, cache(run) if machine.name == "executor" else run)


@pytest.mark.clause("N3")
@of([pytest.param(routine, "separate", marks=[pytest.mark.slow] * (routine not in (CARRYING[0], *LARS)))
     for routine in ALL])
def test_the_cases_for_other_implementations_hold_when_separate(machine, routine, form):
    """The same where a list is one launch after another, each as if its tensor were alone."""
    for name, case in examples(routine):
        try:
            laws.same_bits_as_reference(kernels(form, machine), case)
        except AssertionError as error:
            raise AssertionError(f"case {name!r}: {error}") from None


# Limits of LARS are between 59 and 350; of 350 tensors, 262 have elements, more than a byte counts.
COUNTS = [pytest.param(routine, form, count, marks=[pytest.mark.slow] * (
              routine not in (OF_EACH_FAMILY if count < 2 else (CARRYING[0], *LARS))
              or (count > 1 and form != routine.merged_form) or count not in (0, 1, 350)))
          for routine, form in pairs(ALL) for count in (0, 1, 59, 60, 61, 150, 200, 350, 1000)]


@pytest.mark.parametrize(("routine", "form", "count"), COUNTS, ids=lambda x: getattr(x, "name", str(x)))
def test_any_number_of_tensors(machine, routine, form, count):
    """There is no limit on the number of tensors, some of which have no elements; Paddle's were 60, 150 and 200."""
    laws.same_bits_as_reference(kernels(form, machine), make(routine, [(i + 1) % 4 for i in range(count)]))


@pytest.mark.parametrize("sizes", [[], [0], [0, 0], [1, 0], [0, 1], [1, 0, 1], [5, 0, 0, 3]], ids=str)
@of_families(pairs((*OF_EACH_FAMILY[:2], *WITH_NORMS)))
def test_tensors_without_elements_stand_anywhere(machine, routine, form, sizes):
    """Also at the end of a list: sizes=[1, 0] has broken four libraries."""
    case = make(routine, sizes, steps=[step_of(routine)] * 2)
    laws.same_bits_as_reference(kernels(form, machine), case)


@implementations
def test_a_gradient_of_none_leaves_its_tensor_alone(machine, routine, form):
    """Parameter, states, scalars and master keep their bits; the tensors beside it do not."""
    case = make(routine, SMALL, SIGNATURES[2], steps=[step_of(routine)] * 2, optional=optional_states(routine))
    case.grads[0] = case.grads[4] = None
    got = implementation(form, machine)(case)
    for slot, arrays in case.outcome().items():
        for i in (0, 4):
            assert arrays[i] is None or arrays[i].tobytes() == got[slot][i].tobytes()
    assert case.outcome()["params"][3].tobytes() != got["params"][3].tobytes()


@signatures
@routines
def test_a_tensor_alone_is_a_list_of_one(machine, routine, dtypes):
    """A routine of a tensor leaves the bits of the merged one of a list of one, on both sides."""
    case = make(routine, [300], dtypes, optional=optional_states(routine))
    expected = reference(case)
    host, placed = case.copy(), PlacedCase(machine, case)
    for module, on in ((cpu, host), (gpu, placed)):
        positional, named = arguments(routine, on.slots)
        given = {name.replace("master_params", "master_param"): x and x[0] for name, x in named.items()}
        getattr(module, routine.name)(*(x[0] for x in positional), **given, **case.steps[0], **case.choices)
        assert_same(expected, on.outcome(), "one tensor")


@forms
def test_the_merged_function_is_a_plan_of_one_step(machine, routine, form):
    """The function of `refopt.gpu` gives the bits of a plan's step, in each form."""
    choices = {"norm_of": "master"} if "norm_of" in routine.choices else {}
    case = make(routine, SMALL, SIGNATURES[2], **choices)
    placed = PlacedCase(machine, case)
    positional, named = arguments(routine, placed.slots)
    getattr(gpu, routine.merged_name)(*positional, **named, form=form, **case.steps[0], **case.choices)
    assert_same(reference(case), placed.outcome(), "N4")


# Storage in which the arrays of a tensor have other sizes of element, and what is aligned for one is not for another.
MIXED = [("float16", "float32", "float32", "float32"), ("float32", "float16", "float32"),
         ("float64", "float16", "float64"), ("bfloat16", "bfloat16", "bfloat16"),
         ("bfloat16", "float32", "bfloat16", "uint16")]


@pytest.mark.parametrize("dtypes", MIXED, ids="-".join)
@of_merged([row for row in pairs(ALL) if row[0].forms[row[1]].merged])
def test_each_slot_misaligned_alone(machine, routine, form, dtypes):
    """A tensor all of whose arrays but one are aligned, for each slot, by 4 and by 8 bytes, and by an element."""
    case = make(routine, [260, 9], dtypes, optional=optional_states(routine))
    expected = reference(case)
    for slot in routine.slots:
        if slot.scalar or not case.slots[slot.name]:
            continue
        item = case.slots[slot.name][0].itemsize
        for shift in sorted({1, max(1, 4 // item), max(1, 8 // item)}):
            got = kernels(form, machine, {slot.name: (shift, 0)})(case)
            assert_same(expected, got, f"{slot.name} {shift} off")


@signatures
@of(pairs(NOVOGRAD))
def test_from_moments_of_zero(machine, routine, form, dtypes):
    """Three steps from the beginning, of which the first takes the gradients' squared norm as it is."""
    one = step_of(routine)
    case = make(routine, [1025, 0, 7], dtypes, steps=[one, one | {"lr": 0.2}, one], grad_averaging=True)
    zero = {name: [0 * x for x in case.slots[name]] for name in ("moment", "second_moment")}
    laws.same_bits_as_reference(kernels(form, machine), case.replace(**zero))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
@of([(routine, form) for routine, form in pairs(WITH_NORMS) if "norm_of" in routine.choices])
def test_the_norm_of_a_master_that_is_not_there(machine, routine, form, dtype):
    """It is that of the parameter as it is stored, in the next step, too."""
    case = make(routine, [300, 2047], (dtype, dtype, "float32"), steps=[step_of(routine)] * 3, norm_of="master")
    laws.same_bits_as_reference(kernels(form, machine), case)


@routines
def test_what_may_be_negative_becomes_so(routine):
    """And nothing else does, as the catalogue says of each slot."""
    case = make(routine, [300], steps=[step_of(routine)] * 2, optional=optional_states(routine))
    left = reference(case)
    for slot in routine.slots:
        if slot.written and case.slots[slot.name]:
            assert bool((left[slot.name][0] < 0).any()) == slot.signed, slot.name
