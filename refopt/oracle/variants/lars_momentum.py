"""LARS: the norm of the gradient, or of the gradient and its decay together.

::

    local_lr = lr * lars_coeff * ||p|| / (||g' + wd * p|| + epsilon)               grad_norm="decayed": optax
    local_lr = lr * lars_coeff * ||p|| / (||g'|| + wd * ||p|| + epsilon)           grad_norm="plain": refopt, timm
"""

import numpy as np

from refopt import catalog
from refopt.cpu.lars_momentum import local_lr, update
from refopt.cpu.reduce import sum_of_squares
from refopt.oracle.variants.variant import Variants, extended


def lars_with(
    p, g, v, *, stored, lr, mu, lars_coeff, lars_weight_decay, epsilon, adapt, norm_of,
    rate=local_lr, step=update, squares=sum_of_squares,
):  # fmt: skip
    """The catalogue's rule, norms and all, with places to change."""
    norms = np.sqrt(squares(p if norm_of == "master" else stored("params", p))), np.sqrt(squares(g))
    numbers = dict(lars_coeff=lars_coeff, lars_weight_decay=lars_weight_decay, epsilon=epsilon)
    local = rate(*norms, lr=lr, adapt=adapt, **numbers)
    return step(p, g, v, local_lr=local, mu=mu, lars_weight_decay=lars_weight_decay)


def norm_of_the_decayed(p, g, v, *, lars_weight_decay, **numbers):
    decayed = g + lars_weight_decay * p
    return lars_with(p, decayed, v, lars_weight_decay=0 * lars_weight_decay, **numbers)


def rule(p, g, v, *, grad_norm, **numbers):
    if grad_norm == "decayed":
        return norm_of_the_decayed(p, g, v, **numbers)
    return lars_with(p, g, v, **numbers)


LARS_MOMENTUM = Variants(
    extended(catalog.LARS_MOMENTUM, choices={"grad_norm": ("plain", "decayed")}),
    rule,
    {
        "grad_norm=decayed": "the norm of the gradient and its decay together, as optax's LARS has it",
        "grad_norm=plain": "the norms of gradient and parameter apart, as refopt and timm have them",
    },
    matters={"grad_norm": "lars_weight_decay"},
)
