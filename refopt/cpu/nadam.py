"""NAdam: one tensor, and any number of them merged.

Adam with Nesterov's momentum (Dozat 2016), as in Paddle and PyTorch. The momentum grows from step to step, by a
decaying power of 0.96: ``momentum_decay_pow`` is decay_base to the power of the current step, and decay_base is
0.96**momentum_decay, computed by the caller. It starts at decay_base, ``beta2_pow`` at beta2, and ``mu_product``, the
product over the steps taken, at 1::

    g'       = rescale_grad * g
    mu       = beta1 * (1 - 0.5 * momentum_decay_pow)
    momentum_decay_pow = momentum_decay_pow * decay_base
    mu_next  = beta1 * (1 - 0.5 * momentum_decay_pow)
    mu_product = mu_product * mu
    m  = beta1 * m + (1 - beta1) * g'
    u  = beta2 * u + (1 - beta2) * g' * g'
    c  = mu_next / (1 - mu_product * mu_next) * m + (1 - mu) / (1 - mu_product) * g'
    p  = p - lr * (c / (sqrt(u / (1 - beta2_pow)) + epsilon))
    beta2_pow = beta2_pow * beta2

Paddle's powers are those of the previous step, and its ``momentum_decay_pow`` is a power of 0.96.

With ``maximize`` the sign of g' is flipped first. Weight decay follows, by `refopt.cpu.weight_decay`: added to g'
(``decay="l2"``), or subtracted from p separately (``"decoupled"``); a weight_decay of 0 means none.
"""

import numpy as np

from refopt.cpu.adam import moments
from refopt.cpu.merged import step
from refopt.cpu.routine import MOMENTS, routine, scalars, single
from refopt.cpu.weight_decay import DECAY, prepared


def update(p, g, m, u, momentum_decay_pow, beta2_pow, mu_product, *, lr, beta1, beta2, epsilon, decay_base):
    """The new parameter, moments, powers and product."""
    mu = beta1 * (1 - 0.5 * momentum_decay_pow)
    momentum_decay_pow = momentum_decay_pow * decay_base
    mu_next = beta1 * (1 - 0.5 * momentum_decay_pow)
    mu_product = mu_product * mu
    m, u = moments(g, m, u, beta1=beta1, beta2=beta2)
    c = mu_next / (1 - mu_product * mu_next) * m + (1 - mu) / (1 - mu_product) * g
    p = p - lr * (c / (np.sqrt(u / (1 - beta2_pow)) + epsilon))
    return p, m, u, momentum_decay_pow, beta2_pow * beta2, mu_product


def rule(p, g, *states, lr, weight_decay, decay, maximize, **numbers):
    """The rule, applied to the gradient and the parameter from `refopt.cpu.weight_decay`."""
    p, g = prepared(p, g, lr=lr, weight_decay=weight_decay, decay=decay, maximize=maximize)
    return update(p, g, *states, lr=lr, **numbers)


def merged_nadam(
    params, grads, moment1, moment2, momentum_decay_pow, beta2_pow, mu_product, *, lr, beta1=0.9, beta2=0.999,
    epsilon=1e-8, decay_base=0.96**0.004, weight_decay=0.0, rescale_grad=1.0, decay="l2", maximize=False,
    master_params=None, grad_factor=None, found_inf=None, rounding="nearest", seed=0,
):
    """Update every tensor of a list by NAdam, in place.

    Args:
        momentum_decay_pow: P arrays of one element, of the arithmetic type: decay_base to the power of the coming
            step, decay_base at first.
        mu_product: P arrays like them: the product of mu over the steps taken, 1 at first.
        decay_base: 0.96**momentum_decay; by default that of a momentum_decay of 0.004. At least 0.
    """
    step(NADAM, locals())


NADAM = routine(
    merged_nadam, rule, source="Dozat 2016; Paddle's nadam operator",
    states=[*MOMENTS, *scalars(momentum_decay_pow="decay_base", beta2_pow="beta2", mu_product=1.0)],
    choices=DECAY,
)
nadam = single(merged_nadam)
