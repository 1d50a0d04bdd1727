"""Gradient descent with momentum: dampening, and maximizing, as PyTorch has them; decay apart, as in timm's SGDW.

::

    v  = mu * v + (1 - dampening) * g'      from the second step on; in the first v = mu * v + g'

Where mu is 0, PyTorch has no velocity and no dampening.
"""

from refopt import catalog
from refopt.checks.rows import Hyper
from refopt.cpu.momentum import rule as momentum_rule
from refopt.oracle.variants.variant import DECAY, MAXIMIZE, OF_DECAY, STEP_NUMBER, Variants, advanced, extended


def dampened(p, g, v, *, lr, mu, l2_decay, use_nesterov, dampening):
    g = g + l2_decay * p
    v = mu * v + (1 - dampening) * g
    return p - lr * (g + mu * v if use_nesterov else v), v


def rule(p, g, v, step_number, *, lr, mu, l2_decay, dampening, decay, maximize, **numbers):
    g = -g if maximize else g
    if decay == "decoupled":
        p, l2_decay = p * (1 - lr * l2_decay), 0 * l2_decay
    numbers |= dict(lr=lr, mu=mu, l2_decay=l2_decay)
    if dampening != 0 and step_number > 1:
        return *dampened(p, g, v, dampening=dampening, **numbers), advanced(step_number)
    return *momentum_rule(p, g, v, **numbers), advanced(step_number)


MOMENTUM = Variants(
    extended(catalog.MOMENTUM, hypers=[Hyper("dampening", 0.0)], choices=DECAY | MAXIMIZE, slots=[STEP_NUMBER]),
    rule,
    OF_DECAY,
    matters={"decay": "l2_decay"}, counted=("dampening",),
)  # fmt: skip
