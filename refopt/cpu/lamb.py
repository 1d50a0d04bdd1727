"""LAMB: one tensor, and any number of them merged.

Layer-wise adaptive moments (You et al., arXiv:1904.00962) in the form of Paddle's ``lamb`` operator: Adam's
direction with weight decay, and a learning rate for each tensor that depends on its norm. The powers are those of the
current step, and each starts at its beta::

    g' = rescale_grad * g
    m  = beta1 * m + (1 - beta1) * g'
    u  = beta2 * u + (1 - beta2) * g' * g'
    r  = m / (1 - beta1_pow) / (sqrt(u / (1 - beta2_pow)) + epsilon) + weight_decay * p
    ratio = ||p|| / ||r||         if it applies, else 1
    p  = p - lr * ratio * r
    beta1_pow = beta1_pow * beta1
    beta2_pow = beta2_pow * beta2

r is computed from the moments as stored, so it is the same in a kernel that reads them again. The ratio applies if both
norms are positive and there is weight decay or ``always_adapt``. With a master, p is the master throughout, and the
stored parameter is the rounded master.
"""

import numpy as np

from refopt.cpu.adam import moments
from refopt.cpu.merged import step
from refopt.cpu.reduce import sum_of_squares
from refopt.cpu.routine import MOMENTS, POWERS, routine, single


def direction(p, m, u, beta1_pow, beta2_pow, *, epsilon, weight_decay):
    """The direction of the step: Adam's quotient plus the decay."""
    return m / (1 - beta1_pow) / (np.sqrt(u / (1 - beta2_pow)) + epsilon) + weight_decay * p


def trust_ratio(param_norm, direction_norm, *, weight_decay, always_adapt):
    """The factor of the learning rate for a tensor."""
    adapts = param_norm > 0 and direction_norm > 0 and (weight_decay > 0 or always_adapt)
    return param_norm / direction_norm if adapts else type(param_norm)(1)


def rule(
    p, g, m, u, beta1_pow, beta2_pow, *, stored, lr, beta1, beta2, epsilon, weight_decay, always_adapt
):
    """The new parameter, moments and powers. ``stored(name, x)`` is x after a store to a slot."""
    m, u = moments(g, m, u, beta1=beta1, beta2=beta2)
    of_moments = stored("moment1", m), stored("moment2", u)
    r = direction(p, *of_moments, beta1_pow, beta2_pow, epsilon=epsilon, weight_decay=weight_decay)
    norms = np.sqrt(sum_of_squares(p)), np.sqrt(sum_of_squares(r))
    ratio = trust_ratio(*norms, weight_decay=weight_decay, always_adapt=always_adapt)
    return p - lr * ratio * r, m, u, beta1_pow * beta1, beta2_pow * beta2


def merged_lamb(
    params, grads, moment1, moment2, beta1_pow, beta2_pow, *, lr, beta1=0.9, beta2=0.999, epsilon=1e-6,
    weight_decay=0.01, rescale_grad=1.0, always_adapt=False, master_params=None, grad_factor=None, found_inf=None,
):
    """Update every tensor of a list by LAMB, in place.

    Args:
        always_adapt: whether the ratio also applies without weight decay.
    """
    step(LAMB, locals())


LAMB = routine(
    merged_lamb, rule, source="arXiv:1904.00962; Paddle's lamb operator",
    states=[*MOMENTS, *POWERS],
    launches=2,
    norms=2,
    # The moments are written in the first launch and read again in the second.
    passes={"params": 3, "moment1": 3, "moment2": 3},
)
lamb = single(merged_lamb)
