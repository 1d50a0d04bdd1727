"""Gradient descent with momentum: one tensor, and any number of them merged.

In the form of Paddle's ``momentum`` operator, with lr outside the velocity::

    g' = rescale_grad * g + l2_decay * p
    v  = mu * v + (1 - dampening) * g'
    p  = p - lr * v                  or, with Nesterov's momentum, p - lr * (g' + mu * v)

With ``maximize`` the sign of the rescaled gradient is flipped first. PyTorch's first step does not dampen g'; pass a
dampening of 0 for each tensor's first step.
"""

from refopt.checks.rows import Slot
from refopt.cpu.merged import step
from refopt.cpu.routine import routine, single


def update(p, g, v, *, lr, mu, l2_decay, dampening, use_nesterov):
    """The new parameter and the new velocity."""
    g = g + l2_decay * p
    v = mu * v + (g if dampening == 0 else (1 - dampening) * g)
    return p - lr * (g + mu * v if use_nesterov else v), v


def rule(p, g, v, *, maximize, **numbers):
    """The rule, ascending if ``maximize``."""
    return update(p, -g if maximize else g, v, **numbers)


def merged_momentum(
    params, grads, velocities, *, lr, mu, l2_decay=0.0, dampening=0.0, rescale_grad=1.0, use_nesterov=False,
    maximize=False, master_params=None, grad_factor=None, found_inf=None, rounding="nearest", seed=0,
):
    """Update every tensor of a list by gradient descent with momentum, in place.

    Args:
        velocities: P arrays of the same shapes, of the arithmetic type, of the parameter's dtype, or in 8 bits
            (numerics, N21).
        dampening: the share of a gradient that does not enter the velocity, at least 0. PyTorch dampens from a tensor's
            second step on: pass 0 in the first for the same.
        use_nesterov: whether to look ahead (Nesterov's momentum).
    """
    step(MOMENTUM, locals())


MOMENTUM = routine(
    merged_momentum, rule, source="Polyak 1964; Sutskever et al. 2013; Paddle PR 36380",
    states=[Slot("velocities")],
)
momentum = single(merged_momentum)
