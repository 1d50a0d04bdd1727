"""RAdam: one tensor, and any number of them merged.

Rectified Adam (Liu et al., arXiv:1908.03265), with epsilon where Paddle and PyTorch have it. The powers and rho
are those of the step that is being taken: the powers start at beta, rho at 1::

    g' = rescale_grad * g
    m  = beta1 * m + (1 - beta1) * g'
    u  = beta2 * u + (1 - beta2) * g' * g'
    rho_inf = 2 / (1 - beta2) - 1
    r  = sqrt((rho - 4) * (rho - 2) * rho_inf / ((rho_inf - 4) * (rho_inf - 2) * rho))
    p  = p - lr / (1 - beta1_pow) * r * sqrt(1 - beta2_pow) * (m / (sqrt(u) + epsilon))      where rho > 5
    p  = p - lr / (1 - beta1_pow) * m                                                        elsewhere
    beta1_pow = beta1_pow * beta1
    beta2_pow = beta2_pow * beta2
    rho = 1 + (rho + 1) * ((beta2 - beta2_pow) / (1 - beta2_pow))

rho is the paper's rho_t = rho_inf - 2 * t * beta2_pow / (1 - beta2_pow), which in fp32 loses most of its digits
in the first steps: at t = 5 and beta2 = 0.9999 it is off by 0.8. Going from step to step it is off by 1e-4. Paddle's
scalar ``rho`` is another, (rho_inf - rho_t) / 2.
"""

import numpy as np

from refopt import catalog
from refopt.cpu.adam import moments
from refopt.cpu.merged import merged, single


def rectification(rho, beta2):
    """By how much the variance of the adaptive rate shortens the step."""
    rho_inf = 2 / (1 - beta2) - 1
    return np.sqrt((rho - 4) * (rho - 2) * rho_inf / ((rho_inf - 4) * (rho_inf - 2) * rho))


def next_rho(rho, beta2, beta2_pow):
    """rho of the next step, from the power of that step."""
    return 1 + (rho + 1) * ((beta2 - beta2_pow) / (1 - beta2_pow))


def rule(p, g, m, u, beta1_pow, beta2_pow, rho, *, lr, beta1, beta2, epsilon):
    """The new parameter, moments, powers and rho."""
    m, u = moments(g, m, u, beta1=beta1, beta2=beta2)
    if rho > 5:
        rate = lr / (1 - beta1_pow) * rectification(rho, beta2) * np.sqrt(1 - beta2_pow)
        p = p - rate * (m / (np.sqrt(u) + epsilon))
    else:
        p = p - lr / (1 - beta1_pow) * m
    beta2_pow = beta2_pow * beta2
    return p, m, u, beta1_pow * beta1, beta2_pow, next_rho(rho, beta2, beta2_pow)


def merged_radam(
    params, grads, moment1, moment2, beta1_pow, beta2_pow, rho, *, lr, beta1=0.9, beta2=0.999, epsilon=1e-8,
    rescale_grad=1.0, master_params=None, grad_factor=None, found_inf=None, rounding="nearest", seed=0,
):  # fmt: skip
    """Update every tensor of a list by RAdam, in place.

    Args:
        params: P arrays of fp32, fp64, fp16 or bf16, of any shape, each dense in memory.
        grads: P arrays of the same shapes, of any dtype that widens to the arithmetic type. A gradient of
            ``None`` skips its tensor: its moments and scalars stay as they are.
        moment1: P arrays of the same shapes, of the arithmetic type or of the parameter's dtype: the running
            average of the gradient, 0 at first.
        moment2: P arrays like them: the running average of its square, 0 at first.
        beta1_pow: P arrays of one element, of the arithmetic type: beta1 to the power of the step that is to
            be taken, beta1 at first.
        beta2_pow: P arrays like them for beta2.
        rho: P arrays like them: the length of the average of squares in the step that is to be taken, 1 at
            first.
        lr: learning rate, one number or one per tensor; at least 0.
        beta1, beta2: how slowly the averages move, at least 0 and below 1.
        epsilon: added to the denominator, at least 0.
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

    Source: Paddle's ``radam`` operator. docs/numerics.md fixes each rounding.
    """
    merged(
        catalog.RADAM, rule,
        dict(params=params, grads=grads, moment1=moment1, moment2=moment2, beta1_pow=beta1_pow, beta2_pow=beta2_pow,
             rho=rho, master_params=master_params),
        dict(lr=lr, beta1=beta1, beta2=beta2, epsilon=epsilon, rescale_grad=rescale_grad, rounding=rounding, seed=seed),
        grad_factor, found_inf,
    )  # fmt: skip


def radam(param, grad, moment1, moment2, beta1_pow, beta2_pow, rho, *, lr, master_param=None, **hyper):
    """Update one tensor by RAdam, in place: `merged_radam` of lists of one."""
    arrays = [param, grad, moment1, moment2, beta1_pow, beta2_pow, rho]
    single(merged_radam, arrays, {"master_params": master_param}, {"lr": lr} | hyper)
