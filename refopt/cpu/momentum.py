"""Gradient descent with momentum: one tensor, and any number of them merged.

In the form of Paddle's ``momentum`` operator, with lr outside of the velocity::

    g' = rescale_grad * g + l2_decay * p
    v  = mu * v + g'
    p  = p - lr * v                  or, with Nesterov's momentum, p - lr * (g' + mu * v)
"""

from refopt import catalog
from refopt.cpu.merged import merged, single


def rule(p, g, v, *, lr, mu, l2_decay, use_nesterov):
    """The new parameter and the new velocity."""
    g = g + l2_decay * p
    v = mu * v + g
    return p - lr * (g + mu * v if use_nesterov else v), v


def merged_momentum(
    params,
    grads,
    velocities,
    *,
    lr,
    mu,
    l2_decay=0.0,
    rescale_grad=1.0,
    use_nesterov=False,
    master_params=None,
    grad_factor=None,
    found_inf=None,
    rounding="nearest",
    seed=0,
):
    """Update every tensor of a list by gradient descent with momentum, in place.

    Args:
        params: P arrays of fp32, fp64, fp16 or bf16, of any shape, each dense in memory.
        grads: P arrays of the same shapes, of any dtype that widens to the arithmetic type. A gradient of
            ``None`` skips its tensor.
        velocities: P arrays of the same shapes, of the arithmetic type or of the parameter's dtype.
        lr: learning rate, one number or one per tensor; at least 0.
        mu: momentum, at least 0.
        l2_decay: weight decay added to the gradient, one number or one per tensor; at least 0.
        rescale_grad: multiplies every gradient before it is used; above 0.
        grad_factor: ``None``, or an array of one element that multiplies every gradient, too; see
            `scan_gradients`. fp32, or fp64 for fp64 parameters.
        found_inf: ``None``, or an fp32 array of one element: if it is not 0, the step changes nothing.
        rounding: ``"nearest"``, or ``"stochastic"``: bf16 arrays are rounded to by chance (numerics, N16).
        seed: of the chance, a whole number below 2**24, or one per tensor; take another one every step.
        use_nesterov: whether to look ahead (Nesterov's momentum).
        master_params: ``None``, or P arrays of the arithmetic type that hold the exact parameters, or of uint16
            that hold what bf16 parameters leave out of them (numerics, N15); single entries may be ``None``.

    Raises:
        ValueError, TypeError: naming the argument and the index; nothing has been modified then.

    Source: Paddle's ``merged_momentum`` operator, PR 36380. docs/numerics.md fixes each rounding.
    """
    merged(
        catalog.MOMENTUM, rule,
        dict(params=params, grads=grads, velocities=velocities, master_params=master_params),
        dict(lr=lr, mu=mu, l2_decay=l2_decay, rescale_grad=rescale_grad, use_nesterov=use_nesterov,
             rounding=rounding, seed=seed),
        grad_factor, found_inf,
    )  # fmt: skip


def momentum(param, grad, velocity, *, lr, mu, master_param=None, **hyper):
    """Update one tensor by gradient descent with momentum, in place: `merged_momentum` of lists of one."""
    single(merged_momentum, [param, grad, velocity], {"master_params": master_param}, {"lr": lr, "mu": mu} | hyper)
