"""What is wrong, or easily is, in LAMB."""

from functools import partial

import numpy as np

from refopt.cpu.adam import moments
from refopt.cpu.lamb import direction, trust_ratio
from refopt.cpu.reduce import sum_of_squares
from refopt.oracle.wrong.rule import Wrong


def lamb_with(
    p, g, m, u, b1, b2, *, stored, lr, beta1, beta2, epsilon, weight_decay, always_adapt,
    towards=direction, ratio=trust_ratio, squares=sum_of_squares, step=lambda p, lr, ratio, r: p - lr * ratio * r,
):  # fmt: skip
    """The rule, with places to change."""
    m, u = moments(g, m, u, beta1=beta1, beta2=beta2)
    of_moments = stored("moment1", m), stored("moment2", u)
    r = towards(p, *of_moments, b1, b2, epsilon=epsilon, weight_decay=weight_decay)
    norms = np.sqrt(squares(p)), np.sqrt(squares(r))
    p = step(p, lr, ratio(*norms, weight_decay=weight_decay, always_adapt=always_adapt), r)
    return p, m, u, b1 * beta1, b2 * beta2


def decay_after_the_norm(p, g, m, u, b1, b2, *, weight_decay, **numbers):
    def towards(*arrays, epsilon, weight_decay):
        return direction(*arrays, epsilon=epsilon, weight_decay=0 * weight_decay)

    new, *rest = lamb_with(p, g, m, u, b1, b2, weight_decay=weight_decay, towards=towards, **numbers)
    return new - numbers["lr"] * weight_decay * p, *rest


def lamb_uncorrected(p, m, u, b1, b2, **numbers):
    return direction(p, m, u, 0 * b1, 0 * b2, **numbers)


def lamb_roots_divided(p, m, u, b1, b2, *, epsilon, weight_decay):
    return m / (1 - b1) / (np.sqrt(u) / np.sqrt(1 - b2) + epsilon) + weight_decay * p


def lamb_step_prepared(p, m, u, b1, b2, *, epsilon, weight_decay):
    return m / ((1 - b1) * (np.sqrt(u / (1 - b2)) + epsilon)) + weight_decay * p


def ratio_by_norms_alone(p_norm, r_norm, *, weight_decay, always_adapt):
    return trust_ratio(p_norm, r_norm, weight_decay=weight_decay, always_adapt=True)


def ratio_by_decay_alone(p_norm, r_norm, *, weight_decay, always_adapt):
    return p_norm / r_norm if weight_decay > 0 or always_adapt else type(p_norm)(1)


def ratio_clipped(p_norm, r_norm, **numbers):
    return min(trust_ratio(p_norm, r_norm, **numbers), type(p_norm)(1))


RULES = {
    "DecayAfterTheNorm": Wrong("decay after the norm: not in the direction", decay_after_the_norm),
    "Uncorrected": Wrong("no bias correction", partial(lamb_with, towards=lamb_uncorrected)),
    "RootsDivided": Wrong(None, partial(lamb_with, towards=lamb_roots_divided)),
    "StepPrepared": Wrong(None, partial(lamb_with, towards=lamb_step_prepared)),
    "RatioByNormsAlone": Wrong(
        "trust ratio even without decay (always_adapt)", partial(lamb_with, ratio=ratio_by_norms_alone)
    ),
    "RatioByDecayAlone": Wrong("trust ratio whatever the norms are", partial(lamb_with, ratio=ratio_by_decay_alone)),
    "RatioForgotten": Wrong("no trust ratio", partial(lamb_with, ratio=lambda p_norm, *_, **__: type(p_norm)(1))),
    "RatioClipped": Wrong("trust ratio clipped at 1", partial(lamb_with, ratio=ratio_clipped)),
    "SumByNumPy": Wrong(None, partial(lamb_with, squares=lambda x: np.sum(x * x))),
    "SumInIndexOrder": Wrong(
        None, partial(lamb_with, squares=lambda x: np.add.accumulate(x * x)[-1] if x.size else x.sum())
    ),
    "StepRegrouped": Wrong(None, partial(lamb_with, step=lambda p, lr, ratio, r: p - lr * (ratio * r))),
}
