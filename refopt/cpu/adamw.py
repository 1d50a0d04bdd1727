"""Adam with decoupled weight decay: one tensor, and any number of them merged.

AdamW (Loshchilov and Hutter, arXiv:1711.05101) in the form of Paddle's ``adamw`` operator. The parameter
decays first, and then takes the step of `refopt.cpu.adam`::

    p = p * (1 - lr * lr_ratio * coeff)

As in Paddle's CPU operator, ``lr_ratio`` is a factor of the decay alone; in its CUDA kernel it is one of the
step, too.
"""

from refopt import catalog
from refopt.cpu.adam import rule as adam_rule
from refopt.cpu.merged import merged, single


def rule(p, g, *states, lr, coeff, lr_ratio, **numbers):
    """The new parameter, moments and powers, and with AMSGrad the new maximum."""
    p = p * (1 - lr * lr_ratio * coeff)
    return adam_rule(p, g, *states, lr=lr, **numbers)


def merged_adamw(
    params, grads, moment1, moment2, beta1_pow, beta2_pow, *, lr, beta1=0.9, beta2=0.999, epsilon=1e-8, coeff=0.01,
    lr_ratio=1.0, rescale_grad=1.0, epsilon_at="corrected", moment2_max=None, master_params=None, grad_factor=None,
    found_inf=None, rounding="nearest", seed=0,
):  # fmt: skip
    """Update every tensor of a list by AdamW, in place.

    Args:
        params: P arrays of fp32, fp64, fp16 or bf16, of any shape, each dense in memory.
        grads: P arrays of the same shapes, of any dtype that widens to the arithmetic type. A gradient of
            ``None`` skips its tensor: it does not decay, its moments and powers stay as they are.
        moment1: P arrays of the same shapes, of the arithmetic type or of the parameter's dtype: the running
            average of the gradient, 0 at first.
        moment2: P arrays like them: the running average of its square, 0 at first.
        beta1_pow: P arrays of one element, of the arithmetic type: beta1 to the power of the step that is to
            be taken, beta1 at first.
        beta2_pow: P arrays like them for beta2.
        lr: learning rate, one number or one per tensor; at least 0.
        beta1, beta2: how slowly the averages move, at least 0 and below 1.
        epsilon: added to the denominator, at least 0.
        coeff: weight decay, one number or one per tensor; at least 0.
        lr_ratio: multiplies lr in the decay, one number or one per tensor; at least 0.
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

    Source: Paddle's ``adamw`` operator. docs/numerics.md fixes each rounding.
    """
    merged(
        catalog.ADAMW, rule,
        dict(params=params, grads=grads, moment1=moment1, moment2=moment2, beta1_pow=beta1_pow, beta2_pow=beta2_pow,
             moment2_max=moment2_max, master_params=master_params),
        dict(lr=lr, beta1=beta1, beta2=beta2, epsilon=epsilon, coeff=coeff, lr_ratio=lr_ratio,
             rescale_grad=rescale_grad, epsilon_at=epsilon_at, rounding=rounding, seed=seed),
        grad_factor, found_inf,
    )  # fmt: skip


def adamw(
    param, grad, moment1, moment2, beta1_pow, beta2_pow, *, lr, moment2_max=None, master_param=None, **hyper
):
    """Update one tensor by AdamW, in place: `merged_adamw` of lists of one."""
    arrays = [param, grad, moment1, moment2, beta1_pow, beta2_pow]
    single(merged_adamw, arrays, {"moment2_max": moment2_max, "master_params": master_param}, {"lr": lr} | hyper)
