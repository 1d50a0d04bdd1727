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

v is 0 before the first step, which takes n as it is. It stays 0 as long as the gradients are, so that the first one
that is not 0 is taken as it is. This and ``grad_averaging`` are as NVIDIA has them in its implementation for Jasper.
With a master parameter p is the master throughout, and the stored parameter is its rounding.
"""

import numpy as np

from refopt import catalog
from refopt.cpu.merged import merged, single
from refopt.cpu.reduce import sum_of_squares


def average(v, n, *, beta2):
    """The running average of the squared norm."""
    return n if v == 0 else beta2 * v + (1 - beta2) * n


def direction(p, g, v, *, epsilon, weight_decay):
    """Where to go: the gradient over its norm, and the decay."""
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
):  # fmt: skip
    """Update every tensor of a list by NovoGrad, in place.

    Args:
        params: P arrays of fp32, fp64, fp16 or bf16, of any shape, each dense in memory.
        grads: P arrays of the same shapes, of any dtype that widens to the arithmetic type. A gradient of
            ``None`` skips its tensor: its moments stay as they are.
        moment: P arrays of the same shapes, of the arithmetic type or of the parameter's dtype: the running sum
            or average of the normalized gradients, 0 at first.
        second_moment: P arrays of one element, of the arithmetic type: the running average of the gradient's
            squared norm, 0 at first.
        lr: learning rate, one number or one per tensor; at least 0.
        beta1, beta2: how slowly the averages move, at least 0 and below 1.
        epsilon: added to the norm, at least 0.
        weight_decay: one number or one per tensor; at least 0.
        rescale_grad: multiplies every gradient before it is used; above 0.
        grad_factor: ``None``, or an array of one element that multiplies every gradient, too; see
            `scan_gradients`. fp32, or fp64 for fp64 parameters.
        found_inf: ``None``, or an fp32 array of one element: if it is not 0, the step changes nothing.
        grad_averaging: whether what enters the moment is multiplied by ``1 - beta1``.
        master_params: ``None``, or P arrays of the arithmetic type that hold the exact parameters, or of uint16
            that hold what bf16 parameters leave out of them (numerics, N15); single entries may be ``None``.

    Raises:
        ValueError, TypeError: naming the argument and the index; nothing has been modified then.

    Source: arXiv:1905.11286; NVIDIA's implementation for Jasper. docs/numerics.md fixes each rounding.
    """
    merged(
        catalog.NOVOGRAD, rule,
        dict(params=params, grads=grads, moment=moment, second_moment=second_moment, master_params=master_params),
        dict(lr=lr, beta1=beta1, beta2=beta2, epsilon=epsilon, weight_decay=weight_decay, rescale_grad=rescale_grad,
             grad_averaging=grad_averaging),
        grad_factor, found_inf,
    )  # fmt: skip


def novograd(param, grad, moment, second_moment, *, lr, master_param=None, **hyper):
    """Update one tensor by NovoGrad, in place: `merged_novograd` of lists of one."""
    arrays = [param, grad, moment, second_moment]
    single(merged_novograd, arrays, {"master_params": master_param}, {"lr": lr} | hyper)
