"""LARS with momentum: one tensor, and any number of them merged.

Layer-wise adaptive rate scaling (You, Gitman and Ginsburg, arXiv:1708.03888) in the form of Paddle's
``lars_momentum`` operator, with lr folded into the velocity::

    g' = rescale_grad * g
    local_lr = lr * lars_coeff * ||p|| / (||g'|| + wd * ||p|| + epsilon)     where `adapt` holds, else lr
    v  = mu * v + local_lr * (g' + wd * p)
    p  = p - v

With a master parameter, or a remainder in its place, p in the last two lines is the exact parameter that it holds,
and the stored parameter is its rounding.
"""

from fnmatch import fnmatchcase

import numpy as np

from refopt import catalog, checks
from refopt.checks.arguments import chosen, number
from refopt.checks.arguments import names as texts
from refopt.cpu.merged import exact
from refopt.cpu.reduce import sum_of_squares
from refopt.cpu.remainder import split_numbers
from refopt.dtypes import arithmetic


def adapts(param_norm, grad_norm, weight_decay, adapt):
    """Whether the LARS ratio applies; upstream has used each of these three conditions."""
    norms = param_norm > 0 and grad_norm > 0
    return {"norms": norms, "decay": weight_decay > 0, "decay_and_norms": weight_decay > 0 and norms}[adapt]


def local_lr(param_norm, grad_norm, *, lr, lars_coeff, lars_weight_decay, epsilon, adapt):
    """The learning rate of one tensor, from the norms of its parameter and of its rescaled gradient."""
    if not adapts(param_norm, grad_norm, lars_weight_decay, adapt):
        return lr
    return lr * lars_coeff * param_norm / (grad_norm + lars_weight_decay * param_norm + epsilon)


def rule(p, g, v, *, local_lr, mu, lars_weight_decay):
    """One element: the new parameter and the new velocity."""
    v = mu * v + local_lr * (g + lars_weight_decay * p)
    return p - v, v


def _step(param, grad, velocity, master, factor, *, rescale_grad, norm_of, adapt, mu, lars_weight_decay, **scalars):
    real = arithmetic(param.dtype.name)
    with np.errstate(all="ignore"):
        p = exact(param, master, real)
        g = real(rescale_grad) * real(factor) * grad.astype(real)
        v = velocity.astype(real)
        normed = param.astype(real) if norm_of == "param" else p
        wd = real(lars_weight_decay)
        rate = local_lr(
            np.sqrt(sum_of_squares(normed)),
            np.sqrt(sum_of_squares(g)),
            lars_weight_decay=wd,
            adapt=adapt,
            **{name: real(value) for name, value in scalars.items()},
        )
        p, v = rule(p, g, v, local_lr=rate, mu=real(mu), lars_weight_decay=wd)
        velocity[:] = v.astype(velocity.dtype)
        if master is not None and master.dtype == np.uint16:
            param[:], master[:] = split_numbers(p)
            return
        param[:] = p.astype(param.dtype)
        if master is not None:
            master[:] = p


def merged_lars_momentum(
    params,
    grads,
    velocities,
    *,
    lr,
    mu,
    lars_coeff=0.001,
    lars_weight_decay=0.0005,
    epsilon=0.0,
    rescale_grad=1.0,
    master_params=None,
    adapt="norms",
    norm_of="param",
    grad_factor=None,
    found_inf=None,
):
    """Update every tensor of a list by LARS with momentum, in place.

    Args:
        params: P arrays of fp32, fp64, fp16 or bf16, of any shape, each dense in memory.
        grads: P arrays of the same shapes, of any dtype that widens to the arithmetic type. A gradient of
            ``None`` skips its tensor.
        velocities: P arrays of the same shapes, of the arithmetic type or of the parameter's dtype.
        lr: learning rate, one number or one per tensor; at least 0.
        mu: momentum, at least 0.
        lars_coeff: trust coefficient, at least 0.
        lars_weight_decay: weight decay, one number or one per tensor; at least 0.
        epsilon: added to the denominator of the local learning rate, at least 0.
        rescale_grad: multiplies every gradient before it is used; above 0.
        master_params: ``None``, or P arrays of the arithmetic type that hold the exact parameters, or of uint16
            that hold what bf16 parameters leave out of them (numerics, N15); single entries may be ``None``.
        adapt: where the LARS ratio applies, and plain lr elsewhere: ``"norms"`` (both norms positive),
            ``"decay"`` (weight decay positive) or ``"decay_and_norms"`` (both).
        norm_of: with masters, whether ||p|| is that of the stored ``"param"`` or of the ``"master"``; with
            remainders, ``"master"`` is the exact parameter.
        grad_factor: ``None``, or an array of one element that multiplies every gradient, too; see
            `scan_gradients`. fp32, or fp64 for fp64 parameters.
        found_inf: ``None``, or an fp32 array of one element: if it is not 0, the step changes nothing.

    Raises:
        ValueError, TypeError: naming the argument and the index; nothing has been modified then.

    Source: Paddle PR 35476 and its later kernels. All arithmetic is in fp32, or in fp64 for fp64
    parameters; docs/numerics.md fixes each rounding.
    """
    checks.require_subnormals()
    call = checks.check(
        catalog.LARS_MOMENTUM,
        {"params": params, "grads": grads, "velocities": velocities, "master_params": master_params},
        dict(lr=lr, mu=mu, lars_coeff=lars_coeff, lars_weight_decay=lars_weight_decay, epsilon=epsilon,
             rescale_grad=rescale_grad, adapt=adapt, norm_of=norm_of),
        checks.host_array,
        {"grad_factor": grad_factor, "found_inf": found_inf},
    )  # fmt: skip
    if found_inf is not None and found_inf.reshape(-1)[0] != 0:
        return
    factor = 1 if grad_factor is None else grad_factor.reshape(-1)[0]
    for i in call.active:
        p, g, v, master = (checks.flat(call.slots[slot][i]) for slot in call.routine.slot_names)
        _step(p, g, v, master, factor, **call.hyper_of(i))


def lars_momentum(param, grad, velocity, *, lr, mu, master_param=None, **hyper):
    """Update one tensor by LARS with momentum, in place: `merged_lars_momentum` of lists of one.

    Args, errors and source are those of `merged_lars_momentum`, with single arrays and numbers.
    """
    masters = None if master_param is None else [master_param]
    merged_lars_momentum([param], [grad], [velocity], lr=lr, mu=mu, master_params=masters, **hyper)


def weight_decays(names, lars_weight_decay, exclude, *, match="substring"):
    """One weight decay per parameter: 0 for the excluded names, ``lars_weight_decay`` for the others.

    Args:
        names: the parameters' names, text each, as anything that can be gone through once.
        lars_weight_decay: a finite number of at least 0.
        exclude: what to exclude, as names; how an entry matches a name is said by
        match: ``"substring"``, as Paddle's ``exclude_from_weight_decay`` does it (``"b_0"`` also hits
            ``"emb_0"``), or ``"glob"``, where the entry is a pattern for the whole name
            (``"*.bias"``, ``"bn?.weight"``, or simply the name itself).

    Raises:
        ValueError, TypeError: naming the argument and the index.
    """
    matches = {"substring": lambda name, entry: entry in name, "glob": fnmatchcase}
    hit = matches[chosen("weight_decays: match", match, matches)]
    decay = number("weight_decays: lars_weight_decay", lars_weight_decay, least=0, finite=True)
    given, excluded = texts("weight_decays: names", names), texts("weight_decays: exclude", exclude)
    return [0.0 if any(hit(name, entry) for entry in excluded) else decay for name in given]
