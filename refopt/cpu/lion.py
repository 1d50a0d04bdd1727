"""Lion: one tensor, and any number of them merged.

Evolved sign momentum (Chen et al., arXiv:2302.06675). The sign is that of a blend of the momentum and the
gradient; the momentum itself moves more slowly::

    g' = rescale_grad * g
    c  = beta1 * m + (1 - beta1) * g'
    p  = p * (1 - lr * coeff)
    p  = p - lr * sign(c)
    m  = beta2 * m + (1 - beta2) * g'
"""

import numpy as np

from refopt.checks.rows import Slot
from refopt.cpu.merged import step
from refopt.cpu.routine import routine, single


def sign(x):
    """1 above zero, -1 below, and x itself otherwise: zeros and NaN are unchanged."""
    one = x.dtype.type(1)
    return np.where(x > 0, one, np.where(x < 0, -one, x))


def rule(p, g, m, *, lr, beta1, beta2, coeff):
    """The new parameter and the new momentum."""
    c = beta1 * m + (1 - beta1) * g
    p = p * (1 - lr * coeff)
    return p - lr * sign(c), beta2 * m + (1 - beta2) * g


def merged_lion(
    params, grads, moment, *, lr, beta1=0.9, beta2=0.99, coeff=0.0, rescale_grad=1.0, master_params=None,
    grad_factor=None, found_inf=None, rounding="nearest", seed=0,
):
    """Update every tensor of a list by Lion, in place.

    Args:
        moment: P arrays of the same shapes, of the arithmetic type, of the parameter's dtype, or in 8 bits (numerics,
            N21): the running average of the gradient, 0 at first.
        beta1: the share of the momentum in the blend, at least 0 and below 1.
        beta2: how slowly the momentum moves, at least 0 and below 1.
    """
    step(LION, locals())


LION = routine(
    merged_lion, rule, source="arXiv:2302.06675",
    states=[Slot("moment")],
)
lion = single(merged_lion)
