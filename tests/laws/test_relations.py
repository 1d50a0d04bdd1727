"""Beside the clauses: one optimizer is another with a coefficient switched off, and what a first step comes to."""

import numpy as np
import pytest

from laws.marks import of, pairs
from laws.routines import NOVOGRAD, implementation
from refopt import cpu
from refopt.catalog import ROUTINES
from refopt.cpu.reduce import sum_of_squares
from refopt.oracle.exact.build import SIGNATURES, make, scaled, step_of
from refopt.oracle.exact.cases import assert_same
from refopt.oracle.exact.laws import reference


def values_of(routine, slots, **numbers):
    return reference(make(ROUTINES[routine], [300, 5]).replace(**slots, steps=[numbers]))


def test_momentum_of_zero_is_sgd():
    """With mu = 0 the velocity is the gradient."""
    case = make(ROUTINES["momentum"], [300, 5])
    sgd = values_of("sgd", {name: case.slots[name] for name in ("params", "grads")}, lr=0.3, l2_decay=0.1)
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
    slots = dict(params=case.params, grads=case.grads, velocities=inside)
    steps = [dict(lr=lr, mu=0.9, lars_weight_decay=0.0)] * 3
    lars = make(ROUTINES["lars_momentum"], [300, 5]).replace(**slots, steps=steps, choices={"adapt": "decay"})
    assert_same({"params": momentum["params"]}, {"params": reference(lars)["params"]}, "LARS")


def test_adam_without_memory_is_the_sign_of_the_gradient():
    """With both betas 0 the moments are g and g * g, and the quotient is g over its size."""
    case = make(ROUTINES["adam"], [300], steps=[dict(lr=0.5, beta1=0.0, beta2=0.0, epsilon=0.0)])
    zero = [np.zeros(1, np.float32)]
    got = reference(case.replace(beta1_pow=zero, beta2_pow=zero))
    assert_same({"p": [case.params[0] - np.float32(0.5) * np.sign(case.grads[0])]}, {"p": got["params"]}, "betas 0")


# NovoGrad's second moment.


def beginning(sizes, steps, dtypes=SIGNATURES[0], **choices):
    """A case before its first step: both moments 0."""
    case = make(NOVOGRAD[0], sizes, dtypes, steps=steps, **choices)
    return case.replace(moment=[0 * m for m in case.moment], second_moment=[0 * v for v in case.second_moment])


@of(pairs(NOVOGRAD, "reference"))
def test_novograds_first_step_of_one_element_is_its_sign(machine, routine, form):
    """sqrt(g * g) is |g| in binary arithmetic, so the quotient is 1 or -1."""
    case = beginning([1] * 30, [dict(lr=0.5, epsilon=0.0)])
    got = implementation(form, machine)(case)
    expected = [p - np.float32(0.5) * np.sign(g) for p, g in zip(case.params, case.grads, strict=True)]
    assert_same({"params": expected}, got, "sign")


@pytest.mark.parametrize("grad_averaging", [False, True])
@of(pairs(NOVOGRAD, "reference"))
def test_the_size_of_gradients_does_not_matter(machine, routine, form, grad_averaging):
    """Without epsilon, a power of two on all gradients changes no bit but of the second moment."""
    steps = [step_of(NOVOGRAD[0], epsilon=0.0), step_of(NOVOGRAD[0], epsilon=0.0, lr=0.25)]
    case = beginning([5, 1300], steps, grad_averaging=grad_averaging)
    small, large = (implementation(form, machine)(scaled(case, factor, "grads")) for factor in (1, 1024))
    small["second_moment"] = [v * np.float32(2**20) for v in small["second_moment"]]
    assert_same(small, large, "scale")


@pytest.mark.parametrize("sizes", [[0, 3, 0], [0, 0]])
@of(pairs(NOVOGRAD, "reference"))
def test_the_second_moment_of_no_elements_fades(machine, routine, form, sizes):
    """Their squared norm is 0: a second moment of 0 stays, another fades."""
    one = step_of(NOVOGRAD[0])
    carried = [np.full(1, x, np.float32) for x in (0.0, 0.5, 0.5)[: len(sizes) - 1]] + [np.full(1, 0.5, np.float32)]
    left = implementation(form, machine)(make(NOVOGRAD[0], sizes, steps=[one]).replace(second_moment=carried))
    faded = np.full(1, np.float32(one["beta2"]) * np.float32(0.5))
    ends = [left["second_moment"][0], left["second_moment"][-1]]
    assert_same({"v": [np.zeros(1, np.float32), faded]}, {"v": ends}, "no elements")


@pytest.mark.parametrize("dtypes", SIGNATURES[:3], ids="-".join)
@of(pairs(NOVOGRAD, "reference"))
def test_the_first_gradient_is_taken_as_it_is(machine, routine, form, dtypes):
    """Whenever it comes: as long as all of a gradient is 0, so is the second moment."""
    run, one = implementation(form, machine), step_of(NOVOGRAD[0])
    real = np.float64 if dtypes[0] == "float64" else np.float32
    case = beginning([2100, 4], [one, one], dtypes)
    still = run(case.replace(grads=[0 * g for g in case.grads]))
    assert_same({"v": [np.zeros(1, real)] * 2}, {"v": still["second_moment"]}, "no gradient")
    got = run(case.replace(**{name: still[name] for name in still if case.slots[name]}, steps=[one]))
    norms = [sum_of_squares(real(one["rescale_grad"]) * g.astype(real)) for g in case.grads]
    assert_same({"v": [np.full(1, n) for n in norms]}, {"v": got["second_moment"]}, "first gradient")


def test_novograd_in_figures():
    """`novograd` has the defaults of `merged_novograd`: decay 0, no averaging."""
    p, g, m, v = np.float32([1, 2]), np.float32([3, 4]), np.zeros(2, np.float32), np.zeros(1, np.float32)
    cpu.novograd(p, g, m, v, lr=0.5)
    assert v[0] == 25 and np.allclose(m, [0.6, 0.8]) and np.allclose(p, [0.7, 1.6])
