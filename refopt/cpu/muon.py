"""Muon: one tensor, and any number of them merged.

Momentum, each matrix of which is made nearly orthogonal before it is applied (Jordan et al. 2024), as in PyTorch::

    g' = rescale_grad * g
    v  = mu * v + (1 - mu) * g'                  the average of PyTorch, or, with average=False, mu * v + g'
    u  = mu * v + (1 - mu) * g'                  with Nesterov's momentum, or mu * v + g'; without, v
    x  = u / max(||u||, epsilon)                 of each matrix; x has the compute dtype
    x  = Newton-Schulz of x                      `iterations` times, as in `refopt.cpu.newton_schulz`
    p  = p * (1 - lr * weight_decay) - lr * ratio * x

Five iterations bring the singular values of x that are not tiny to about 1. If a matrix has more rows than columns, its
transpose is iterated instead, a smaller problem with the same result. The ratio makes updates of matrices of different
shapes similar in size::

    adjust_lr="original"            sqrt(max(1, rows / columns))         Jordan's
    adjust_lr="match_rms_adamw"     0.2 * sqrt(max(rows, columns))       Moonshot's, for the learning rates of AdamW
    adjust_lr="spectral_unclamped"  sqrt(rows / columns)                 Bernstein's, https://jeremybernste.in/writing/deriving-muon
    adjust_lr="none"                1

`refopt.cpu.matmul` computes the products. Each matrix is rounded to the compute dtype once, after the term with b or a
has been added in fp32 (numerics, N18).
"""

from itertools import zip_longest
from typing import Any

import numpy as np

from refopt.checks.rows import Form, Limit, Slot
from refopt.cpu.blocks import Blocks, cuts_of
from refopt.cpu.merged import step
from refopt.cpu.newton_schulz import JORDAN, by_gram, norm_of, normalized, orthogonalized, restarting, schedule
from refopt.cpu.routine import routine, single

COEFFICIENTS = JORDAN
WHOLE = Blocks()


def momentum(g, v, *, mu, use_nesterov, average):
    """The new velocity, and the matrix to orthogonalize."""
    g = (1 - mu) * g if average else g
    v = mu * v + g
    return v, mu * v + g if use_nesterov else v


def ratio(rows, columns, adjust_lr, real):
    """The factor of a matrix's learning rate."""
    if adjust_lr == "match_rms_adamw":
        return real(0.2) * np.sqrt(real(max(rows, columns)))
    least = {"original": 1, "spectral_unclamped": 0}
    return np.sqrt(real(max(least[adjust_lr], rows / columns))) if adjust_lr in least else real(1)


def updates(
    u, *, cut, triples, lr, epsilon, adjust_lr, compute, restarts=None, norm=norm_of, scale=ratio, gram=by_gram,
    rows=(),
):
    """What is subtracted from the parameter: for each matrix, x times the learning rate and the ratio.

    ``rows`` has for each matrix a function that x goes through first, if any.
    """
    update, real = np.empty_like(u), u.dtype.type
    for matrix, updated, by_rows in zip_longest(cut.matrices(u), cut.matrices(update), rows):
        if matrix.size:
            x = normalized(matrix, epsilon=epsilon, compute=compute, norm=norm)
            x = orthogonalized(x, triples, restarts, gram).astype(real)
            updated[...] = lr * scale(*matrix.shape, adjust_lr, real) * (by_rows(x) if by_rows else x)
    return update


def rule(
    p, g, v, *, stored, cut, coefficients, restarts, iterations, lr, mu, weight_decay, epsilon, use_nesterov, average,
    adjust_lr, compute,
):
    """The new parameter and velocity. ``cut`` has the matrices; there is a triple for each iteration."""
    v, u = momentum(g, v, mu=mu, use_nesterov=use_nesterov, average=average)
    update = updates(u, cut=cut, triples=coefficients, lr=lr, epsilon=epsilon, adjust_lr=adjust_lr, compute=compute,
                     restarts=restarts)
    return p * (1 - lr * weight_decay) - update, v


def merged_muon(
    params, grads, velocities, *, lr, mu=0.95, weight_decay=0.1, epsilon=1e-7, iterations=5, coefficients=COEFFICIENTS,
    restarts=None, blocks=WHOLE, rescale_grad=1.0, use_nesterov=True, average=True, adjust_lr="original",
    compute="bfloat16", master_params=None, grad_factor=None, found_inf=None,
):
    """Update every matrix of a list by Muon, in place.

    Args:
        params: P arrays of fp32, fp64, fp16 or bf16, each dense in memory, of two axes, or of more if ``blocks``
            defines their matrices. Use another optimizer, such as `merged_adamw`, for vectors, and for embeddings and
            output layers.
        velocities: P arrays of the same shapes, of the arithmetic type or of the parameter's dtype: the momentum, 0 at
            first.
        epsilon: the smallest norm to divide by, at least 0.
        iterations: a whole number below 100.
        coefficients: a, b and c, or a list of such triples, one for each iteration, or the name of one of the
            `refopt.cpu.newton_schulz.PRESETS`: ``"jordan"``, ``"polar_express"`` or ``"you"``.
        restarts: None for the standard iteration, or at which iterations, from 0, Gram Newton-Schulz restarts, such as
            (2,): in bf16 after at most two, in fp16 three, in fp32 six, in fp64 twelve. It is for matrices with at
            least 5 columns for 4 rows, or the reverse; others are iterated as with None.
        blocks: how parameters are cut into matrices, one `Blocks` or one per tensor; each matrix has its own norm,
            iterations and ratio.
        use_nesterov: whether to look ahead (Nesterov's momentum).
        average: whether a gradient is multiplied by 1 - mu before it enters the velocity, as in PyTorch.
        adjust_lr: ``"original"``, ``"match_rms_adamw"``, ``"spectral_unclamped"`` or ``"none"``: the ratio above.
        compute: the dtype of the iterations: ``"bfloat16"`` or ``"float16"``, with products of tensor cores, or
            ``"float32"`` or ``"float64"``.
    """
    step(MUON, locals())


def matrix_arguments(row, arrays, numbers, *, coefficients=COEFFICIENTS, restarts=None, blocks=WHOLE):
    """The rule's extra arguments for each parameter: its matrices and the schedule; raises if it has no matrix."""
    name, count = row.merged_name, int(numbers["iterations"])
    triples = schedule(f"{name}: coefficients", coefficients, count)
    starts = restarting(f"{name}: restarts", restarts, count, numbers["compute"])
    own = {"coefficients": triples, "restarts": starts}
    return [{"cut": cut, **own} for cut in cuts_of(row, arrays, blocks)]


OF_MATRICES: dict[str, Any] = {
    "limits": {"iterations": Limit(per_tensor=False, below=100.0, whole=True)},
    "choices": {
        "adjust_lr": ("original", "match_rms_adamw", "spectral_unclamped", "none"),
        "compute": ("bfloat16", "float16", "float32", "float64"),
    },
    "trial": {"iterations": 2},  # each takes the executor as long as everything else
    "matrix_arguments": matrix_arguments,
}
MUON = routine(
    merged_muon, rule, source="Jordan et al. 2024, https://kellerjordan.github.io/posts/muon; arXiv:2502.16982",
    states=[Slot("velocities")],
    forms={"merged": Form(3, iterated=3)}, **OF_MATRICES,
)
muon = single(merged_muon)
