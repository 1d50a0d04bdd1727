"""Gradient descent with momentum: a first step that is not dampened, as in PyTorch; decoupled decay, as in timm's SGDW.

::

    v  = mu * v + (1 - dampening) * g'      from step dampened_from on: 1, refopt; 2, PyTorch
    v  = mu * v + g'                        before

Where mu is 0, PyTorch has no velocity and no dampening.
"""

from refopt import catalog
from refopt.cpu.momentum import rule as momentum_rule
from refopt.cpu.weight_decay import DECAY
from refopt.oracle.variants.variant import STEP_NUMBER, Variants, advanced, extended


def rule(p, g, v, step_number, *, lr, l2_decay, dampening, decay, dampened_from, **numbers):
    if decay == "decoupled":
        p, l2_decay = p * (1 - lr * l2_decay), 0 * l2_decay
    if dampened_from > 1 and step_number < dampened_from:
        dampening = 0 * dampening
    numbers |= dict(lr=lr, l2_decay=l2_decay, dampening=dampening)
    return *momentum_rule(p, g, v, **numbers), advanced(step_number)


MOMENTUM = Variants(
    extended(catalog.MOMENTUM, choices={"dampened_from": (1, 2)} | DECAY, slots=[STEP_NUMBER]),
    rule,
    {
        "dampened_from=1": "dampening from the first step on",
        "dampened_from=2": "dampening from the second step on, as in PyTorch",
        "decay=l2": "weight decay added to the gradient, as in PyTorch",
        "decay=decoupled": "weight decay decoupled from the gradient, as in timm's SGDW",
    },
    matters={"decay": "l2_decay", "dampened_from": "dampening"}, counted=("dampened_from",),
)
