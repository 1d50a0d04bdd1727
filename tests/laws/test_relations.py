"""Beside the clauses: one optimizer is another with a coefficient switched off, and what a first step comes to."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from laws.marks import few, of, pairs
from laws.routines import NOVOGRAD, implementation
from refopt import cpu
from refopt.catalog import ROUTINES
from refopt.checks.dtypes import arithmetic
from refopt.cpu.reduce import sum_of_squares
from refopt.oracle.exact.build import SIGNATURES, make, scaled, step_of
from refopt.oracle.exact.cases import assert_same
from refopt.oracle.exact.laws import reference
from refopt.oracle.exact.strategies import KINDS, sizes

LENGTHS, SEEDS = st.lists(st.integers(0, 300), max_size=3), st.integers(0, 2**32 - 1)
STEP = st.fixed_dictionaries({"lr": st.floats(0, 4), "l2_decay": st.sampled_from([0.0, 0.1])})


@given(lengths=LENGTHS, seed=SEEDS, step=STEP, use_nesterov=st.booleans())
def test_momentum_of_zero_is_sgd(lengths, seed, step, use_nesterov):
    """With mu = 0 the velocity is the gradient."""
    steps, choices = [step | {"mu": 0.0}], {"use_nesterov": use_nesterov}
    case = make(ROUTINES["momentum"], lengths, seed=seed, steps=steps, **choices)
    sgd = make(ROUTINES["sgd"], lengths, steps=[step]).replace(params=case.params, grads=case.grads)
    assert_same({"params": reference(sgd)["params"]}, reference(case), "mu = 0")


@given(lengths=LENGTHS, seed=SEEDS, power=st.integers(-8, 3), mu=st.floats(0, 1))
def test_momentum_is_lars_without_its_ratio(lengths, seed, power, mu):
    """With a power of two for lr, which LARS keeps within the velocity, the two agree in every bit."""
    lr = 2.0**power
    case = make(ROUTINES["momentum"], lengths, seed=seed, steps=[dict(lr=lr, mu=mu, l2_decay=0.0)] * 3)
    slots = dict(params=case.params, grads=case.grads, velocities=[x * np.float32(lr) for x in case.velocities])
    steps = [dict(lr=lr, mu=mu, lars_weight_decay=0.0)] * 3
    lars = make(ROUTINES["lars_momentum"], lengths, steps=steps, adapt="decay").replace(**slots)
    assert_same({"params": reference(case)["params"]}, reference(lars), "LARS")


@given(lengths=LENGTHS, seed=SEEDS, lr=st.floats(0, 4))
def test_adam_without_memory_is_the_sign_of_the_gradient(lengths, seed, lr):
    """With both betas 0 the moments are g and g * g, and the quotient is g over its size."""
    steps = [dict(lr=lr, beta1=0.0, beta2=0.0, epsilon=0.0)]
    case = make(ROUTINES["adam"], lengths, seed=seed, steps=steps)
    zero = [np.zeros(1, np.float32) for _ in lengths]
    expected = [p - np.float32(lr) * np.sign(g) for p, g in zip(case.params, case.grads, strict=True)]
    assert_same({"params": expected}, reference(case.replace(beta1_pow=zero, beta2_pow=zero)), "betas 0")


# NovoGrad's second moment.


def beginning(sizes, steps, dtypes=SIGNATURES[0], **choices):
    """A case before its first step: both moments 0."""
    case = make(NOVOGRAD[0], sizes, dtypes, steps=steps, **choices)
    return case.replace(moment=[0 * m for m in case.moment], second_moment=[0 * v for v in case.second_moment])


novograd = of(pairs(NOVOGRAD, "reference"))


@novograd
@few(4, count=st.integers(0, 30), lr=st.floats(0, 4))
def test_novograds_first_step_of_one_element_is_its_sign(machine, routine, form, count, lr):
    """sqrt(g * g) is |g| in binary arithmetic, so the quotient is 1 or -1."""
    case = beginning([1] * count, [dict(lr=lr, epsilon=0.0)])
    got = implementation(form, machine)(case)
    expected = [p - np.float32(lr) * np.sign(g) for p, g in zip(case.params, case.grads, strict=True)]
    assert_same({"params": expected}, got, "sign")


@novograd
@few(4, lengths=st.lists(sizes(()), max_size=3), power=st.integers(-20, 20), grad_averaging=st.booleans())
def test_the_size_of_gradients_does_not_matter(machine, routine, form, lengths, power, grad_averaging):
    """Without epsilon, a power of two on all gradients changes no bit but of the second moment."""
    steps = [step_of(NOVOGRAD[0], epsilon=0.0), step_of(NOVOGRAD[0], epsilon=0.0, lr=0.25)]
    case = beginning(lengths, steps, grad_averaging=grad_averaging)
    small, large = (implementation(form, machine)(scaled(case, factor, "grads")) for factor in (1, 2.0**power))
    small["second_moment"] = [v * np.float32(4.0**power) for v in small["second_moment"]]
    assert_same(small, large, "scale")


@novograd
@few(4, lengths=st.lists(st.sampled_from([0, 3]), max_size=3), carried=st.sampled_from([0.0, 0.5]))
def test_the_second_moment_of_no_elements_fades(machine, routine, form, lengths, carried):
    """Their squared norm is 0: a second moment of 0 stays, another fades."""
    one, before = step_of(NOVOGRAD[0]), [np.full(1, carried, np.float32) for _ in lengths]
    left = implementation(form, machine)(make(NOVOGRAD[0], lengths, steps=[one]).replace(second_moment=before))
    faded = np.full(1, np.float32(one["beta2"]) * np.float32(carried))
    ends = [v for v, n in zip(left["second_moment"], lengths, strict=True) if not n]
    assert_same({"v": [faded] * len(ends)}, {"v": ends}, "no elements")


@novograd
@few(4, lengths=st.lists(sizes((2100,)), max_size=3), kind=KINDS)
def test_the_first_gradient_is_taken_as_it_is(machine, routine, form, lengths, kind):
    """Whenever it comes: as long as all of a gradient is 0, so is the second moment."""
    run, one, dtypes = implementation(form, machine), step_of(NOVOGRAD[0]), tuple(filter(None, kind))
    real = arithmetic(kind[0])
    case = beginning(lengths, [one, one], dtypes)
    still = run(case.replace(grads=[0 * g for g in case.grads]))
    assert_same({"v": [np.zeros(1, real)] * len(lengths)}, {"v": still["second_moment"]}, "no gradient")
    got = run(case.replace(**{name: still[name] for name in still if case.slots[name]}, steps=[one]))
    norms = [sum_of_squares(real(one["rescale_grad"]) * g.astype(real)) for g in case.grads]
    assert_same({"v": [np.full(1, n, real) for n in norms]}, {"v": got["second_moment"]}, "first gradient")


def test_novograd_in_figures():
    """`novograd` has the defaults of `merged_novograd`: decay 0, no averaging."""
    p, g, m, v = np.float32([1, 2]), np.float32([3, 4]), np.zeros(2, np.float32), np.zeros(1, np.float32)
    cpu.novograd(p, g, m, v, lr=0.5)
    assert v[0] == 25 and np.allclose(m, [0.6, 0.8]) and np.allclose(p, [0.7, 1.6])
