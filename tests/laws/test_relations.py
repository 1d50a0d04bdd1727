"""Beside the clauses: the second moment of NovoGrad, which begins with the first gradient."""

import numpy as np
from hypothesis import strategies as st

from laws.marks import few, of, pairs
from laws.routines import NOVOGRAD, implementation
from refopt import cpu
from refopt.checks.dtypes import arithmetic
from refopt.cpu.reduce import sum_of_squares
from refopt.oracle.exact.build import SIGNATURES, make, step_of
from refopt.oracle.exact.cases import assert_same
from refopt.oracle.exact.strategies import KINDS, sizes


def beginning(sizes, steps, dtypes=SIGNATURES[0], **choices):
    """A case before its first step: both moments 0."""
    case = make(NOVOGRAD[0], sizes, dtypes, steps=steps, **choices)
    return case.replace(moment=[0 * m for m in case.moment], second_moment=[0 * v for v in case.second_moment])


novograd = of(pairs(NOVOGRAD, "reference"))


@novograd
@few(4, lengths=st.lists(st.sampled_from([0, 3]), max_size=3), carried=st.sampled_from([0.0, 0.5]))
def test_the_second_moment_of_no_elements_decays(machine, routine, form, lengths, carried):
    """Their squared norm is 0: a second moment of 0 stays, others decay."""
    one, before = step_of(NOVOGRAD[0]), [np.full(1, carried, np.float32) for _ in lengths]
    left = implementation(form, machine)(make(NOVOGRAD[0], lengths, steps=[one]).replace(second_moment=before))
    faded = np.full(1, np.float32(one["beta2"]) * np.float32(carried))
    ends = [v for v, n in zip(left["second_moment"], lengths, strict=True) if not n]
    assert_same({"v": [faded] * len(ends)}, {"v": ends}, "no elements")


@novograd
@few(4, lengths=st.lists(sizes((2100,)), max_size=3), kind=KINDS)
def test_the_first_norm_is_not_averaged(machine, routine, form, lengths, kind):
    """In any step: the second moment is 0 as long as gradients are."""
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
