"""LAMB: one tensor, and any number of them merged.

Layer-wise adaptive moments (You et al., arXiv:1904.00962) in the form of Paddle's ``lamb`` operator: Adam's
direction with weight decay, and for each tensor a learning rate by its size. The powers are those of the step
that is being taken, and start at beta::

    g' = rescale_grad * g
    m  = beta1 * m + (1 - beta1) * g'
    u  = beta2 * u + (1 - beta2) * g' * g'
    r  = m / (1 - beta1_pow) / (sqrt(u / (1 - beta2_pow)) + epsilon) + weight_decay * p
    ratio = ||p|| / ||r||         where it adapts, else 1
    p  = p - lr * ratio * r
    beta1_pow = beta1_pow * beta1
    beta2_pow = beta2_pow * beta2

r is formed of the moments as they are stored, so it is the same in a kernel that reads them again. The ratio
applies where both norms are positive and there is weight decay, or ``always_adapt``. With a master parameter p
is the master throughout, and the stored parameter is its rounding.
"""

import numpy as np

from refopt import catalog
from refopt.cpu.adam import moments
from refopt.cpu.merged import merged, single
from refopt.cpu.reduce import sum_of_squares


def direction(p, m, u, beta1_pow, beta2_pow, *, epsilon, weight_decay):
    """Where to go: Adam's quotient, and the decay."""
    return m / (1 - beta1_pow) / (np.sqrt(u / (1 - beta2_pow)) + epsilon) + weight_decay * p


def trust_ratio(param_norm, direction_norm, *, weight_decay, always_adapt):
    """How much of the learning rate a tensor takes."""
    adapts = param_norm > 0 and direction_norm > 0 and (weight_decay > 0 or always_adapt)
    return param_norm / direction_norm if adapts else type(param_norm)(1)


def rule(
    p, g, m, u, beta1_pow, beta2_pow, *, stored, lr, beta1, beta2, epsilon, weight_decay, always_adapt
):
    """The new parameter, moments and powers. ``stored(name, x)`` is x as it is read from a slot after its store."""
    m, u = moments(g, m, u, beta1=beta1, beta2=beta2)
    of_moments = stored("moment1", m), stored("moment2", u)
    r = direction(p, *of_moments, beta1_pow, beta2_pow, epsilon=epsilon, weight_decay=weight_decay)
    norms = np.sqrt(sum_of_squares(p)), np.sqrt(sum_of_squares(r))
    ratio = trust_ratio(*norms, weight_decay=weight_decay, always_adapt=always_adapt)
    return p - lr * ratio * r, m, u, beta1_pow * beta1, beta2_pow * beta2


def merged_lamb(
    params, grads, moment1, moment2, beta1_pow, beta2_pow, *, lr, beta1=0.9, beta2=0.999, epsilon=1e-6,
    weight_decay=0.01, rescale_grad=1.0, always_adapt=False, master_params=None, grad_factor=None, found_inf=None,
):  # fmt: skip
    """Update every tensor of a list by LAMB, in place.

    Args:
        params: P arrays of fp32, fp64, fp16 or bf16, of any shape, each dense in memory.
        grads: P arrays of the same shapes, of any dtype that widens to the arithmetic type. A gradient of
            ``None`` skips its tensor: its moments and powers stay as they are.
        moment1: P arrays of the same shapes, of the arithmetic type or of the parameter's dtype: the running
            average of the gradient, 0 at first.
        moment2: P arrays like them: the running average of its square, 0 at first.
        beta1_pow: P arrays of one element, of the arithmetic type: beta1 to the power of the step that is to
            be taken, beta1 at first.
        beta2_pow: P arrays like them for beta2.
        lr: learning rate, one number or one per tensor; at least 0.
        beta1, beta2: how slowly the averages move, at least 0 and below 1.
        epsilon: added to the denominator, at least 0.
        weight_decay: one number or one per tensor; at least 0.
        rescale_grad: multiplies every gradient before it is used; above 0.
        grad_factor: ``None``, or an array of one element that multiplies every gradient, too; see
            `scan_gradients`. fp32, or fp64 for fp64 parameters.
        found_inf: ``None``, or an fp32 array of one element: if it is not 0, the step changes nothing.
        always_adapt: whether the ratio applies where there is no weight decay, too.
        master_params: ``None``, or P arrays of the arithmetic type that hold the exact parameters, or of uint16
            that hold what bf16 parameters leave out of them (numerics, N15); single entries may be ``None``.

    Raises:
        ValueError, TypeError: naming the argument and the index; nothing has been modified then.

    Source: Paddle's ``lamb`` operator. docs/numerics.md fixes each rounding.
    """
    merged(
        catalog.LAMB, rule,
        dict(params=params, grads=grads, moment1=moment1, moment2=moment2, beta1_pow=beta1_pow, beta2_pow=beta2_pow,
             master_params=master_params),
        dict(lr=lr, beta1=beta1, beta2=beta2, epsilon=epsilon, weight_decay=weight_decay, rescale_grad=rescale_grad,
             always_adapt=always_adapt),
        grad_factor, found_inf,
    )  # fmt: skip


def lamb(param, grad, moment1, moment2, beta1_pow, beta2_pow, *, lr, master_param=None, **hyper):
    """Update one tensor by LAMB, in place: `merged_lamb` of lists of one."""
    arrays = [param, grad, moment1, moment2, beta1_pow, beta2_pow]
    single(merged_lamb, arrays, {"master_params": master_param}, {"lr": lr} | hyper)
