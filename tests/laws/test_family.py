"""The laws of all routines but LARS, on the reference and on their kernels, with the clauses of docs/numerics.md."""

from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from refopt import cpu, gpu, simt
from refopt.catalog import ROUTINES
from refopt.gpu import tables
from refopt.oracle.exact import laws
from refopt.oracle.exact.build import SIGNATURES, SMALL, make, step_of
from refopt.oracle.exact.cases import arguments, assert_same, runner
from refopt.oracle.exact.examples import examples, varied
from refopt.oracle.exact.laws import reference
from refopt.oracle.exact.placed import Placed, PlacedCase, kernels, merged_step
from refopt.oracle.exact.strategies import cases, storage

FAMILY = [routine for routine in ROUTINES.values() if "merged" in routine.forms]
CARRYING = [routine for routine in FAMILY if routine.elementwise and routine.scalars]
routines = pytest.mark.parametrize("routine", FAMILY, ids=lambda routine: routine.name)
carrying = pytest.mark.parametrize("routine", CARRYING, ids=lambda routine: routine.name)
forms = pytest.mark.parametrize("form", ["separate", "merged"])
signatures = pytest.mark.parametrize("dtypes", SIGNATURES, ids="-".join)


def few(part):
    return settings(max_examples=max(settings().max_examples // part, 6))


def optional_states(routine):
    return tuple(slot.name for slot in routine.slots if slot.optional and slot.name in routine.states)


# Bits.


@pytest.mark.clause("N3", "N4")
@routines
@forms
@given(data=st.data())
@few(1)
def test_kernel_is_reference(machine, routine, form, data):
    """The kernels leave the bits that the reference leaves, for every list of tensors."""
    shifts = data.draw(st.lists(st.integers(0, 9), min_size=1, max_size=4))
    case = data.draw(cases(routine, max_tensors=5))
    laws.same_bits_as_reference(kernels(form, machine, shifts), case)


@pytest.mark.clause("N11")
@routines
@pytest.mark.parametrize("form", ["reference", "separate", "merged"])
@given(data=st.data())
@few(4)
def test_merged_is_one_at_a_time_in_any_order(machine, routine, form, data):
    """Merging and the order of the tensors change no bit."""
    run = reference if form == "reference" else kernels(form, machine)
    case = data.draw(cases(routine, max_tensors=4, large=False))
    laws.merged_is_one_at_a_time(run, case)
    laws.order_is_free(run, case)


@pytest.mark.clause("N3", "N4")
@routines
def test_fixed_cases(machine, routine):
    """The cases that other implementations are held to, merged."""
    run = runner(merged_step(routine, "merged", machine))
    # On the executor a case gives the same each time; laws that run it again need not.
    laws.check_run(routine.name, cache(run) if machine.name == "executor" else run)


@pytest.mark.clause("N3", "N4")
@routines
def test_fixed_cases_of_separate_tensors(machine, routine):
    """The same, where a list is one launch after another, each as if its tensor were alone."""
    for name, case in examples(routine):
        try:
            laws.same_bits_as_reference(kernels("separate", machine), case)
        except AssertionError as error:
            raise AssertionError(f"case {name!r}: {error}") from None


@routines
@forms
@pytest.mark.parametrize("count", [0, 1, 59])
def test_any_number_of_tensors(machine, routine, form, count):
    """There is no limit on the number of tensors, some of which have no elements."""
    laws.same_bits_as_reference(kernels(form, machine), make(routine, [i % 4 for i in range(count)]))


# One routine of each family of kernels is enough in make test: the tables of tensors are made alike for all.
FAMILIES = ("adam", "merged"), ("adam", "separate"), ("lamb", "merged"), ("novograd", "merged")
MANY = [
    pytest.param(routine, form, marks=() if (routine.name, form) in FAMILIES else pytest.mark.slow)
    for routine in FAMILY
    for form in ("separate", "merged")
]


@pytest.mark.parametrize("count", [205, 1000])
@pytest.mark.parametrize(("routine", "form"), MANY, ids=lambda x: getattr(x, "name", x))
def test_hundreds_and_a_thousand_tensors(machine, routine, form, count):
    """There is no limit at numbers that nobody has thought of, either."""
    laws.same_bits_as_reference(kernels(form, machine), make(routine, [i % 4 for i in range(count)]))


@pytest.mark.clause("N11")
@routines
@signatures
@pytest.mark.parametrize("size", [8191, 8192, 8193])
def test_around_a_chunk(machine, routine, dtypes, size):
    """Chunks begin and end without a trace."""
    laws.same_bits_as_reference(kernels("merged", machine), make(routine, [size], dtypes))


@routines
@signatures
def test_single_tensor_calls(machine, routine, dtypes):
    """A routine of a tensor is the merged one of a list of one, on both sides."""
    case = make(routine, [300], dtypes, optional=optional_states(routine))
    expected = reference(case)
    host, placed = case.copy(), PlacedCase(machine, case)
    for module, on in ((cpu, host), (gpu, placed)):
        positional, named = arguments(routine, on.slots)
        given = {name.replace("master_params", "master_param"): x and x[0] for name, x in named.items()}
        getattr(module, routine.name)(*(x[0] for x in positional), **given, **case.steps[0], **case.choices)
        assert_same(expected, on.outcome(), "one tensor")


@routines
def test_signs(routine):
    """What the catalogue says may be negative becomes so, and nothing else does."""
    case = make(routine, [300], steps=[step_of(routine)] * 2, optional=optional_states(routine))
    left = reference(case)
    for slot in routine.slots:
        if slot.written and case.slots[slot.name]:
            assert bool((left[slot.name][0] < 0).any()) == slot.signed, slot.name


# Launches, bytes, races: what the executor sees.


@routines
@forms
@given(data=st.data())
@few(4)
def test_launches(executor, routine, form, data):
    """The launches of a step are as many as the catalogue says."""
    case = data.draw(cases(routine, large=False))
    placed = PlacedCase(executor, case)
    step = placed.plan(form)
    for hyper in case.steps:
        with simt.observe(count=()) as log:  # launches, and no bytes
            step(**hyper)
        assert len(log.launches) == step.launches == routine.launches(case.specs(), form)


@routines
def test_launches_of_a_signature(executor, routine):
    """Any number of tensors of one signature: one launch for an elementwise routine, two for one with norms."""
    placed = PlacedCase(executor, make(routine, [5, 7, 0, 1] * 40))
    step = placed.plan("merged")
    with simt.observe(count=()) as log:
        step(**step_of(routine))
    assert len(log.launches) == step.launches == (1 if routine.elementwise else 2)


@routines
@forms
@given(dtypes=storage(), shift=st.integers(0, 1), all_states=st.booleans())
@few(4)
def test_bytes(executor, routine, form, dtypes, shift, all_states):
    """A step reads and writes of every array what the catalogue says, to the byte."""
    optional = optional_states(routine) if all_states else ()
    case = make(routine, [1500, 0, 3, 1024], tuple(d for d in dtypes if d), optional=optional)
    placed = PlacedCase(executor, case, [shift])
    step = placed.plan(form)
    with simt.observe(count=[x for arrays in placed.slots.values() for x in arrays or ()]) as log:
        step(**step_of(routine))
    passes = routine.traffic(routine.forms[form], case.specs()[0].dtypes)
    moved = 0
    for slot in routine.slots:
        for array in placed.slots[slot.name] or ():
            read, written = log.bytes_read(array), log.bytes_written(array)
            assert written == (array.nbytes if slot.written else 0), slot.name
            if not slot.scalar:
                assert read + written == passes[slot.name] * array.nbytes, slot.name
                moved += read + written
    assert moved == step.bytes == routine.bytes(case.specs(), form)


@pytest.mark.parametrize(
    ("name", "dtypes", "expected"),
    [
        ("sgd", SIGNATURES[0], 12),
        ("momentum", SIGNATURES[0], 20),
        ("adam", SIGNATURES[0], 28),
        ("adam", SIGNATURES[2], 2 + 2 + 8 + 8 + 8),
        ("adam", SIGNATURES[3], 2 * 7),
        ("lamb", SIGNATURES[0], 40),
        ("lamb", SIGNATURES[2], 2 + 2 + 3 * 12),
        ("novograd", SIGNATURES[0], 24),
        ("novograd", SIGNATURES[2], 2 + 2 * 2 + 8 + 8),
    ],
)
def test_bytes_in_figures(name, dtypes, expected):
    """Bytes an element, counted by hand."""
    routine = ROUTINES[name]
    assert routine.bytes(make(routine, [10], dtypes).specs(), "merged") == 10 * expected


@carrying
@pytest.mark.parametrize("found", [0.0, 1.0])
def test_scalars_are_written_once(executor, routine, found):
    """By one thread of a tensor's first chunk, in a step that is skipped as in one that is taken."""
    placed = PlacedCase(executor, make(routine, [3 * tables.tiles_per_chunk(16) * 1024, 5]))
    positional, named = arguments(routine, placed.slots)
    flag = executor.to_device(np.full(1, found, np.float32))
    with simt.observe(count=False, watch=True):
        getattr(gpu, routine.merged_name)(*positional, **named, **step_of(routine), found_inf=flag)


# Of what is loaded and stored in other widths, make test watches two kinds.
watched_signatures = pytest.mark.parametrize(
    "dtypes", [pytest.param(x, marks=pytest.mark.slow if k % 2 else ()) for k, x in enumerate(SIGNATURES)], ids="-".join
)


@routines
@forms
@watched_signatures
def test_no_races_and_nothing_out_of_bounds(executor, routine, form, dtypes, monkeypatch):
    """A step, and another two, watched: no data race, no access outside an array."""
    monkeypatch.setattr(tables, "tiles_per_chunk", lambda element_bytes: 2)
    placed = PlacedCase(executor, make(routine, [2100, 0, 1, 300], dtypes), [0, 1])
    step = placed.plan(form)
    for schedule, steps in (("forward", 1), ("random", 2)):
        with simt.observe(count=False, watch=True, schedule=schedule, seed=3):
            for _ in range(steps):
                step(**step_of(routine))


@pytest.mark.clause("N11")
@routines
@pytest.mark.parametrize(("schedule", "seed"), [("reverse", 0), ("random", 1)])
def test_schedule(executor, routine, schedule, seed):
    """The order in which blocks and threads run changes no bit."""
    case = make(routine, [9000, 1, 0, 300], steps=[step_of(routine)] * 2)
    expected = reference(case)
    with simt.observe(count=False, schedule=schedule, seed=seed):
        got = kernels("merged", executor)(case)
    assert_same(expected, got, "N11, schedule")


# A plan over many steps.


@routines
@forms
def test_save_and_resume(machine, routine, form):
    """A plan that is dropped and built anew midway changes no bit."""
    steps = [step_of(routine, lr=lr) for lr in (0.5, 0.25, 0.125, 0.1)]
    case = make(routine, SMALL, SIGNATURES[2], steps=steps)
    first = kernels(form, machine)(case.replace(steps=steps[:2]))
    resumed = case.replace(**{name: case.slots[name] and values for name, values in first.items()}, steps=steps[2:])
    assert_same(reference(case), kernels(form, machine)(resumed), "save and resume")


@routines
@forms
def test_rebind(machine, routine, form):
    """Another gradient in another place, then none, gives what the reference gives."""
    one = step_of(routine)
    case, other = make(routine, SMALL, steps=[one]), make(routine, SMALL, seed=1, steps=[one])
    placed = PlacedCase(machine, case)
    step = placed.plan(form)
    step(**one)
    moved = [Placed(machine, x, 3) for x in other.grads]
    step.rebind(grads=[x.array for x in moved])
    step(**one)
    step.rebind(grads=[None if i == 3 else x.array for i, x in enumerate(moved)])
    step(**one)
    expected = case
    for grads in (case.grads, other.grads, [None if i == 3 else x for i, x in enumerate(other.grads)]):
        left = reference(expected.replace(grads=grads))
        expected = expected.replace(**{name: case.slots[name] and values for name, values in left.items()})
    assert_same(expected.outcome(), placed.outcome(), "rebind")


@routines
@forms
def test_numbers_are_kept(machine, routine, form):
    """A number given once holds until another is given; one for all and one per tensor may alternate."""
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


@carrying
@forms
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
        for target, x in zip(placed.placed[name], middle[name], strict=True):
            target._memory.copy_to_device(Placed(machine, x * x.dtype.type(0.5))._memory)
        if told:
            step.refresh()
        step(**one)
        halved = [x * x.dtype.type(0.5) for x in middle[name]]
        begun = {slot: case.slots[slot] and values for slot, values in middle.items()}
        expected = reference(case.replace(**begun | ({name: halved} if told else {})))
        assert_same(expected, placed.outcome(), "refresh")


@carrying
@forms
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


# One optimizer is another with a coefficient switched off.


def values_of(routine, slots, **numbers):
    case = make(ROUTINES[routine], [300, 5])
    return reference(case.replace(**slots, steps=[numbers]))


def test_momentum_of_zero_is_sgd():
    """With mu = 0 the velocity is the gradient."""
    case = make(ROUTINES["momentum"], [300, 5])
    slots = {name: case.slots[name] for name in ("params", "grads")}
    sgd = values_of("sgd", slots, lr=0.3, l2_decay=0.1)
    for use_nesterov in (False, True):
        steps, choices = [dict(lr=0.3, mu=0.0, l2_decay=0.1)], {"use_nesterov": use_nesterov}
        momentum = reference(case.replace(steps=steps, choices=choices))
        assert_same({"params": sgd["params"]}, {"params": momentum["params"]}, "mu = 0")


def test_momentum_is_lars_without_its_ratio():
    """With a power of two for lr, which LARS keeps within the velocity, the two agree in every bit."""
    lr = 0.25
    case = make(ROUTINES["momentum"], [300, 5])
    inside = [x * np.float32(lr) for x in case.velocities]
    momentum = reference(case.replace(steps=[dict(lr=lr, mu=0.9, l2_decay=0.0)] * 3))
    lars = make(ROUTINES["lars_momentum"], [300, 5]).replace(
        params=case.params, grads=case.grads, velocities=inside,
        steps=[dict(lr=lr, mu=0.9, lars_weight_decay=0.0)] * 3, choices={"adapt": "decay"},
    )  # fmt: skip
    assert_same({"params": momentum["params"]}, {"params": reference(lars)["params"]}, "LARS")


def test_adam_without_memory_is_the_sign_of_the_gradient():
    """With both betas 0 the moments are g and g * g, and the quotient is g over its size."""
    case = make(ROUTINES["adam"], [300], steps=[dict(lr=0.5, beta1=0.0, beta2=0.0, epsilon=0.0)])
    zero = [np.zeros(1, np.float32)]
    got = reference(case.replace(beta1_pow=zero, beta2_pow=zero))
    assert_same({"p": [case.params[0] - np.float32(0.5) * np.sign(case.grads[0])]}, {"p": got["params"]}, "betas 0")
