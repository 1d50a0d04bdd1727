"""N8: a gradient is multiplied once, by `rescale_grad` and the factor of a gradient check as one number."""

import numpy as np
import pytest

from laws.marks import implementations_of_families, of, pairs, routines
from laws.routines import ALL, WITH_NORMS, implementation
from refopt import cpu, gpu
from refopt.oracle.exact.build import SIGNATURES, SMALL, make, step_of
from refopt.oracle.exact.cases import arguments, assert_same
from refopt.oracle.exact.lars import gate
from refopt.oracle.exact.laws import reference
from refopt.oracle.exact.placed import Placed, PlacedCase, kernels

pytestmark = pytest.mark.clause("N8")


@pytest.mark.parametrize("factor", [0.3, *(pytest.param(x, marks=pytest.mark.slow) for x in (7.0, 1e-5))])
@pytest.mark.parametrize("real", [np.float32, np.float64])
@implementations_of_families
def test_a_factor_is_one_number_with_rescale_grad(machine, routine, form, real, factor):
    """A factor gives the bits that its product with `rescale_grad`, rounded once, gives in its place."""
    run, dtypes = implementation(form, machine), (np.dtype(real).name,) * 3
    steps = [step_of(routine, rescale_grad=0.37), step_of(routine, rescale_grad=1e9)]
    case = make(routine, [*SMALL, 1100], dtypes, steps=[step | gate(factor, real=real) for step in steps])
    products = [float(real(step["rescale_grad"]) * real(factor)) for step in steps]
    combined = [step | dict(rescale_grad=x) for step, x in zip(steps, products, strict=True)]
    assert_same(run(case.replace(steps=combined)), run(case), "N8")


@implementations_of_families
def test_a_factor_or_a_flag_alone(machine, routine, form):
    """Either of the two may be given without the other."""
    run = implementation(form, machine)
    for name, values in (("grad_factor", (0.3, 0.7)), ("found_inf", (0.0, 1.0))):
        case = make(routine, [5, 1100], steps=[step_of(routine) | {name: np.array([x], np.float32)} for x in values])
        assert_same(reference(case.replace(steps=[gate(1.0) | step for step in case.steps])), run(case), name)


@of(pairs(WITH_NORMS))
def test_nothing_beyond_the_end_is_multiplied_by_infinity(machine, routine, form):
    """It counts 0 in a sum of squares, and 0 times infinity is no number."""
    case = make(routine, [3, 1024, 1100], steps=[step_of(routine) | gate(np.inf)])
    assert_same(reference(case), kernels(form, machine)(case), "N8")


@pytest.mark.parametrize("found", [0.0, 1.0])
@routines
def test_a_tensor_alone_takes_factor_and_flag(machine, routine, found):
    """As a list of one does, on both sides."""
    case = make(routine, [300], SIGNATURES[2], steps=[step_of(routine) | gate(0.3, found)])
    expected = reference(case)
    for name in (routine.name, routine.merged_name):
        host, placed = case.copy(), PlacedCase(machine, case)
        for module, on, put in ((cpu, host, np.array), (gpu, placed, machine.to_device)):
            positional, named = arguments(routine, on.slots)
            if name == routine.name:
                positional = [x[0] for x in positional]
                named = {key.replace("master_params", "master_param"): x and x[0] for key, x in named.items()}
            given = {key: put(value) for key, value in gate(0.3, found).items()}
            getattr(module, name)(*positional, **named, **step_of(routine), **given)
            assert_same(expected, on.outcome(), name)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@of([(routine, routine.merged_form) for routine in ALL])
def test_a_check_and_a_step_without_the_host(machine, routine, form, dtype):
    """Gradients of which one becomes inf, clipped; the factor of fp64 gradients is fp64."""
    case = make(routine, [5, 1100], (dtype,) * 3)
    placed, host = PlacedCase(machine, case), case.copy()
    spoiled = [g.copy() for g in case.grads]
    spoiled[1][7] = np.inf
    there = [Placed(machine, g).array for g in spoiled]
    scale = np.array([8], np.float32)  # the loss scale of the next iteration is data, too
    with gpu.use(machine.name):
        checks = [gpu.gradient_check(grads, loss_scale=Placed(machine, scale).array, max_norm=0.5)
                  for grads in (there, placed.grads)]
    for grads, on, check in ((spoiled, there, checks[0]), (case.grads, placed.grads, checks[1])):
        check()
        positional, named = arguments(routine, placed.slots | {"grads": on})
        found = dict(grad_factor=check.grad_factor, found_inf=check.found_inf)
        gpu.plan(routine.name, *positional, **named, **found, form=form, **step_of(routine))()
        factor, flag, _ = cpu.check_gradients(grads, loss_scale=scale, max_norm=0.5)
        positional, named = arguments(routine, host.slots | {"grads": grads})
        getattr(cpu, routine.merged_name)(*positional, **named, **step_of(routine), grad_factor=factor, found_inf=flag)
    assert factor.dtype == dtype and 0 < factor < 0.125
    assert_same(host.outcome(), placed.outcome(), "clipped steps")
