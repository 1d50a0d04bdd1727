"""Adamax: one tensor, and any number of them merged.

Adam with the infinity norm (Kingma and Ba, arXiv:1412.6980, Algorithm 2) in the form of Paddle's ``adamax``
operator. The power of beta1 is that of the step that is being taken, and starts at beta1::

    g' = rescale_grad * g
    m  = beta1 * m + (1 - beta1) * g'
    n  = larger(|g'|, beta2 * n + epsilon)
    p  = p - lr / (1 - beta1_pow) * (m / n)
    beta1_pow = beta1_pow * beta1

PyTorch adds epsilon to the gradient instead, larger(beta2 * n, |g'| + epsilon); the paper has none.

Where g' is NaN, n goes on without it, and a NaN in n stays (N5); m, and with it p, is NaN in both cases.
"""

from refopt import catalog
from refopt.cpu.adam import larger
from refopt.cpu.merged import merged, single


def rule(p, g, m, n, beta1_pow, *, lr, beta1, beta2, epsilon):
    """The new parameter, moment, norm and power."""
    m = beta1 * m + (1 - beta1) * g
    n = larger(abs(g), beta2 * n + epsilon)
    p = p - lr / (1 - beta1_pow) * (m / n)
    return p, m, n, beta1_pow * beta1


def merged_adamax(
    params, grads, moment, inf_norm, beta1_pow, *, lr, beta1=0.9, beta2=0.999, epsilon=1e-8, rescale_grad=1.0,
    master_params=None, grad_factor=None, found_inf=None, rounding="nearest", seed=0,
):  # fmt: skip
    """Update every tensor of a list by Adamax, in place.

    Args:
        params: P arrays of fp32, fp64, fp16 or bf16, of any shape, each dense in memory.
        grads: P arrays of the same shapes, of any dtype that widens to the arithmetic type. A gradient of
            ``None`` skips its tensor: its moment, norm and power stay as they are.
        moment: P arrays of the same shapes, of the arithmetic type or of the parameter's dtype: the running
            average of the gradient, 0 at first.
        inf_norm: P arrays like them: the largest magnitude of the gradient, fading, 0 at first.
        beta1_pow: P arrays of one element, of the arithmetic type: beta1 to the power of the step that is to
            be taken, beta1 at first.
        lr: learning rate, one number or one per tensor; at least 0.
        beta1, beta2: how slowly the moment moves and the norm fades, at least 0 and below 1.
        epsilon: added to the norm of the step before, at least 0.
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

    Source: Paddle's ``adamax`` operator. docs/numerics.md fixes each rounding.
    """
    merged(
        catalog.ADAMAX, rule,
        dict(params=params, grads=grads, moment=moment, inf_norm=inf_norm, beta1_pow=beta1_pow,
             master_params=master_params),
        dict(lr=lr, beta1=beta1, beta2=beta2, epsilon=epsilon, rescale_grad=rescale_grad, rounding=rounding, seed=seed),
        grad_factor, found_inf,
    )  # fmt: skip


def adamax(param, grad, moment, inf_norm, beta1_pow, *, lr, master_param=None, **hyper):
    """Update one tensor by Adamax, in place: `merged_adamax` of lists of one."""
    arrays = [param, grad, moment, inf_norm, beta1_pow]
    single(merged_adamax, arrays, {"master_params": master_param}, {"lr": lr} | hyper)
