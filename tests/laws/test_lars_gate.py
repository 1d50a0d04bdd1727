"""LARS steps that are given what a gradient check has found, with the clauses of docs/numerics.md."""

import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from refopt import cpu, gpu, simt
from refopt.catalog import LARS_MOMENTUM
from refopt.gpu import runtime, tables
from refopt.oracle.exact import laws
from refopt.oracle.exact.build import SMALL
from refopt.oracle.exact.cases import arguments, assert_same
from refopt.oracle.exact.lars import STEP, gate, gated, make
from refopt.oracle.exact.laws import reference
from refopt.oracle.exact.placed import Placed, PlacedCase, kernels
from refopt.oracle.exact.strategies import cases

forms = pytest.mark.parametrize("form", LARS_MOMENTUM.forms)
implementations = pytest.mark.parametrize("form", ["reference", *LARS_MOMENTUM.forms])
CASES = dict(gated())
GATES = st.builds(gate, st.sampled_from([1.0, 0.3, 1 / 65536, 3.0, 0.0]), st.sampled_from([0.0, 0.0, 1.0, np.nan]))


def implementation(form, machine):
    return reference if form == "reference" else kernels(form, machine)


def planned(machine, case, form, **given):
    """The arrays of a case, a plan with a factor and a flag over them, and how to set the two."""
    placed = PlacedCase(machine, case)
    targets = {name: Placed(machine, value) for name, value in gate(1.0).items()}
    step = placed.plan(form, **{name: target.array for name, target in targets.items()}, **given)

    def set_gate(factor, found=0.0):
        for name, value in gate(factor, found).items():
            targets[name]._memory.copy_to_device(Placed(machine, value)._memory)

    return placed, step, set_gate


@pytest.mark.clause("N8", "N9")
@forms
@pytest.mark.parametrize("name", CASES)
def test_fixed_cases(machine, form, name):
    """Taken and skipped steps in any order leave the reference's bits."""
    laws.same_bits_as_reference(kernels(form, machine), CASES[name])


@forms
def test_nothing_beyond_the_end_is_multiplied_by_infinity(machine, form):
    """It counts 0 in a sum of squares, and 0 times infinity is no number."""
    laws.same_bits_as_reference(kernels(form, machine), make([3, 1024, 1100], steps=[STEP | gate(np.inf)]))


@forms
@given(data=st.data())
def test_kernel_is_reference(machine, form, data):
    """The same for every list of tensors, and merged as one at a time."""
    case = data.draw(cases(LARS_MOMENTUM, max_tensors=4, large=False, max_steps=4))
    case = case.replace(steps=[step | data.draw(GATES) for step in case.steps])
    laws.same_bits_as_reference(kernels(form, machine), case)
    laws.merged_is_one_at_a_time(reference, case)


@pytest.mark.clause("N8")
@implementations
@pytest.mark.parametrize("factor", [0.3, 7.0, 1e-5])
@pytest.mark.parametrize("real", [np.float32, np.float64])
def test_factor_is_one_number_with_rescale(machine, form, factor, real):
    """A factor gives the bits that its product with ``rescale_grad``, rounded once, gives in its place."""
    run, dtypes = implementation(form, machine), (np.dtype(real).name,) * 3
    steps = [STEP | dict(rescale_grad=0.37), STEP | dict(rescale_grad=1e9)]
    case = make([*SMALL, 1100], dtypes, steps=[step | gate(factor, real=real) for step in steps])
    products = [float(real(step["rescale_grad"]) * real(factor)) for step in steps]
    combined = [step | dict(rescale_grad=x) for step, x in zip(steps, products, strict=True)]
    assert_same(run(case.replace(steps=combined)), run(case), "N8")


@implementations
def test_a_factor_or_a_flag_alone(machine, form):
    """Either of the two may be given without the other."""
    run = implementation(form, machine)
    for name, values in (("grad_factor", (0.3, 0.7)), ("found_inf", (0.0, 1.0))):
        steps = [STEP | {name: np.array([value], np.float32)} for value in values]
        case = make([5, 1100], steps=steps)
        assert_same(reference(case.replace(steps=[gate(1.0) | step for step in steps])), run(case), name)


@pytest.mark.clause("N9")
@forms
def test_a_skipped_step_does_nothing(executor, form):
    """Nothing is read and nothing is written, once there is a norm to carry over."""
    placed, step, set_gate = planned(executor, make([*SMALL, 2100]), form, **STEP)
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


@pytest.mark.clause("N9")
@forms
def test_skipped_after_an_outside_write(machine, form):
    """The norm that a plan was told to take anew is taken, and carried over, whether or not the step is."""
    case = make([5, 3000], steps=[STEP])
    placed, step, set_gate = planned(machine, case, form, **STEP)
    step()
    middle = placed.outcome()
    larger = [x * np.float32(2) for x in middle["params"]]
    for target, value in zip(placed.placed["params"], larger, strict=True):
        target._memory.copy_to_device(Placed(machine, value)._memory)
    step.refresh()
    for found in (1.0, 1.0, 0.0):
        set_gate(0.5, found)
        step()
    after = case.replace(**middle | {"params": larger, "master_params": None}, steps=[STEP | gate(0.5)])
    assert_same(reference(after), placed.outcome(), "N9")


