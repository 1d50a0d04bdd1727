"""RAdam: one tensor, and any number of them merged.

Rectified Adam (Liu et al., arXiv:1908.03265), with epsilon placed as in Paddle and PyTorch. The powers and rho are
those of the current step: each power starts at its beta, rho at 1::

    g' = rescale_grad * g
    m  = beta1 * m + (1 - beta1) * g'
    u  = beta2 * u + (1 - beta2) * g' * g'
    rho_inf = 2 / (1 - beta2) - 1
    r  = sqrt((rho - 4) * (rho - 2) * rho_inf / ((rho_inf - 4) * (rho_inf - 2) * rho))
    p  = p - lr / (1 - beta1_pow) * r * sqrt(1 - beta2_pow) * (m / (sqrt(u) + epsilon))      where rho > 5
    p  = p - lr / (1 - beta1_pow) * m                                                        elsewhere
    beta1_pow = beta1_pow * beta1
    beta2_pow = beta2_pow * beta2
    rho = 1 + (rho + 1) * ((beta2 - beta2_pow) / (1 - beta2_pow))

rho is the paper's rho_t = rho_inf - 2 * t * beta2_pow / (1 - beta2_pow), which in fp32 loses most of its digits
in the first steps: at t = 5 and beta2 = 0.9999 it is off by 0.8. Computed from step to step it is off by 1e-4. Paddle's
scalar ``rho`` is a different one, (rho_inf - rho_t) / 2.

With ``maximize`` the sign of g' is flipped first. Weight decay follows, by `refopt.cpu.weight_decay`: added to g'
(``decay="l2"``), or subtracted from p separately (``"decoupled"``); a weight_decay of 0 means none.
"""

import numpy as np

from refopt.cpu.adam import moments
from refopt.cpu.merged import step
from refopt.cpu.routine import MOMENTS, POWERS, routine, scalars, single
from refopt.cpu.weight_decay import DECAY, prepared


def rectification(rho, beta2):
    """The factor by which the variance of the adaptive rate shortens the step."""
    rho_inf = 2 / (1 - beta2) - 1
    return np.sqrt((rho - 4) * (rho - 2) * rho_inf / ((rho_inf - 4) * (rho_inf - 2) * rho))


def next_rho(rho, beta2, beta2_pow):
    """rho of the next step, from the power of that step."""
    return 1 + (rho + 1) * ((beta2 - beta2_pow) / (1 - beta2_pow))


def update(p, g, m, u, beta1_pow, beta2_pow, rho, *, lr, beta1, beta2, epsilon):
    """The new parameter, moments, powers and rho."""
    m, u = moments(g, m, u, beta1=beta1, beta2=beta2)
    if rho > 5:
        rate = lr / (1 - beta1_pow) * rectification(rho, beta2) * np.sqrt(1 - beta2_pow)
        p = p - rate * (m / (np.sqrt(u) + epsilon))
    else:
        p = p - lr / (1 - beta1_pow) * m
    beta2_pow = beta2_pow * beta2
    return p, m, u, beta1_pow * beta1, beta2_pow, next_rho(rho, beta2, beta2_pow)


def rule(p, g, *states, lr, weight_decay, decay, maximize, **numbers):
    """The rule, applied to the gradient and the parameter from `refopt.cpu.weight_decay`."""
    p, g = prepared(p, g, lr=lr, weight_decay=weight_decay, decay=decay, maximize=maximize)
    return update(p, g, *states, lr=lr, **numbers)


def merged_radam(
    params, grads, moment1, moment2, beta1_pow, beta2_pow, rho, *, lr, beta1=0.9, beta2=0.999, epsilon=1e-8,
    weight_decay=0.0, rescale_grad=1.0, decay="l2", maximize=False, master_params=None, grad_factor=None,
    found_inf=None, rounding="nearest", seed=0,
):
    """Update every tensor of a list by RAdam, in place.

    Args:
        rho: P arrays like them: the length of the average of squares in the coming step, 1 at first.
    """
    step(RADAM, locals())


RADAM = routine(
    merged_radam, rule, source="arXiv:1908.03265; Paddle's radam operator",
    states=[*MOMENTS, *POWERS, *scalars(rho=1.0)],
    choices=DECAY,
)
radam = single(merged_radam)
