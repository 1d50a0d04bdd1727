"""LARS with momentum: one tensor, and any number of them merged.

Layer-wise adaptive rate scaling (You, Gitman and Ginsburg, arXiv:1708.03888) in the form of Paddle's
``lars_momentum`` operator, with lr folded into the velocity::

    g' = rescale_grad * g
    local_lr = lr * lars_coeff * ||p|| / (||g'|| + wd * ||p|| + epsilon)     if `adapt` holds, else lr
    v  = mu * v + local_lr * (g' + wd * p)
    p  = p - v

With a master or a remainder, p in the last two lines is the exact parameter, and the stored parameter is the rounded
one.
"""

from fnmatch import fnmatchcase

import numpy as np

from refopt.checks.arguments import chosen, number
from refopt.checks.arguments import names as texts
from refopt.checks.dtypes import REMAINDERS
from refopt.checks.rows import Form, Slot
from refopt.cpu.merged import step
from refopt.cpu.reduce import sum_of_squares
from refopt.cpu.routine import routine, single


def adapts(param_norm, grad_norm, weight_decay, adapt):
    """Whether the LARS ratio applies; Paddle's versions have used these three conditions."""
    norms = param_norm > 0 and grad_norm > 0
    return {"norms": norms, "decay": weight_decay > 0, "decay_and_norms": weight_decay > 0 and norms}[adapt]


def local_lr(param_norm, grad_norm, *, lr, lars_coeff, lars_weight_decay, epsilon, adapt):
    """The learning rate of one tensor, from the norms of its parameter and of its rescaled gradient."""
    if not adapts(param_norm, grad_norm, lars_weight_decay, adapt):
        return lr
    return lr * lars_coeff * param_norm / (grad_norm + lars_weight_decay * param_norm + epsilon)


def update(p, g, v, *, local_lr, mu, lars_weight_decay):
    """One element: the new parameter and the new velocity."""
    v = mu * v + local_lr * (g + lars_weight_decay * p)
    return p - v, v


def rule(p, g, v, *, stored, mu, lars_weight_decay, norm_of, **numbers):
    """The new parameter and velocity. ``stored("params", p)`` is the parameter without its master."""
    param_norm = np.sqrt(sum_of_squares(p if norm_of == "master" else stored("params", p)))
    rate = local_lr(param_norm, np.sqrt(sum_of_squares(g)), lars_weight_decay=lars_weight_decay, **numbers)
    return update(p, g, v, local_lr=rate, mu=mu, lars_weight_decay=lars_weight_decay)


def passes(form, dtypes, norm_of="param", **_):
    """Reads and writes of each slot: the gradient is read twice, and a parameter twice if it has no master."""
    has_master = dtypes[-1] not in (None, *REMAINDERS)
    counts = {"params": 1 if has_master else 2, "grads": 2, "velocities": 2, "master_params": 2}
    if form.norm_reads_param:
        counts["params"] += not (norm_of == "master" and has_master)
        counts["master_params"] += norm_of == "master"
    return counts


def merged_lars_momentum(
    params, grads, velocities, *, lr, mu, lars_coeff=0.001, lars_weight_decay=0.0005, epsilon=0.0, rescale_grad=1.0,
    master_params=None, adapt="norms", norm_of="param", grad_factor=None, found_inf=None,
):
    """Update every tensor of a list by LARS with momentum, in place.

    Args:
        velocities: P arrays of the same shapes, of the arithmetic type or of the parameter's dtype.
        lars_coeff: trust coefficient, at least 0.
        lars_weight_decay: weight decay, one number or one per tensor; at least 0.
        epsilon: added to the denominator of the local learning rate, at least 0.
        adapt: when the LARS ratio applies instead of plain lr: ``"norms"`` (both norms positive), ``"decay"`` (weight
            decay positive) or ``"decay_and_norms"`` (both).
        norm_of: with masters, whether ||p|| is the norm of the stored ``"param"`` or of the ``"master"``; with
            remainders, ``"master"`` is the exact parameter.
    """
    step(LARS_MOMENTUM, locals())


LARS_MOMENTUM = routine(
    merged_lars_momentum, rule, source="arXiv:1708.03888; Paddle PR 35476 and its later kernels",
    states=[Slot("velocities")],
    trial={"lr": 10.0},
    choices={"adapt": ("norms", "decay", "decay_and_norms"), "norm_of": ("param", "master")},
    passes=passes,
    norms=2,
    forms={
        "separate": Form(launches=1, merged=False),
        "cooperative": Form(launches=1),
        "two_launches": Form(launches=2, usual=True),
        "carried_norm": Form(launches=2, norm_reads_param=False),
    },
)
lars_momentum = single(merged_lars_momentum)


def weight_decays(names, lars_weight_decay, exclude, *, match="substring"):
    """One weight decay per parameter: 0 for the excluded names, ``lars_weight_decay`` for the others.

    Args:
        names: the parameters' names, any iterable of strings.
        lars_weight_decay: a finite number of at least 0.
        exclude: what to exclude, an iterable like names.
        match: how an entry of ``exclude`` matches a name: ``"substring"``, as in Paddle's
            ``exclude_from_weight_decay`` (``"b_0"`` also matches ``"emb_0"``), or ``"glob"``, a pattern for the whole
            name (``"*.bias"``, ``"bn?.weight"``, or simply the name itself).

    Raises:
        ValueError, TypeError: the message names argument and index.
    """
    matches = {"substring": lambda name, entry: entry in name, "glob": fnmatchcase}
    hit = matches[chosen("weight_decays: match", match, matches)]
    decay = number("weight_decays: lars_weight_decay", lars_weight_decay, least=0, finite=True)
    params, excluded = texts("weight_decays: names", names), texts("weight_decays: exclude", exclude)
    return [0.0 if any(hit(name, entry) for entry in excluded) else decay for name in params]
