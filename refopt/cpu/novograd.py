"""NovoGrad: one tensor, and any number of them merged.

Stochastic gradient normalized by layer-wise second moments (Ginsburg et al., arXiv:1905.11286): the second moment
is one number for each tensor, a running average of the squared norm of its gradient, and the gradient is divided by
its root before it enters the first moment::

    g' = rescale_grad * g
    n  = sum of g' * g'
    v  = beta2 * v + (1 - beta2) * n      but n where v is 0
    d  = g' / (sqrt(v) + epsilon) + weight_decay * p
    m  = beta1 * m + d                    or, with grad_averaging, beta1 * m + (1 - beta1) * d
    p  = p - lr * m

v is 0 before the first step, which sets it to n. It stays 0 as long as the gradients are 0, so the first n that is not
0 becomes v. This and ``grad_averaging`` follow NVIDIA's implementation for Jasper.
With a master parameter p is the master throughout, and the stored parameter is its rounding.
"""

import numpy as np

from refopt.checks.rows import Slot
from refopt.cpu.merged import step
from refopt.cpu.reduce import sum_of_squares
from refopt.cpu.routine import routine, scalars, single


def average(v, n, *, beta2):
    """The running average of the squared norm."""
    return n if v == 0 else beta2 * v + (1 - beta2) * n


def direction(p, g, v, *, epsilon, weight_decay):
    """The direction of the step: the gradient over its norm, plus the decay."""
    return g / (np.sqrt(v) + epsilon) + weight_decay * p


def rule(p, g, m, v, *, lr, beta1, beta2, epsilon, weight_decay, grad_averaging, stored=None):
    """The new parameter and moments. ``stored`` is not needed: the norm is that of the gradient."""
    v = average(v, sum_of_squares(g), beta2=beta2)
    d = direction(p, g, v, epsilon=epsilon, weight_decay=weight_decay)
    m = beta1 * m + ((1 - beta1) * d if grad_averaging else d)
    return p - lr * m, m, v


def merged_novograd(
    params, grads, moment, second_moment, *, lr, beta1=0.95, beta2=0.98, epsilon=1e-8, weight_decay=0.0,
    rescale_grad=1.0, grad_averaging=False, master_params=None, grad_factor=None, found_inf=None,
):
    """Update every tensor of a list by NovoGrad, in place.

    Args:
        moment: P arrays of the same shapes, of the arithmetic type or of the parameter's dtype: the running sum
            or average of the normalized gradients, 0 at first.
        second_moment: P arrays of one element, of the arithmetic type: the running average of the gradient's
            squared norm, 0 at first.
        epsilon: added to the norm, at least 0.
        grad_averaging: whether d is multiplied by ``1 - beta1`` before it enters the moment.
    """
    step(NOVOGRAD, locals())


NOVOGRAD = routine(
    merged_novograd, rule, source="arXiv:1905.11286; NVIDIA's Jasper",
    states=[Slot("moment"), *scalars(second_moment=0.0)],
    launches=2,
    norms=1,
    passes={"grads": 2},  # the gradient is read for its norm, and again
)
novograd = single(merged_novograd)
