"""RMSProp, plain and centered, with momentum: one tensor, and any number of them merged.

Tieleman and Hinton 2012 in the form of Paddle's ``rmsprop`` operator, with lr folded into the velocity::

    g' = rescale_grad * g
    s  = rho * s + (1 - rho) * g' * g'
    v  = mu * v + lr * g' / sqrt(s + epsilon)
    p  = p - v

The centered form (Graves, arXiv:1308.0850) also keeps an average of the gradient, and replaces s by the variance.
Rounding can make it smaller than -epsilon; the root is NaN then::

    a  = rho * a + (1 - rho) * g'
    v  = mu * v + lr * g' / sqrt(s - a * a + epsilon)

This is ``epsilon_at="inside"`` the root, as in Paddle. ``"outside"`` is PyTorch's form, sqrt(s) + epsilon. PyTorch's
velocity also excludes lr, which is equivalent while lr is constant: ``lr_at="step"`` instead of ``"velocity"``::

    v  = mu * v + g' / (sqrt(s) + epsilon)
    p  = p - lr * v

With ``maximize`` the sign of g' is flipped first. Weight decay follows, by `refopt.cpu.weight_decay`: added to g'
(``decay="l2"``), or subtracted from p separately (``"decoupled"``); a weight_decay of 0 means none.
"""

import numpy as np

from refopt.checks.rows import Slot
from refopt.cpu.merged import step
from refopt.cpu.routine import routine, single
from refopt.cpu.weight_decay import DECAY, prepared


def root(d, epsilon, epsilon_at):
    """The denominator."""
    return np.sqrt(d) + epsilon if epsilon_at == "outside" else np.sqrt(d + epsilon)


def descend(p, g, v, d, *, lr, mu, epsilon, epsilon_at, lr_at):
    """The new parameter and velocity, with d under the root."""
    if lr_at == "step":
        v = mu * v + g / root(d, epsilon, epsilon_at)
        return p - lr * v, v
    v = mu * v + lr * g / root(d, epsilon, epsilon_at)
    return p - v, v


def update(p, g, s, v, a, *, rho, **numbers):
    """The new parameter, average of squares and velocity, and if centered the new average."""
    s = rho * s + (1 - rho) * g * g
    d = s
    if a is not None:
        a = rho * a + (1 - rho) * g
        d = s - a * a
    p, v = descend(p, g, v, d, **numbers)
    return p, s, v, a


def rule(p, g, *states, lr, weight_decay, decay, maximize, **numbers):
    """The rule, applied to the gradient and the parameter from `refopt.cpu.weight_decay`."""
    p, g = prepared(p, g, lr=lr, weight_decay=weight_decay, decay=decay, maximize=maximize)
    return update(p, g, *states, lr=lr, **numbers)


def merged_rmsprop(
    params, grads, mean_square, velocity, *, lr, rho=0.95, mu=0.0, epsilon=1e-6, weight_decay=0.0, rescale_grad=1.0,
    epsilon_at="inside", lr_at="velocity", decay="l2", maximize=False, mean_grad=None, master_params=None,
    grad_factor=None, found_inf=None, rounding="nearest", seed=0,
):
    """Update every tensor of a list by RMSProp, in place.

    Args:
        mean_square: P arrays of the same shapes, of the arithmetic type, of the parameter's dtype, or in 8 bits
            (numerics, N21): the running average of the square of the gradient, 0 at first.
        velocity: P arrays like them, 0 at first.
        epsilon_at: ``"inside"`` or ``"outside"`` the root.
        lr_at: whether lr is a factor in the ``"velocity"`` or in the ``"step"``.
        mean_grad: ``None``, or for the centered form P arrays like mean_square: the running average of the
            gradient, 0 at first; single entries may be ``None``.
    """
    step(RMSPROP, locals())


RMSPROP = routine(
    merged_rmsprop, rule,
    source="Tieleman and Hinton 2012; centered: Graves, arXiv:1308.0850; Paddle's rmsprop operator",
    states=[Slot("mean_square", signed=False), Slot("velocity"), Slot("mean_grad", optional=True)],
    choices={"epsilon_at": ("inside", "outside"), "lr_at": ("velocity", "step"), **DECAY},
)
rmsprop = single(merged_rmsprop)
