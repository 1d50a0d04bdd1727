"""States in 8 bits (numerics, N21): made, converted to and from floats, and divided as their parameters are.

A parameter's codes are one tensor of uint8, 36 bytes for each 32 elements in the order of its axes. Those of a DTensor
have axes, too, so that ranks have the codes of their shards, which are the unsharded ones.

Other codes have no shape, so those of a parameter of another shape load if it has as many groups. An entry with the
shape would be no tensor, which ``flatten_optimizer_state_dict`` of `torch.distributed.checkpoint` refuses.
"""

import math
from typing import Any

import torch
from torch import Tensor

from refopt.checks.dtypes import GROUP, coded_bytes
from refopt.cpu.codes import codes_of
from refopt.torch.arrays import FLOATS, has_memory
from refopt.torch.formulas import Formula
from refopt.torch.sharded import is_cut, is_dtensor, like, local, spread_of


def refusal(param: Any) -> str:
    """Why a parameter has no states in 8 bits, in the form "expected ..., got ..."; empty if it can have them."""
    if param.dtype == torch.float64:
        return "expected float32, float16 or bfloat16 for states='8bit', got float64"
    if has_memory(param) and not local(param).is_contiguous():  # codes do not tell in which other order they are
        return f"expected a contiguous tensor for states='8bit', got strides {local(param).stride()}"
    if is_cut(param) and not _is_cut_at_groups(param):
        cut = f"{tuple(param.shape)} cut by {param.placements} over {param.device_mesh.size()} ranks"
        return f"expected shards of whole groups of {GROUP} elements, or states=None in its group, got {cut}"
    return ""


def _is_cut_at_groups(param: Any) -> bool:
    axis, rows, _ = _division(param)
    each = param.shape[axis]
    for cut, size in zip(param.placements, param.device_mesh.shape, strict=True):
        if size > 1 and not cut.is_replicate() and cut.dim >= axis:
            if cut.dim > axis or (-(-each // size) % rows and each > 1):
                return False
            each = -(-each // size)
    return True


def _division(param: Tensor) -> tuple[int, int, int]:
    """The last axis between whose entries groups end, after how many of them they do, and the bytes of these."""
    for axis in reversed(range(param.ndim)):
        each = math.prod(param.shape[axis + 1 :])
        rows = GROUP // math.gcd(each, GROUP)
        if param.shape[axis] % rows == 0 or (axis == 0 and rows * each == GROUP):
            return axis, rows, coded_bytes(rows * each)
    return 0, math.prod(param.shape[:1]), coded_bytes(param.numel())


def _as_codes(param: Tensor, codes: Tensor) -> Tensor:
    """The codes of this rank's part, as a state has them."""
    if not is_dtensor(param):
        return codes
    axis, rows, size = _division(param)
    mine, every = ((*x.shape[:axis], -(-math.prod(x.shape[axis : axis + 1]) // rows), size)
                   for x in (local(param), param))
    return like(param, codes.view(mine), torch.empty(every, dtype=torch.uint8, device="meta"))


def zeros(param: Tensor) -> Tensor:
    """The codes of a state that is 0."""
    part = local(param)
    return _as_codes(param, torch.zeros(coded_bytes(part.numel()), dtype=torch.uint8, device=part.device))


def is_coded(held: Tensor, param: Tensor) -> bool:
    """Whether a tensor has a parameter's codes, as bytes or as the floats to which PyTorch's classes cast them."""
    mine, part = local(held), local(param)
    floats = mine.is_floating_point() and mine.shape != part.shape and (mine.ndim == 1 or is_dtensor(param))
    return (mine.dtype == torch.uint8 or floats) and mine.numel() == coded_bytes(part.numel())


def converted(held: Any, param: Tensor, slot: str, formula: Formula) -> Any:
    """A state as the steps of a formula have it, in 8 bits or as floats; one that is neither stays as it is.

    Floats are rounded to the nearest code. The host converts: NumPy, element by element.
    """
    if not isinstance(held, Tensor) or not has_memory(param) or spread_of(held) != spread_of(param):
        return held
    mine, part = local(held).detach(), local(param)
    codes = codes_of(next(x for x in formula.row.slots if x.name == slot))
    if is_coded(held, param):
        found = mine.to(torch.uint8).flatten()
        if mine.dtype != torch.uint8 and not torch.equal(found.to(mine.dtype), mine.flatten()):
            return held
        if formula.coded:
            found = _as_codes(param, found)
            return held if (held.dtype, held.shape) == (found.dtype, found.shape) else found
        floats = torch.from_numpy(codes.decode(found.cpu().numpy(), part.numel()))
        return like(param, floats.reshape(part.shape).to(part.device))
    if not formula.coded or mine.shape != part.shape or mine.dtype not in FLOATS - {torch.float64}:
        return held
    floats = torch.empty(mine.shape, dtype=torch.float32).copy_(mine)
    return _as_codes(param, torch.from_numpy(codes.coded(floats.numpy())).to(mine.device))
