"""NAdam: one tensor, and any number of them merged.

Adam with Nesterov's momentum (Dozat 2016), as Paddle and PyTorch have it. The momentum grows from step to
step, by a power of 0.96 that fades: ``momentum_decay_pow`` is decay_base to the power of the step that is being
taken, and decay_base is 0.96**momentum_decay, computed by the caller. It starts at decay_base, ``beta2_pow`` at
beta2, and ``mu_product``, the product over the steps taken, at 1::

    g'       = rescale_grad * g
    mu       = beta1 * (1 - 0.5 * momentum_decay_pow)
    momentum_decay_pow = momentum_decay_pow * decay_base
    mu_next  = beta1 * (1 - 0.5 * momentum_decay_pow)
    mu_product = mu_product * mu
    m  = beta1 * m + (1 - beta1) * g'
    u  = beta2 * u + (1 - beta2) * g' * g'
    c  = mu_next / (1 - mu_product * mu_next) * m + (1 - mu) / (1 - mu_product) * g'
    p  = p - lr * (c / (sqrt(u / (1 - beta2_pow)) + epsilon))
    beta2_pow = beta2_pow * beta2

Paddle's powers are those of the step before, and its ``momentum_decay_pow`` is one of 0.96.
"""

import numpy as np

from refopt import catalog
from refopt.cpu.adam import moments
from refopt.cpu.merged import merged, single


def rule(p, g, m, u, momentum_decay_pow, beta2_pow, mu_product, *, lr, beta1, beta2, epsilon, decay_base):
    """The new parameter, moments, powers and product."""
    mu = beta1 * (1 - 0.5 * momentum_decay_pow)
    momentum_decay_pow = momentum_decay_pow * decay_base
    mu_next = beta1 * (1 - 0.5 * momentum_decay_pow)
    mu_product = mu_product * mu
    m, u = moments(g, m, u, beta1=beta1, beta2=beta2)
    c = mu_next / (1 - mu_product * mu_next) * m + (1 - mu) / (1 - mu_product) * g
    p = p - lr * (c / (np.sqrt(u / (1 - beta2_pow)) + epsilon))
    return p, m, u, momentum_decay_pow, beta2_pow * beta2, mu_product


def merged_nadam(
    params, grads, moment1, moment2, momentum_decay_pow, beta2_pow, mu_product, *, lr, beta1=0.9, beta2=0.999,
    epsilon=1e-8, decay_base=0.96**0.004, rescale_grad=1.0, master_params=None, grad_factor=None,
    found_inf=None, rounding="nearest", seed=0,
):  # fmt: skip
    """Update every tensor of a list by NAdam, in place.

    Args:
        params: P arrays of fp32, fp64, fp16 or bf16, of any shape, each dense in memory.
        grads: P arrays of the same shapes, of any dtype that widens to the arithmetic type. A gradient of
            ``None`` skips its tensor: its moments and scalars stay as they are.
        moment1: P arrays of the same shapes, of the arithmetic type or of the parameter's dtype: the running
            average of the gradient, 0 at first.
        moment2: P arrays like them: the running average of its square, 0 at first.
        momentum_decay_pow: P arrays of one element, of the arithmetic type: decay_base to the power of the
            step that is to be taken, decay_base at first.
        beta2_pow: P arrays like them for beta2.
        mu_product: P arrays like them: the product of mu over the steps taken, 1 at first.
        lr: learning rate, one number or one per tensor; at least 0.
        beta1, beta2: how slowly the averages move, at least 0 and below 1.
        epsilon: added to the denominator, at least 0.
        decay_base: 0.96**momentum_decay; by default that of a momentum_decay of 0.004. At least 0.
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

    Source: Paddle's ``nadam`` operator. docs/numerics.md fixes each rounding.
    """
    merged(
        catalog.NADAM, rule,
        dict(params=params, grads=grads, moment1=moment1, moment2=moment2, momentum_decay_pow=momentum_decay_pow,
             beta2_pow=beta2_pow, mu_product=mu_product, master_params=master_params),
        dict(lr=lr, beta1=beta1, beta2=beta2, epsilon=epsilon, decay_base=decay_base, rescale_grad=rescale_grad,
             rounding=rounding, seed=seed),
        grad_factor, found_inf,
    )  # fmt: skip


def nadam(
    param, grad, moment1, moment2, momentum_decay_pow, beta2_pow, mu_product, *, lr, master_param=None, **hyper
):
    """Update one tensor by NAdam, in place: `merged_nadam` of lists of one."""
    arrays = [param, grad, moment1, moment2, momentum_decay_pow, beta2_pow, mu_product]
    single(merged_nadam, arrays, {"master_params": master_param}, {"lr": lr} | hyper)
