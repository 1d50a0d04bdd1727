"""Parameters that are spread over ranks, as ``fully_shard`` and tensor parallelism make them: DTensors.

A kernel updates a rank's own part, so the step of an elementwise routine needs no other rank. States are DTensors with
the placements of their parameter, so that ``torch.distributed.checkpoint`` saves them, and loads them for other ranks.
"""

import math
import sys
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor


def is_dtensor(tensor: Any) -> bool:
    """Whether it is a DTensor, without importing the module that defines them."""
    module = sys.modules.get("torch.distributed.tensor")
    return module is not None and isinstance(tensor, module.DTensor)


def local(tensor: Any) -> Tensor:
    """The part of a DTensor that this rank has; any other tensor itself."""
    return tensor._local_tensor if is_dtensor(tensor) else tensor  # what to_local() returns without autograd


def like(param: Tensor, part: Tensor, whole: Tensor | None = None) -> Tensor:
    """A tensor distributed like a parameter, from this rank's part; ``whole`` has its shape and strides, if others."""
    if not is_dtensor(param):
        return part
    spread: Any = param
    whole = param if whole is None else whole
    from torch.distributed.tensor import DTensor

    return DTensor.from_local(part, spread.device_mesh, spread.placements, run_check=False, shape=whole.shape,
                              stride=whole.stride())


def spread_of(tensor: Any) -> tuple | None:
    """Mesh and placements of a DTensor; ``None`` for any other tensor."""
    return (tensor.device_mesh, tensor.placements) if is_dtensor(tensor) else None


def is_cut(param: Any, apart: int = 0) -> bool:
    """Whether it is cut between ranks along any axis after the first ``apart``."""
    if not is_dtensor(param):
        return False
    cuts = [x for x, size in zip(param.placements, param.device_mesh.shape, strict=True) if size > 1]
    return any(not x.is_replicate() and getattr(x, "dim", apart) >= apart for x in cuts)


def refusal(param: Any) -> str:
    """Why a DTensor cannot be updated, as what was expected and what came; empty if it can."""
    if is_dtensor(param) and any(placement.is_partial() for placement in param.placements):
        return f"expected a parameter that is sharded or replicated, got one with placements {param.placements}"
    return ""


def placed(grad: Any, param: Any) -> Tensor:
    """This rank's part of a gradient, which has the placements of its parameter afterwards, as in PyTorch's step."""
    if is_dtensor(grad) and grad.placements != param.placements:
        grad = grad.redistribute(placements=param.placements)
    return local(grad)


def total_norm(params: Sequence[Tensor], norm_type: float) -> Tensor:
    """The norm of the gradients of some parameters, on any devices, whole or sharded, on the first's device, shape ().

    Each rank takes the norm of its parts. Of DTensors the ranks that have other parts join theirs.
    """
    by_spread: dict[Any, list[Tensor]] = {}
    for param in params:
        if param.grad is not None:
            by_spread.setdefault(spread_of(param), []).append(placed(param.grad, param).detach())
    norms = [_over_ranks(_norm(parts, norm_type), spread, norm_type) for spread, parts in by_spread.items()]
    if len(norms) < 2:
        return norms[0] if norms else torch.zeros(())
    return torch.linalg.vector_norm(torch.stack([norm.to(norms[0].device) for norm in norms]), norm_type)


def _norm(parts: Sequence[Tensor], norm_type: float) -> Tensor:
    some = [x for part in parts if (x := part.coalesce().values() if part.is_sparse else part).numel()]
    return torch.nn.utils.get_total_norm(some, norm_type) if some else torch.zeros((), device=parts[0].device)


def _over_ranks(norm: Tensor, spread: tuple | None, norm_type: float) -> Tensor:
    """The norm of what all ranks have of some DTensors, from that of what this one has."""
    if spread is None:
        return norm
    from torch import distributed

    mesh, placements = spread
    largest = math.isinf(norm_type)
    norm = norm if largest else norm**norm_type
    for axis, placement in enumerate(placements):
        if not placement.is_replicate():
            operation = distributed.ReduceOp.MAX if largest else distributed.ReduceOp.SUM
            distributed.all_reduce(norm, operation, mesh.get_group(axis))
    return norm if largest else norm ** (1 / norm_type)
