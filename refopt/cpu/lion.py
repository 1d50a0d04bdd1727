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

from refopt import catalog
from refopt.cpu.merged import merged, single


def sign(x):
    """1 above zero, -1 below, and x itself elsewhere: zeros and NaN stay what they are."""
    one = x.dtype.type(1)
    return np.where(x > 0, one, np.where(x < 0, -one, x))


def rule(p, g, m, *, lr, beta1, beta2, coeff):
    """The new parameter and the new momentum."""
    c = beta1 * m + (1 - beta1) * g
    p = p * (1 - lr * coeff)
    return p - lr * sign(c), beta2 * m + (1 - beta2) * g


def merged_lion(
    params,
    grads,
    moment,
    *,
    lr,
    beta1=0.9,
    beta2=0.99,
    coeff=0.0,
    rescale_grad=1.0,
    master_params=None,
    grad_factor=None,
    found_inf=None,
    rounding="nearest",
    seed=0,
):
    """Update every tensor of a list by Lion, in place.

    Args:
        params: P arrays of fp32, fp64, fp16 or bf16, of any shape, each dense in memory.
        grads: P arrays of the same shapes, of any dtype that widens to the arithmetic type. A gradient of
            ``None`` skips its tensor: it does not decay, its momentum stays as it is.
        moment: P arrays of the same shapes, of the arithmetic type or of the parameter's dtype: the running
            average of the gradient, 0 at first.
        lr: learning rate, one number or one per tensor; at least 0.
        beta1: the share of the momentum in the blend, at least 0 and below 1.
        beta2: how slowly the momentum moves, at least 0 and below 1.
        coeff: weight decay, one number or one per tensor; at least 0.
        rescale_grad: multiplies every gradient before it is used; above 0.
        grad_factor: ``None``, or an array of one element that multiplies every gradient, too; see
            `scan_gradients`. fp32, or fp64 for fp64 parameters.
        found_inf: ``None``, or an fp32 array of one element: if it is not 0, the step changes nothing.
        rounding: ``"nearest"``, or ``"stochastic"``: bf16 arrays are rounded to by chance (numerics, N16).
        seed: of the chance, a whole number below 2**24, or one per tensor; take another one every step.
        master_params: ``None``, or P arrays of the arithmetic type that hold the exact parameters, or of uint16
            that hold what bf16 parameters leave out of them (numerics, N15); single entries may be ``None``.

    Raises:
        ValueError, TypeError: naming the argument and the index; nothing has been modified then.

    Source: arXiv:2302.06675. docs/numerics.md fixes each rounding.
    """
    merged(
        catalog.LION, rule,
        dict(params=params, grads=grads, moment=moment, master_params=master_params),
        dict(lr=lr, beta1=beta1, beta2=beta2, coeff=coeff, rescale_grad=rescale_grad, rounding=rounding, seed=seed),
        grad_factor, found_inf,
    )  # fmt: skip


def lion(param, grad, moment, *, lr, master_param=None, **hyper):
    """Update one tensor by Lion, in place: `merged_lion` of lists of one."""
    single(merged_lion, [param, grad, moment], {"master_params": master_param}, {"lr": lr} | hyper)
