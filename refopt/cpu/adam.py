"""Adam, and AMSGrad: one tensor, and any number of them merged.

Adaptive moment estimation (Kingma and Ba, arXiv:1412.6980). The powers of beta1 and beta2 are carried from step to
step, and are those of the current step: each starts at its beta::

    g' = rescale_grad * g
    m  = beta1 * m + (1 - beta1) * g'
    u  = beta2 * u + (1 - beta2) * g' * g'
    p  = p - lr / (1 - beta1_pow) * (m / (sqrt(u) / sqrt(1 - beta2_pow) + epsilon))
    beta1_pow = beta1_pow * beta1
    beta2_pow = beta2_pow * beta2

This is ``epsilon_at="corrected"``, with epsilon as in the paper's Algorithm 1 and today's frameworks.
``"uncorrected"`` is the paper's faster form, and was Paddle's in 2019: its epsilon is effectively larger, by a factor
of 31.6 in the first step with beta2 = 0.999::

    p  = p - lr * sqrt(1 - beta2_pow) / (1 - beta1_pow) * (m / (sqrt(u) + epsilon))

AMSGrad (Reddi, Kale and Kumar 2018) replaces u in the denominator by its maximum over all steps.

With ``maximize`` the sign of g' is flipped first. Weight decay follows, by `refopt.cpu.weight_decay`: added to g'
(``decay="l2"``), or subtracted from p separately (``"decoupled"``); a weight_decay of 0 means none.
"""

import numpy as np

from refopt.checks.rows import Slot
from refopt.cpu.merged import step
from refopt.cpu.routine import MOMENTS, POWERS, routine, single
from refopt.cpu.weight_decay import DECAY, prepared


def moments(g, m, u, *, beta1, beta2):
    """The two running averages, of the gradient and of its square."""
    return beta1 * m + (1 - beta1) * g, beta2 * u + (1 - beta2) * g * g


def larger(x, y):
    """The larger of two arrays, element by element; y where either is NaN."""
    return np.where(x > y, x, y)


def descend(p, m, u, beta1_pow, beta2_pow, *, lr, epsilon, epsilon_at):
    """The new parameter."""
    if epsilon_at == "uncorrected":
        return p - lr * np.sqrt(1 - beta2_pow) / (1 - beta1_pow) * (m / (np.sqrt(u) + epsilon))
    return p - lr / (1 - beta1_pow) * (m / (np.sqrt(u) / np.sqrt(1 - beta2_pow) + epsilon))


def update(p, g, m, u, beta1_pow, beta2_pow, u_max, *, lr, beta1, beta2, epsilon, epsilon_at):
    """The new parameter, moments and powers, and with AMSGrad the new maximum."""
    m, u = moments(g, m, u, beta1=beta1, beta2=beta2)
    if u_max is not None:
        u_max = larger(u_max, u)
    denominator = u if u_max is None else u_max
    p = descend(p, m, denominator, beta1_pow, beta2_pow, lr=lr, epsilon=epsilon, epsilon_at=epsilon_at)
    return p, m, u, beta1_pow * beta1, beta2_pow * beta2, u_max


def rule(p, g, *states, lr, weight_decay, decay, maximize, **numbers):
    """The rule, applied to the gradient and the parameter from `refopt.cpu.weight_decay`."""
    p, g = prepared(p, g, lr=lr, weight_decay=weight_decay, decay=decay, maximize=maximize)
    return update(p, g, *states, lr=lr, **numbers)


def merged_adam(
    params, grads, moment1, moment2, beta1_pow, beta2_pow, *, lr, beta1=0.9, beta2=0.999, epsilon=1e-8,
    weight_decay=0.0, rescale_grad=1.0, epsilon_at="corrected", decay="l2", maximize=False, moment2_max=None,
    master_params=None, grad_factor=None, found_inf=None, rounding="nearest", seed=0,
):
    """Update every tensor of a list by Adam, in place."""
    step(ADAM, locals())


ADAM = routine(
    merged_adam, rule, source="arXiv:1412.6980; AMSGrad: Reddi et al. 2018; Paddle PR 15497",
    states=[*MOMENTS, *POWERS, Slot("moment2_max", signed=False, optional=True)],
    choices={"epsilon_at": ("corrected", "uncorrected"), **DECAY},
)
adam = single(merged_adam)
