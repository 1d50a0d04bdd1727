"""Clipping by a norm that PyTorch computes, for cases that the kernels' gradient check does not cover."""

import math
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from refopt.checks.arguments import number
from refopt.torch.sharded import total_norm


def clipping(norm: Tensor, max_norm: float) -> Tensor:
    """The factor that clips gradients of a norm to ``max_norm``; 1 if the norm is NaN."""
    factor = max_norm / (norm + 1e-6)
    return torch.where(factor < 1, factor, torch.ones_like(factor))


def unscaled(norm: Tensor, scale: Tensor | None) -> Tensor:
    """The norm without the scaler's factor."""
    return norm if scale is None else norm / scale.to(norm.device)


def require_finite(norm: Tensor, norm_type: float) -> None:
    """Raise RuntimeError in PyTorch's words if a norm is inf or NaN; this waits for it."""
    if not math.isfinite(norm.item()):
        raise RuntimeError(
            f"The total norm of order {float(norm_type)} for gradients from `parameters` is non-finite, so it cannot "
            f"be clipped. To disable this error and scale the gradients by the non-finite norm anyway, set "
            f"`error_if_nonfinite=False`"
        )


@torch.no_grad()
def clip_grad_norm_(
    optimizers: Iterable[Any], max_norm: float, norm_type: float = 2.0, error_if_nonfinite: bool = False
) -> Tensor:
    """Clip the norm of the gradients of several optimizers together, in the next step of each.

    Call it between the backward pass and the steps. It does not modify gradients; each step multiplies its own by one
    factor as it reads them. Under a ``GradScaler`` the steps clip the norm without the scale; the returned norm is that
    of the scaled gradients, unless you call ``scaler.unscale_`` first.

    Args:
        optimizers: one or several of this package, without their own ``max_norm``.
        max_norm: the limit for the norm of all gradients, at least 0.
        norm_type: 2, inf, or another, as in ``torch.nn.utils.clip_grad_norm_``.
        error_if_nonfinite: whether a norm of inf or NaN raises; the call then waits for the norm.

    Returns:
        The norm, shape ().

    Raises:
        TypeError, ValueError: naming the argument and the index.
        RuntimeError: the norm is not finite, with ``error_if_nonfinite``.
    """
    where = "clip_grad_norm_"
    max_norm = number(f"{where}: max_norm", max_norm, 0)
    some = list(optimizers) if isinstance(optimizers, Iterable) else [optimizers]
    norm_type = number(f"{where}: norm_type", norm_type, above=0)
    for i, optimizer in enumerate(some):
        if not hasattr(optimizer, "clip_next"):
            expected = "expected an optimizer of refopt.torch"
            raise TypeError(f"{where}: optimizers[{i}]: {expected}, got {type(optimizer).__name__}")
        if optimizer.max_norm is not None:
            raise ValueError(f"{where}: optimizers[{i}]: expected one without max_norm, got {optimizer.max_norm}")
    norm = total_norm([p for each in some for group in each.param_groups for p in group["params"]], norm_type)
    if error_if_nonfinite:
        require_finite(norm, norm_type)
    for optimizer in some:
        optimizer.clip_next(norm, max_norm)
    return norm
