"""Clipping by a norm that PyTorch takes: what the kernels' own check of the gradients does not have."""

import math
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from refopt.checks.arguments import number
from refopt.torch.sharded import total_norm


def clipping(norm: Tensor, max_norm: float) -> Tensor:
    """What gradients of some norm are multiplied by to have at most ``max_norm``; 1 where the norm is NaN."""
    factor = max_norm / (norm + 1e-6)
    return torch.where(factor < 1, factor, torch.ones_like(factor))


def unscaled(norm: Tensor, scale: Tensor | None) -> Tensor:
    """The norm of gradients that a scaler has made larger, as it would be without."""
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

    Call it between the backward pass and the steps. Gradients stay as they are; each step multiplies its own by one
    factor as it reads them. Under a ``GradScaler`` the steps clip the norm without the scale; what is returned is that
    of the gradients as they are, so call ``scaler.unscale_`` before to get the other.

    Args:
        optimizers: of this package, one or several, without ``max_norm`` of their own.
        max_norm: the most that the norm of all gradients may be, at least 0.
        norm_type: 2, inf, or another, as of ``torch.nn.utils.clip_grad_norm_``.
        error_if_nonfinite: whether a norm of inf or NaN raises, for which this waits.

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