@forms
def test_rebound_plans_keep_factor_and_flag(machine, form):
    """Other gradients, and fewer of them, are multiplied and skipped like the first ones."""
    case = make([5, 300, 7], steps=[STEP])
    placed, step, set_gate = planned(machine, case, form, **STEP)
    grads, expected = placed.grads, case
    for absent, factor, found in ((None, 0.3, 0.0), (1, 0.7, 0.0), (1, 0.7, 1.0), (0, 0.2, 0.0)):
        step.rebind(grads=[None if i == absent else g for i, g in enumerate(grads)])
        set_gate(factor, found)
        step()
        now = [None if i == absent else g for i, g in enumerate(case.grads)]
        left = reference(expected.replace(grads=now, steps=[STEP | gate(factor, found)]))
        expected = case.replace(**{name: case.slots[name] and values for name, values in left.items()})
    assert_same(expected.outcome(), placed.outcome(), "rebind")


@forms
@pytest.mark.parametrize("schedule", ["forward", "random"])
def test_no_races_and_nothing_out_of_bounds(executor, form, schedule, monkeypatch):
    """Taken and skipped steps, watched; every block of a cooperative launch comes to the barrier or none does."""
    monkeypatch.setattr(tables, "tiles_per_chunk", lambda element_bytes: 2)
    _, step, set_gate = planned(executor, make([4100, 0, 1, 300]), form, **STEP)
    for found in (1.0, 0.0, 1.0, 0.0):
        set_gate(0.3, found)
        with simt.observe(count=False, watch=True, schedule=schedule, seed=3):
            step()


@pytest.mark.parametrize("found", [0.0, 1.0])
def test_single_tensor_calls(machine, found):
    """``lars_momentum`` of a tensor is ``merged_lars_momentum`` of a list of one, on both sides."""
    case = make([300], ("float16", "float16", "float32", "float32"), steps=[STEP | gate(0.3, found)])
    expected = reference(case)
    for name in ("lars_momentum", "merged_lars_momentum"):
        host, placed = case.copy(), PlacedCase(machine, case)
        for module, on, put in ((cpu, host, np.array), (gpu, placed, machine.to_device)):
            positional, named = arguments(LARS_MOMENTUM, on.slots)
            if name == "lars_momentum":
                positional, named = [x[0] for x in positional], {"master_param": named["master_params"][0]}
            given = {key: put(value) for key, value in gate(0.3, found).items()}
            getattr(module, name)(*positional, **named, **STEP, **given)
            assert_same(expected, on.outcome(), name)


def test_a_check_and_steps_without_the_host(machine):
    """Gradients of which one becomes inf, clipped; the factor of fp64 gradients is fp64."""
    for dtype in ("float32", "float64"):
        case = make([5, 1100], (dtype,) * 3)
        placed, host = PlacedCase(machine, case), case.copy()
        spoiled = [g.copy() for g in case.grads]
        spoiled[1][7] = np.inf
        there = [Placed(machine, g).array for g in spoiled]
        with gpu.use(machine.name):
            checks = [gpu.gradient_check(grads, max_norm=0.5) for grads in (there, placed.grads)]
        for grads, on, check in ((spoiled, there, checks[0]), (case.grads, placed.grads, checks[1])):
            check()
            positional, named = arguments(LARS_MOMENTUM, placed.slots | {"grads": on})
            found = dict(grad_factor=check.grad_factor, found_inf=check.found_inf)
            gpu.plan("lars_momentum", *positional, **named, **found, form="carried_norm", **STEP)()
            factor, flag, _ = cpu.check_gradients(grads, max_norm=0.5)
            positional, named = arguments(LARS_MOMENTUM, host.slots | {"grads": grads})
            cpu.merged_lars_momentum(*positional, **named, **STEP, grad_factor=factor, found_inf=flag)
        assert factor.dtype == dtype and 0 < factor < 1
        assert_same(host.outcome(), placed.outcome(), "clipped steps")


# What the compiler makes of it.


def kernels_of(form, recorder, given):
    """By name, the kernels of a form for a step that is given something or nothing, and their arguments' types."""
    given = {name: recorder.to_device(value) for name, value in given.items()}
    PlacedCase(recorder, make([5])).plan(form, **STEP, **given)
    return dict(recorder.kernels)


@pytest.mark.clause("N3")
@forms
def test_kernels_are_exact_and_spared_what_is_not_given(form, monkeypatch):
    """With a factor, too; a step that is given nothing has kernels that do not look for it."""
    test_ptx = pytest.importorskip("gpu.test_ptx")
    recorder = test_ptx.Recorder()
    monkeypatch.setattr(runtime, "_executor", lambda: recorder)

    def parameters(ptx):
        """How many of the last two, factor and flag, are loaded."""
        names = re.findall(r"\.param \.u64 (\w+)", ptx[: ptx.index("{")])
        return sum(f"[{name}]" in ptx for name in names[-2:])

    plain, full = (kernels_of(form, recorder, given) for given in ({}, gate(1.0)))
    assert plain.keys() == full.keys()
    for name, (made, signature) in full.items():
        ptx = test_ptx.exact_ptx(made, signature)
        test_ptx.assert_not_spilled(ptx)
        plain_made, plain_signature = plain[name]
        assert (parameters(plain_made.ptx(plain_signature)), parameters(ptx)) == (0, 2), name
