"""Stochastic gradient descent: one tensor, and any number of them merged.

::

    g' = rescale_grad * g + l2_decay * p
    p  = p - lr * g'

With ``maximize`` the sign of the rescaled gradient is flipped first.
"""

from refopt.cpu.merged import step
from refopt.cpu.routine import routine, single


def update(p, g, *, lr, l2_decay):
    """The new parameter."""
    g = g + l2_decay * p
    return (p - lr * g,)


def rule(p, g, *, maximize, **numbers):
    """The rule, ascending if ``maximize``."""
    return update(p, -g if maximize else g, **numbers)


def merged_sgd(
    params, grads, *, lr, l2_decay=0.0, rescale_grad=1.0, maximize=False, master_params=None, grad_factor=None,
    found_inf=None, rounding="nearest", seed=0,
):
    """Update every tensor of a list by gradient descent, in place."""
    step(SGD, locals())


SGD = routine(
    merged_sgd, rule, source="Robbins and Monro 1951; Paddle's sgd operator",
    trial={"lr": 10.0},
)
sgd = single(merged_sgd)
