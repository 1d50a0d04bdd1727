"""N8: a gradient is multiplied once, by `rescale_grad` and the factor of a gradient check as one number."""

import math

import numpy as np
import pytest
from hypothesis import assume, example
from hypothesis import strategies as st

from laws.marks import few, of, pairs, routines
from laws.routines import ALL, WITH_NORMS
from refopt import cpu, gpu
from refopt.checks.dtypes import arithmetic
from refopt.oracle.exact.build import make, step_of
from refopt.oracle.exact.cases import arguments, assert_same
from refopt.oracle.exact.lars import gate
from refopt.oracle.exact.laws import reference, same_bits_as_reference
from refopt.oracle.exact.placed import Placed, PlacedCase, kernels
from refopt.oracle.exact.strategies import cases, sizes, storage

pytestmark = pytest.mark.clause("N8")
# The kernels of every form have the reference's bits with a factor, a flag, or both: N4.


@pytest.mark.parametrize("params", [("float32", "float16", "bfloat16"), ("float64",)], ids=["fp32", "fp64"])
@routines
@few(4, data=st.data())
def test_a_factor_multiplies_rescale_grad(routine, params, data):
    """A factor gives the same bits as `rescale_grad` set to their product, rounded once.

    One that is not given is 1, and a flag that is not given 0.
    """
    case, real = data.draw(cases(routine, kinds=storage(params), max_steps=3, gated=True)), arithmetic(params[0])
    taken = []
    for step in case.steps:
        numbers = {name: x for name, x in step.items() if name not in ("grad_factor", "found_inf")}
        with np.errstate(all="ignore"):
            product = real(step["rescale_grad"]) * real(step.get("grad_factor", [1])[0])
        assume(0 < product < math.inf)
        if step.get("found_inf", 0) == 0:
            taken.append(numbers | {"rescale_grad": float(product)})
    assert_same(reference(case.replace(steps=taken)), reference(case), "N8")


@of(pairs(WITH_NORMS))
@few(4, lengths=st.lists(sizes(()), max_size=3), factor=st.sampled_from([math.inf, math.nan]))
@example([3, 1024, 1100], math.inf)
def test_nothing_beyond_the_end_is_multiplied_by_infinity(machine, routine, form, lengths, factor):
    """Elements beyond the end count 0 in a sum of squares, although 0 times infinity is NaN."""
    case = make(routine, lengths, steps=[step_of(routine) | gate(factor)])
    same_bits_as_reference(kernels(form, machine), case)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@of([(routine, routine.merged_form) for routine in ALL])
@few(4, data=st.data())
def test_a_check_and_a_step_without_the_host(machine, routine, form, dtype, data):
    """For any gradients, unscaled and clipped; loss scale and factor are arrays, in fp64 for fp64 gradients."""
    kinds = st.just((dtype, dtype, dtype, None))
    case = data.draw(cases(routine, 1, 3, kinds, max_steps=1, large=False))
    scale, limit = np.full(1, data.draw(st.sampled_from([1, 8, 65536])), np.float32), data.draw(st.floats(0, 8))
    placed, host, (step,) = PlacedCase(machine, case), case.copy(), case.steps
    with gpu.use(machine.name):
        check = gpu.gradient_check(placed.grads, loss_scale=Placed(machine, scale).array, max_norm=limit)
    check()
    placed.plan(form, grad_factor=check.grad_factor, found_inf=check.found_inf)(**step)
    factor, flag, _ = cpu.check_gradients(case.grads, loss_scale=scale, max_norm=limit)
    positional, named = arguments(routine, host.slots)
    merged = getattr(cpu, routine.merged_name)
    merged(*positional, **named, **step, **case.choices, grad_factor=factor, found_inf=flag)
    assert factor.dtype == (dtype if any(g is not None for g in case.grads) else np.float32)
    assert_same(host.outcome(), placed.outcome(), "clipped steps")
