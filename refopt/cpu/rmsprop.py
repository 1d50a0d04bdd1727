"""RMSProp, plain and centered, with momentum: one tensor, and any number of them merged.

Tieleman and Hinton 2012 in the form of Paddle's ``rmsprop`` operator, with lr folded into the velocity::

    g' = rescale_grad * g
    s  = rho * s + (1 - rho) * g' * g'
    v  = mu * v + lr * g' / sqrt(s + epsilon)
    p  = p - v

The centered form (Graves, arXiv:1308.0850) keeps an average of the gradient, too, and puts the variance in the
place of s. By rounding it can come out below -epsilon; the root is NaN then::

    a  = rho * a + (1 - rho) * g'
    v  = mu * v + lr * g' / sqrt(s - a * a + epsilon)

This is epsilon where Paddle has it, ``epsilon_at="inside"`` of the root. ``"outside"`` is PyTorch's form,
sqrt(s) + epsilon; its velocity is without lr, which is the same while lr is constant.
"""

import numpy as np

from refopt import catalog
from refopt.cpu.merged import merged, single


def root(d, epsilon, epsilon_at):
    """The denominator."""
    return np.sqrt(d) + epsilon if epsilon_at == "outside" else np.sqrt(d + epsilon)


def rule(p, g, s, v, a, *, lr, rho, mu, epsilon, epsilon_at):
    """The new parameter, average of squares and velocity, and if centered the new average."""
    s = rho * s + (1 - rho) * g * g
    d = s
    if a is not None:
        a = rho * a + (1 - rho) * g
        d = s - a * a
    v = mu * v + lr * g / root(d, epsilon, epsilon_at)
    return p - v, s, v, a


def merged_rmsprop(
    params, grads, mean_square, velocity, *, lr, rho=0.95, mu=0.0, epsilon=1e-6, rescale_grad=1.0, epsilon_at="inside",
    mean_grad=None, master_params=None, grad_factor=None, found_inf=None, rounding="nearest", seed=0,
):  # fmt: skip
    """Update every tensor of a list by RMSProp, in place.

    Args:
        params: P arrays of fp32, fp64, fp16 or bf16, of any shape, each dense in memory.
        grads: P arrays of the same shapes, of any dtype that widens to the arithmetic type. A gradient of
            ``None`` skips its tensor.
        mean_square: P arrays of the same shapes, of the arithmetic type or of the parameter's dtype: the
            running average of the square of the gradient, 0 at first.
        velocity: P arrays like them, 0 at first.
        lr: learning rate, one number or one per tensor; at least 0.
        rho: how slowly the averages move, at least 0 and below 1.
        mu: momentum, at least 0.
        epsilon: added to the denominator, at least 0.
        rescale_grad: multiplies every gradient before it is used; above 0.
        grad_factor: ``None``, or an array of one element that multiplies every gradient, too; see
            `scan_gradients`. fp32, or fp64 for fp64 parameters.
        found_inf: ``None``, or an fp32 array of one element: if it is not 0, the step changes nothing.
        rounding: ``"nearest"``, or ``"stochastic"``: bf16 arrays are rounded to by chance (numerics, N16).
        seed: of the chance, a whole number below 2**24, or one per tensor; take another one every step.
        epsilon_at: ``"inside"`` or ``"outside"`` of the root.
        mean_grad: ``None``, or for the centered form P arrays like mean_square: the running average of the
            gradient, 0 at first; single entries may be ``None``.
        master_params: ``None``, or P arrays of the arithmetic type that hold the exact parameters, or of uint16
            that hold what bf16 parameters leave out of them (numerics, N15); single entries may be ``None``.

    Raises:
        ValueError, TypeError: naming the argument and the index; nothing has been modified then.

    Source: Paddle's ``rmsprop`` operator. docs/numerics.md fixes each rounding.
    """
    merged(
        catalog.RMSPROP, rule,
        dict(params=params, grads=grads, mean_square=mean_square, velocity=velocity, mean_grad=mean_grad,
             master_params=master_params),
        dict(lr=lr, rho=rho, mu=mu, epsilon=epsilon, rescale_grad=rescale_grad, epsilon_at=epsilon_at,
             rounding=rounding, seed=seed),
        grad_factor, found_inf,
    )  # fmt: skip


def rmsprop(param, grad, mean_square, velocity, *, lr, mean_grad=None, master_param=None, **hyper):
    """Update one tensor by RMSProp, in place: `merged_rmsprop` of lists of one."""
    arrays = [param, grad, mean_square, velocity]
    single(merged_rmsprop, arrays, {"mean_grad": mean_grad, "master_params": master_param}, {"lr": lr} | hyper)
