"""Adadelta: one tensor, and any number of them merged.

Zeiler, arXiv:1212.5701, in the original form of Paddle's ``adadelta`` operator, with one root. Its later form, the
paper and PyTorch divide one root by another, which differs only by rounding::

    g' = rescale_grad * g
    s  = rho * s + (1 - rho) * g' * g'
    d  = sqrt((x + epsilon) / (s + epsilon)) * g'
    x  = rho * x + (1 - rho) * d * d
    p  = p - lr * d

With ``maximize`` the sign of g' is flipped first. Weight decay follows, by `refopt.cpu.weight_decay`: added to g'
(``decay="l2"``), or subtracted from p separately (``"decoupled"``); a weight_decay of 0 means none.
"""

import numpy as np

from refopt.checks.rows import Slot
from refopt.cpu.merged import step
from refopt.cpu.routine import routine, single
from refopt.cpu.weight_decay import DECAY, prepared


def update(p, g, s, x, *, lr, rho, epsilon):
    """The new parameter and the new averages, of the squares of the gradient and of the update."""
    s = rho * s + (1 - rho) * g * g
    d = np.sqrt((x + epsilon) / (s + epsilon)) * g
    x = rho * x + (1 - rho) * d * d
    return p - lr * d, s, x


def rule(p, g, *states, lr, weight_decay, decay, maximize, **numbers):
    """The rule, applied to the gradient and the parameter from `refopt.cpu.weight_decay`."""
    p, g = prepared(p, g, lr=lr, weight_decay=weight_decay, decay=decay, maximize=maximize)
    return update(p, g, *states, lr=lr, **numbers)


def merged_adadelta(
    params, grads, avg_squared_grad, avg_squared_update, *, lr=1.0, rho=0.95, epsilon=1e-6, weight_decay=0.0,
    rescale_grad=1.0, decay="l2", maximize=False, master_params=None, grad_factor=None, found_inf=None,
    rounding="nearest", seed=0,
):
    """Update every tensor of a list by Adadelta, in place.

    Args:
        avg_squared_grad: P arrays of the same shapes, of the arithmetic type, of the parameter's dtype, or in 8 bits
            (numerics, N21): the running average of the square of the gradient, 0 at first.
        avg_squared_update: P arrays like them for the update, before it is multiplied by lr; 0 at first.
        epsilon: added to both averages in the quotient, at least 0.
    """
    step(ADADELTA, locals())


ADADELTA = routine(
    merged_adadelta, rule, source="arXiv:1212.5701; Paddle's adadelta operator",
    states=[Slot("avg_squared_grad", signed=False), Slot("avg_squared_update", signed=False)],
    choices=DECAY, trial={"lr": 10.0},
)
adadelta = single(merged_adadelta)
