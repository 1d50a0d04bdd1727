"""Adadelta: one tensor, and any number of them merged.

Zeiler, arXiv:1212.5701, in the form of Paddle's ``adadelta`` operator as it was at first, with one root. Its
later form, the paper and PyTorch divide one root by another, which differs by rounding alone::

    g' = rescale_grad * g
    s  = rho * s + (1 - rho) * g' * g'
    d  = sqrt((x + epsilon) / (s + epsilon)) * g'
    x  = rho * x + (1 - rho) * d * d
    p  = p - lr * d
"""

import numpy as np

from refopt import catalog
from refopt.cpu.merged import merged, single


def rule(p, g, s, x, *, lr, rho, epsilon):
    """The new parameter and the new averages, of the squares of the gradient and of the update."""
    s = rho * s + (1 - rho) * g * g
    d = np.sqrt((x + epsilon) / (s + epsilon)) * g
    x = rho * x + (1 - rho) * d * d
    return p - lr * d, s, x


def merged_adadelta(
    params, grads, avg_squared_grad, avg_squared_update, *, lr=1.0, rho=0.95, epsilon=1e-6, rescale_grad=1.0,
    master_params=None, grad_factor=None, found_inf=None, rounding="nearest", seed=0,
):  # fmt: skip
    """Update every tensor of a list by Adadelta, in place.

    Args:
        params: P arrays of fp32, fp64, fp16 or bf16, of any shape, each dense in memory.
        grads: P arrays of the same shapes, of any dtype that widens to the arithmetic type. A gradient of
            ``None`` skips its tensor.
        avg_squared_grad: P arrays of the same shapes, of the arithmetic type or of the parameter's dtype: the
            running average of the square of the gradient, 0 at first.
        avg_squared_update: P arrays like them for the update, before it is multiplied by lr; 0 at first.
        lr: learning rate, one number or one per tensor; at least 0.
        rho: how slowly the averages move, at least 0 and below 1.
        epsilon: added to both averages in the quotient, at least 0.
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

    Source: Paddle's ``adadelta`` operator. docs/numerics.md fixes each rounding.
    """
    merged(
        catalog.ADADELTA, rule,
        dict(params=params, grads=grads, avg_squared_grad=avg_squared_grad, avg_squared_update=avg_squared_update,
             master_params=master_params),
        dict(lr=lr, rho=rho, epsilon=epsilon, rescale_grad=rescale_grad, rounding=rounding, seed=seed),
        grad_factor, found_inf,
    )  # fmt: skip


def adadelta(param, grad, avg_squared_grad, avg_squared_update, *, master_param=None, **hyper):
    """Update one tensor by Adadelta, in place: `merged_adadelta` of lists of one."""
    single(merged_adadelta, [param, grad, avg_squared_grad, avg_squared_update], {"master_params": master_param}, hyper)
