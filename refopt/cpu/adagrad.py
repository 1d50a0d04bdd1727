"""Adagrad: one tensor, and any number of them merged.

The adaptive subgradient method (Duchi, Hazan and Singer 2011) in the form of Paddle's ``adagrad`` operator::

    g' = rescale_grad * g
    s  = s + g' * g'
    p  = p - lr * g' / (sqrt(s) + epsilon)

With ``maximize`` the sign of g' is flipped first. Weight decay follows, by `refopt.cpu.weight_decay`: added to g'
(``decay="l2"``), or subtracted from p separately (``"decoupled"``); a weight_decay of 0 means none.

For a falling rate, PyTorch's lr_decay, set lr to lr / (1 + (t - 1) * lr_decay) in step t. For sums that start above 0,
set the initial ``moment``.
"""

import numpy as np

from refopt.checks.rows import Slot
from refopt.cpu.merged import step
from refopt.cpu.routine import routine, single
from refopt.cpu.weight_decay import DECAY, prepared


def update(p, g, s, *, lr, epsilon):
    """The new parameter and the new sum of squares."""
    s = s + g * g
    return p - lr * g / (np.sqrt(s) + epsilon), s


def rule(p, g, *states, lr, weight_decay, decay, maximize, **numbers):
    """The rule, applied to the gradient and the parameter from `refopt.cpu.weight_decay`."""
    p, g = prepared(p, g, lr=lr, weight_decay=weight_decay, decay=decay, maximize=maximize)
    return update(p, g, *states, lr=lr, **numbers)


def merged_adagrad(
    params, grads, moment, *, lr, epsilon=1e-6, weight_decay=0.0, rescale_grad=1.0, decay="l2", maximize=False,
    master_params=None, grad_factor=None, found_inf=None, rounding="nearest", seed=0,
):
    """Update every tensor of a list by Adagrad, in place.

    Args:
        moment: P arrays of the same shapes, of the arithmetic type, of the parameter's dtype, or in 8 bits (numerics,
            N21): the sum of the squares of all gradients, 0 or more at first.
        epsilon: added to the root, at least 0.
    """
    step(ADAGRAD, locals())


ADAGRAD = routine(
    merged_adagrad, rule, source="Duchi, Hazan and Singer 2011; Paddle's adagrad operator",
    states=[Slot("moment", signed=False)], choices=DECAY, trial={"lr": 0.5, "rescale_grad": 1 / 24},
)
adagrad = single(merged_adagrad)
