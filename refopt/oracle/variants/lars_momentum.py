"""LARS: the norm of the gradient, or of the gradient and its decay together.

::

    local_lr = lr * lars_coeff * ||p|| / (||g' + wd * p|| + epsilon)               grad_norm="decayed": optax
    local_lr = lr * lars_coeff * ||p|| / (||g'|| + wd * ||p|| + epsilon)           grad_norm="plain": refopt, timm
"""

from refopt import catalog
from refopt.cpu.lars_momentum import rule as lars_rule
from refopt.oracle.variants.variant import Variants, extended


def rule(p, g, v, *, lars_weight_decay, grad_norm, **numbers):
    if grad_norm == "decayed":
        g, lars_weight_decay = g + lars_weight_decay * p, 0 * lars_weight_decay
    return lars_rule(p, g, v, lars_weight_decay=lars_weight_decay, **numbers)


LARS_MOMENTUM = Variants(
    extended(catalog.LARS_MOMENTUM, choices={"grad_norm": ("plain", "decayed")}),
    rule,
    {
        "grad_norm=decayed": "the norm of the gradient and its decay together, as in optax's LARS",
        "grad_norm=plain": "separate norms of gradient and parameter, as in refopt and timm",
    },
    matters={"grad_norm": "lars_weight_decay"},
)
