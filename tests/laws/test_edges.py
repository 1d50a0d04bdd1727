"""Sizes, places and numbers of tensors at which kernels do something else: the laws hold on either side."""

import numpy as np
import pytest

from refopt import cpu, gpu
from refopt.catalog import ROUTINES
from refopt.checks.dtypes import SIZES, arithmetic, numpy_dtype
from refopt.cpu.reduce import TILE
from refopt.oracle.exact import laws
from refopt.oracle.exact.build import make, step_of
from refopt.oracle.exact.cases import assert_same, runner
from refopt.oracle.exact.placed import Placed, PlacedCase, kernels
from refopt.oracle.exact.strategies import DTYPES, around, chunk_of

FORMS = [(routine, form) for routine in ROUTINES.values() for form in routine.forms]
MERGED = [(routine, form) for routine, form in FORMS if routine.forms[form].merged]
WITH_NORMS = [(routine, form) for routine, form in MERGED if not routine.elementwise]
forms = pytest.mark.parametrize(("routine", "form"), FORMS, ids=lambda x: getattr(x, "name", x))
merged_forms = pytest.mark.parametrize(("routine", "form"), MERGED, ids=lambda x: getattr(x, "name", x))
forms_with_norms = pytest.mark.parametrize(("routine", "form"), WITH_NORMS, ids=lambda x: getattr(x, "name", x))
# Dtypes of parameter, gradient and states: one pair for each length of a chunk.
BY_CHUNK = {chunk_of(p, g): (p, g, np.dtype(arithmetic(p)).name) for p in DTYPES for g in DTYPES if SIZES[g] <= 4}


def test_there_are_chunks_of_several_lengths():
    assert len(BY_CHUNK) >= 3 and all(chunk % TILE == 0 for chunk in BY_CHUNK)


@pytest.mark.clause("N11")
@forms_with_norms
@pytest.mark.parametrize("chunk", BY_CHUNK)
@pytest.mark.parametrize("chunks", [1, 2])
def test_around_a_chunk(machine, routine, form, chunk, chunks):
    """Chunks begin and end without a trace, whatever the dtypes make of their length."""
    case = make(routine, [*around(chunks * chunk), 3], BY_CHUNK[chunk])
    laws.same_bits_as_reference(kernels(form, machine), case)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("chunks", [1, 2])
def test_a_check_around_a_chunk(machine, dtype, chunks):
    """The same of a gradient check, with what is not finite in the last element of the last chunk."""
    rng = np.random.default_rng(0)
    for bad in (1.0, np.inf):
        grads = [rng.normal(size=n).astype(numpy_dtype(dtype)) for n in around(chunks * chunk_of(dtype, dtype))]
        grads[-1][-1] = bad
        expected = cpu.check_gradients(grads)
        check = gpu.gradient_check([Placed(machine, g).array for g in grads])
        check()
        machine.synchronize()
        for name, value in expected._asdict().items():
            assert getattr(check, name).copy_to_host().tobytes() == value.tobytes(), name


def test_a_check_of_nothing(machine):
    """No tensors, or none with an element: a norm of zero."""
    for grads in ([], [None], [np.zeros(0, np.float32)]):
        expected = cpu.check_gradients(grads)
        with gpu.use(machine.name):
            check = gpu.gradient_check([g if g is None else Placed(machine, g).array for g in grads])
        check()
        assert check.grad_norm.copy_to_host() == expected.grad_norm == 0
        assert check.found_inf.copy_to_host() == expected.found_inf == 0


# Storage in which the arrays of a tensor have other sizes of element, and what is aligned for one is not for another.
MIXED = [
    ("float16", "float32", "float32", "float32"), ("float32", "float16", "float32"), ("float64", "float16", "float64"),
    ("bfloat16", "bfloat16", "bfloat16"), ("bfloat16", "float32", "bfloat16", "uint16"),
]  # fmt: skip


@merged_forms
@pytest.mark.parametrize("dtypes", MIXED, ids="-".join)
def test_each_slot_misaligned_alone(machine, routine, form, dtypes):
    """A tensor all of whose arrays but one are aligned, for each slot, by 4 and by 8 bytes, and by an element."""
    optional = tuple(slot.name for slot in routine.slots if slot.optional and slot.name in routine.states)
    case = make(routine, [260, 9, 7], dtypes, optional=optional)
    expected = laws.reference(case)
    for slot in routine.slots:
        if slot.scalar or not case.slots[slot.name]:
            continue
        item = case.slots[slot.name][0].itemsize
        for shift in sorted({1, max(1, 4 // item), max(1, 8 // item)}):
            got = kernels(form, machine, {slot.name: (shift, 0, shift)})(case)
            assert_same(expected, got, f"N11, {slot.name} {shift} off")


@pytest.mark.clause("N11")
@forms
def test_hundreds_of_tensors_and_large_ones_among_them(machine, routine, form):
    """Small tensors before, between and behind large ones, empty ones at both ends."""
    large = 20_000 if not routine.elementwise else 5_000
    count = 70 if routine.forms[form].merged else 12
    sizes = [0, *([3, 1, 5] * (count // 3)), large, *([2, 0, 9] * (count // 3)), 1025, 1, large + 1, 0]
    steps = [step_of(routine, lr=[0.01 * (1 + i % 9) for i in range(len(sizes))])]
    if form == "carried_norm":
        steps = [step_of(routine), *steps]  # the first has none to carry
    laws.same_bits_as_reference(kernels(form, machine), make(routine, sizes, steps=steps))


@pytest.mark.clause("N9")
@forms
def test_rebinding_each_slot_alone(machine, routine, form):
    """What a step carries over is dropped when the array that it was carried over for is another one."""
    optional = tuple(slot.name for slot in routine.slots if slot.optional and slot.name in routine.states)
    dtypes = ("float16", "float16", "float32", "float32")
    case, other = (make(routine, [300, 5, 40], dtypes, seed=seed, optional=optional) for seed in (0, 1))
    run, numbers = runner(getattr(cpu, routine.merged_name)), step_of(routine)
    for slot in routine.slots:
        placed, others = PlacedCase(machine, case), PlacedCase(machine, other)
        plan = placed.plan(form, **numbers)
        after = case
        for name in (slot.name, "grads"):
            for _ in range(2):
                plan()
                after = after.replace(steps=[numbers])
                after = after.replace(**run(after))
            placed.placed[name], others.placed[name] = others.placed[name], placed.placed[name]
            plan.rebind(**{name: [x.array for x in placed.placed[name]]})
            machine.synchronize()
            after = after.replace(**{name: [x.read().copy() for x in placed.placed[name]]})
        plan()
        expected = run(after.replace(steps=[numbers]))
        machine.synchronize()
        got = {name: [x.read() for x in placed.placed[name]] for name in expected if after.slots[name]}
        assert_same({name: expected[name] for name in got}, got, f"N9, {slot.name} rebound")
