"""Stochastic gradient descent: one tensor, and any number of them merged.

::

    g' = rescale_grad * g + l2_decay * p
    p  = p - lr * g'
"""

from refopt import catalog
from refopt.cpu.merged import merged, single


def rule(p, g, *, lr, l2_decay):
    """The new parameter."""
    g = g + l2_decay * p
    return (p - lr * g,)


def merged_sgd(
    params, grads, *, lr, l2_decay=0.0, rescale_grad=1.0, master_params=None, grad_factor=None, found_inf=None,
    rounding="nearest", seed=0,
):  # fmt: skip
    """Update every tensor of a list by gradient descent, in place.

    Args:
        params: P arrays of fp32, fp64, fp16 or bf16, of any shape, each dense in memory.
        grads: P arrays of the same shapes, of any dtype that widens to the arithmetic type. A gradient of
            ``None`` skips its tensor.
        lr: learning rate, one number or one per tensor; at least 0.
        l2_decay: weight decay added to the gradient, one number or one per tensor; at least 0.
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

    Source: Paddle's ``sgd`` operator. docs/numerics.md fixes each rounding.
    """
    merged(
        catalog.SGD, rule,
        dict(params=params, grads=grads, master_params=master_params),
        dict(lr=lr, l2_decay=l2_decay, rescale_grad=rescale_grad, rounding=rounding, seed=seed),
        grad_factor, found_inf,
    )  # fmt: skip


def sgd(param, grad, *, lr, master_param=None, **hyper):
    """Update one tensor by gradient descent, in place: `merged_sgd` of lists of one."""
    single(merged_sgd, [param, grad], {"master_params": master_param}, {"lr": lr} | hyper)
