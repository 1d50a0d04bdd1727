"""The check of gradients before a step of mixed precision: are they finite, and how large is their norm?

One pass reads every gradient and writes none. The step uses its results: it multiplies each gradient by a factor when
it reads it, or does nothing at all::

    found_inf   = 1 if any element of any gradient is inf or NaN, else 0
    grad_norm   = sqrt(sum over all gradients of g * g) * (1 / loss_scale)
    clip        = max_norm / (grad_norm + epsilon)
    grad_factor = 1 / loss_scale * clip        where clip < 1, else 1 / loss_scale

A tree sums each tensor's squares, and another tree the tensors' sums, in the order of the list (numerics, N6 and N7).
A gradient of ``None`` counts as +0.
"""

from typing import Any, NamedTuple

import numpy as np

from refopt import checks
from refopt.cpu.reduce import sum_of_squares, tree_sum


class GradientCheck(NamedTuple):
    """Arrays of one element, of the arithmetic type; ``found_inf`` is fp32."""

    grad_factor: np.ndarray
    found_inf: np.ndarray
    grad_norm: np.ndarray


def factor_of(grad_norm, inverse_scale, *, max_norm, epsilon):
    """The factor by which to multiply every gradient."""
    clip = max_norm / (grad_norm + epsilon)
    return inverse_scale * clip if clip < 1 else inverse_scale


def check_gradients(
    grads: list, *, loss_scale: Any = None, max_norm: float = np.inf, epsilon: float = 1e-6
) -> GradientCheck:
    """Look for inf and NaN in a list of gradients, and compute the factor that unscales and clips them.

    Args:
        grads: P arrays of fp32, fp64, fp16 or bf16, of any shape, each dense in memory, or ``None``.
        loss_scale: ``None`` for 1, or an fp32 array of one element by which the loss was multiplied.
        max_norm: the limit for the norm of all unscaled gradients together; inf for no clipping.
        epsilon: added to the norm in the quotient.

    Returns:
        Three arrays of one element; pass ``grad_factor`` and ``found_inf`` to steps. All arithmetic is in fp32, or
        in fp64 if any gradient is fp64.

    Raises:
        ValueError, TypeError: the message names argument and index.

    Source: Paddle's ``check_finite_and_unscale`` operator; the clip is that of PyTorch's ``clip_grad_norm_``.
    """
    checks.require_subnormals()
    real = checks.norm_type(checks.check_gradient_list(grads, loss_scale, max_norm, epsilon, checks.host_array))
    max_norm, epsilon = float(max_norm), float(epsilon)
    with np.errstate(all="ignore"):
        values: list[Any] = [None if g is None else checks.flat(g).astype(real) for g in grads]  # type: ignore[union-attr]
        sums = [real(0) if g is None else sum_of_squares(g) for g in values]
        found = any(not np.isfinite(g).all() for g in values if g is not None)
        inverse = real(1) / real(1 if loss_scale is None else loss_scale.reshape(-1)[0])
        norm = np.sqrt(tree_sum(np.array(sums, real))) * inverse
        factor = factor_of(norm, inverse, max_norm=real(max_norm), epsilon=real(epsilon))
    return GradientCheck(np.array([factor]), np.array([found], np.float32), np.array([norm]))
