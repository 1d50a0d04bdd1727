"""Adam, and AMSGrad: one tensor, and any number of them merged.

Adaptive moment estimation (Kingma and Ba, arXiv:1412.6980). The powers of beta1 and beta2 are carried along,
and are those of the step that is being taken: both start at beta::

    g' = rescale_grad * g
    m  = beta1 * m + (1 - beta1) * g'
    u  = beta2 * u + (1 - beta2) * g' * g'
    p  = p - lr / (1 - beta1_pow) * (m / (sqrt(u) / sqrt(1 - beta2_pow) + epsilon))
    beta1_pow = beta1_pow * beta1
    beta2_pow = beta2_pow * beta2

This is epsilon where the paper's Algorithm 1 and today's frameworks have it, ``epsilon_at="corrected"``.
``"uncorrected"`` is the paper's faster form, and was Paddle's in 2019: its epsilon is in effect larger, 31.6
times in the first step with beta2 = 0.999::

    p  = p - lr * sqrt(1 - beta2_pow) / (1 - beta1_pow) * (m / (sqrt(u) + epsilon))

AMSGrad (Reddi, Kale and Kumar 2018) replaces u in the denominator by its maximum over all steps.
"""

import numpy as np

from refopt import catalog
from refopt.cpu.merged import merged, single


def moments(g, m, u, *, beta1, beta2):
    """The two running averages, of the gradient and of its square."""
    return beta1 * m + (1 - beta1) * g, beta2 * u + (1 - beta2) * g * g


def larger(x, y):
    """The larger of two arrays, element by element; y where one of them is NaN."""
    return np.where(x > y, x, y)


def descend(p, m, u, beta1_pow, beta2_pow, *, lr, epsilon, epsilon_at):
    """The new parameter."""
    if epsilon_at == "uncorrected":
        return p - lr * np.sqrt(1 - beta2_pow) / (1 - beta1_pow) * (m / (np.sqrt(u) + epsilon))
    return p - lr / (1 - beta1_pow) * (m / (np.sqrt(u) / np.sqrt(1 - beta2_pow) + epsilon))


def rule(p, g, m, u, beta1_pow, beta2_pow, u_max, *, lr, beta1, beta2, epsilon, epsilon_at):
    """The new parameter, moments and powers, and with AMSGrad the new maximum."""
    m, u = moments(g, m, u, beta1=beta1, beta2=beta2)
    if u_max is not None:
        u_max = larger(u_max, u)
    denominator = u if u_max is None else u_max
    p = descend(p, m, denominator, beta1_pow, beta2_pow, lr=lr, epsilon=epsilon, epsilon_at=epsilon_at)
    return p, m, u, beta1_pow * beta1, beta2_pow * beta2, u_max


def merged_adam(
    params, grads, moment1, moment2, beta1_pow, beta2_pow, *, lr, beta1=0.9, beta2=0.999, epsilon=1e-8,
    rescale_grad=1.0, epsilon_at="corrected", moment2_max=None, master_params=None, grad_factor=None,
    found_inf=None, rounding="nearest", seed=0,
):  # fmt: skip
    """Update every tensor of a list by Adam, in place.

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
        rescale_grad: multiplies every gradient before it is used; above 0.
        grad_factor: ``None``, or an array of one element that multiplies every gradient, too; see
            `scan_gradients`. fp32, or fp64 for fp64 parameters.
        found_inf: ``None``, or an fp32 array of one element: if it is not 0, the step changes nothing.
        rounding: ``"nearest"``, or ``"stochastic"``: bf16 arrays are rounded to by chance (numerics, N16).
        seed: of the chance, a whole number below 2**24, or one per tensor; take another one every step.
        epsilon_at: ``"corrected"`` or ``"uncorrected"``, the root that epsilon is added to.
        moment2_max: ``None``, or for AMSGrad P arrays like moment2: its maximum, 0 at first; single entries
            may be ``None``.
        master_params: ``None``, or P arrays of the arithmetic type that hold the exact parameters, or of uint16
            that hold what bf16 parameters leave out of them (numerics, N15); single entries may be ``None``.

    Raises:
        ValueError, TypeError: naming the argument and the index; nothing has been modified then.

    Source: Paddle's ``merged_adam`` operator, PR 38010. docs/numerics.md fixes each rounding.
    """
    merged(
        catalog.ADAM, rule,
        dict(params=params, grads=grads, moment1=moment1, moment2=moment2, beta1_pow=beta1_pow, beta2_pow=beta2_pow,
             moment2_max=moment2_max, master_params=master_params),
        dict(lr=lr, beta1=beta1, beta2=beta2, epsilon=epsilon, rescale_grad=rescale_grad, epsilon_at=epsilon_at,
             rounding=rounding, seed=seed),
        grad_factor, found_inf,
    )  # fmt: skip


def adam(
    param, grad, moment1, moment2, beta1_pow, beta2_pow, *, lr, moment2_max=None, master_param=None, **hyper
):
    """Update one tensor by Adam, in place: `merged_adam` of lists of one."""
    arrays = [param, grad, moment1, moment2, beta1_pow, beta2_pow]
    single(merged_adam, arrays, {"moment2_max": moment2_max, "master_params": master_param}, {"lr": lr} | hyper)
