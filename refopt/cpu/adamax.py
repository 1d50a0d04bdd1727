"""Adamax: one tensor, and any number of them merged.

Adam with the infinity norm (Kingma and Ba, arXiv:1412.6980, Algorithm 2) in the form of Paddle's ``adamax``
operator. The power of beta1 is that of the current step, and starts at beta1::

    g' = rescale_grad * g
    m  = beta1 * m + (1 - beta1) * g'
    n  = larger(|g'|, beta2 * n + epsilon)
    p  = p - lr / (1 - beta1_pow) * (m / n)
    beta1_pow = beta1_pow * beta1

This is ``epsilon_at="norm"``, as in Paddle. PyTorch adds epsilon to the gradient, ``"gradient"``; the paper has
none::

    n  = larger(|g'| + epsilon, beta2 * n)

If g' is NaN, n ignores it, and a NaN in n stays (N5); m, and so p, is NaN in both cases.

With ``maximize`` the sign of g' is flipped first. Weight decay follows, by `refopt.cpu.weight_decay`: added to g'
(``decay="l2"``), or subtracted from p separately (``"decoupled"``); a weight_decay of 0 means none.
"""

from refopt.checks.rows import Slot
from refopt.cpu.adam import larger
from refopt.cpu.merged import step
from refopt.cpu.routine import routine, scalars, single
from refopt.cpu.weight_decay import DECAY, prepared


def norm(g, n, *, beta2, epsilon, epsilon_at):
    """The new norm."""
    if epsilon_at == "gradient":
        return larger(abs(g) + epsilon, beta2 * n)
    return larger(abs(g), beta2 * n + epsilon)


def update(p, g, m, n, beta1_pow, *, lr, beta1, beta2, epsilon, epsilon_at):
    """The new parameter, moment, norm and power."""
    m = beta1 * m + (1 - beta1) * g
    n = norm(g, n, beta2=beta2, epsilon=epsilon, epsilon_at=epsilon_at)
    p = p - lr / (1 - beta1_pow) * (m / n)
    return p, m, n, beta1_pow * beta1


def rule(p, g, *states, lr, weight_decay, decay, maximize, **numbers):
    """The rule, applied to the gradient and the parameter from `refopt.cpu.weight_decay`."""
    p, g = prepared(p, g, lr=lr, weight_decay=weight_decay, decay=decay, maximize=maximize)
    return update(p, g, *states, lr=lr, **numbers)


def merged_adamax(
    params, grads, moment, inf_norm, beta1_pow, *, lr, beta1=0.9, beta2=0.999, epsilon=1e-8, weight_decay=0.0,
    rescale_grad=1.0, epsilon_at="norm", decay="l2", maximize=False, master_params=None, grad_factor=None,
    found_inf=None, rounding="nearest", seed=0,
):
    """Update every tensor of a list by Adamax, in place.

    Args:
        moment: P arrays of the same shapes, of the arithmetic type, of the parameter's dtype, or in 8 bits (numerics,
            N21): the running average of the gradient, 0 at first.
        inf_norm: P arrays like them: the decaying maximum of the gradient's magnitude, 0 at first.
        beta1, beta2: how slowly the moment moves and the norm decays, at least 0 and below 1.
        epsilon: keeps the norm from 0, at least 0.
        epsilon_at: what epsilon is added to: ``"norm"``, the decayed one, or ``"gradient"``, its magnitude.
    """
    step(ADAMAX, locals())


ADAMAX = routine(
    merged_adamax, rule, source="arXiv:1412.6980, Algorithm 2; Paddle's adamax operator",
    states=[Slot("moment"), Slot("inf_norm", signed=False), *scalars(beta1_pow="beta1")],
    choices={"epsilon_at": ("norm", "gradient"), **DECAY},
)
adamax = single(merged_adamax)
