"""Tensors as plans take them: on a GPU unchanged, on the CPU as arrays of the executor over the same memory."""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from refopt import simt
from refopt.checks import Array
from refopt.checks.dtypes import SIZES, name_of, numpy_dtype
from refopt.torch import sharded

FLOATS = {getattr(torch, name) for name in SIZES}


def array_of(tensor: Tensor) -> Any:
    """The tensor's memory, shared: what a plan takes, flat if it is of bytes, as states in 8 bits are."""
    tensor = tensor.view(-1) if tensor.dtype == torch.uint8 else tensor
    return tensor if tensor.is_cuda else _over(tensor)


def arrays_of(tensors: list[Tensor | None]) -> list[Any]:
    """`array_of` each, ``None`` where there is none."""
    return [None if tensor is None else array_of(tensor) for tensor in tensors]


def follow_stream(plan: Any, device: torch.device) -> None:
    """Move a plan on a GPU to PyTorch's current stream there."""
    if device.type == "cuda":
        ask = getattr(torch._C, "_cuda_getCurrentRawStream", None)  # which makes no object
        stream = ask(device.index) if ask else torch.cuda.current_stream(device).cuda_stream
        if stream != plan.stream:
            plan.stream = stream


def described(tensor: Tensor) -> Array:
    """A tensor's description for the checks, without its address, as if it were at 0."""
    strides = tuple(stride * tensor.element_size() for stride in tensor.stride())
    return Array(0, tuple(tensor.shape), name_of(tensor.dtype), strides, writable=True)


def _over(tensor: Tensor) -> Any:
    plain = tensor.detach()
    if plain.dtype == torch.bfloat16:  # which NumPy has only with ml_dtypes
        return simt.over(plain.view(torch.uint16).numpy().view(numpy_dtype(name_of(plain.dtype))))
    return simt.over(plain.numpy())


def layout(tensor: Tensor) -> tuple[int, ...] | None:
    """Strides in elements, 0 for extents of one; None if the elements are not contiguous in any order of axes."""
    return described(tensor).layout()


def require_apart(found: Sequence[tuple[Tensor, str]]) -> None:
    """Raise ValueError if two dense tensors share memory, which a launch would write twice; the message names them."""
    tensors, labels = [sharded.local(x) for x, _ in found], [label for _, label in found]
    spans = sorted((str(x.device), x.data_ptr(), x.nbytes, i) for i, x in enumerate(tensors) if x.numel())
    for (device, place, size, i), (other, start, _, k) in pairwise(spans):
        if device == other and start < place + size:
            first, second = labels[min(i, k)], labels[max(i, k)]
            raise ValueError(f"{second}: expected memory of its own, got memory shared with {first.partition(': ')[2]}")


def require_alike(where: str, tensor: Tensor, param: Tensor) -> None:
    """Raise ValueError if a state or a gradient differs from its parameter in shape, device or placement."""
    got, expected = ({"shape": tuple(x.shape), "device": x.device, "placement": sharded.spread_of(x)}
                     for x in (tensor, param))
    for what, x in expected.items():
        if got[what] != x:
            raise ValueError(f"{where}: expected {what} {x}, as its parameter needs, got {got[what]}")


def has_memory(param: Any) -> bool:
    """Whether it has elements to update: a lazy parameter has none yet, one on the meta device never has."""
    return not torch.nn.parameter.is_lazy(param) and param.device.type != "meta"


def is_stored(tensor: Tensor) -> bool:
    """Whether the memory of a dense tensor has its values: not their negatives, nor nothing since all are 0."""
    return not (tensor.is_neg() or tensor._is_zerotensor())


def unusable(tensor: Tensor, in_state: bool = False) -> str:
    """Why a step cannot read a tensor, in the form "expected ..., got ..."; empty if it can.

    A parameter may be on the meta device; an entry of a state must have values, but may be of integers.
    """
    if tensor.is_nested or tensor.layout is not torch.strided:
        return f"expected a dense tensor, got {'a nested one' if tensor.is_nested else tensor.layout}"
    if (tensor.is_complex() or tensor.is_quantized) if in_state else tensor.dtype not in FLOATS:
        return f"expected one of {', '.join(SIZES)}, got {name_of(tensor.dtype)}"
    wraps = type(tensor).__torch_dispatch__ is not Tensor.__torch_dispatch__  # plain ones need an address for elements
    found = torch._C._has_storage(tensor) and (tensor.data_ptr() or tensor._is_zerotensor())
    if found or not (wraps or tensor.numel()) or (tensor.is_meta and not in_state):
        return ""
    return f"expected a tensor with memory of its own, got a {type(tensor).__name__} on {tensor.device} without"


def refusal(param: Tensor) -> str:
    """Why kernels cannot update a parameter, in the form "expected ..., got ..."; empty if they can."""
    if torch.nn.parameter.is_lazy(param):
        return ""
    if because := sharded.refusal(param) or unusable(param := sharded.local(param)):
        return because
    if not is_stored(param):
        return f"expected stored values, got {'a ZeroTensor' if param._is_zerotensor() else 'their negatives'}"
    if param.device.type not in ("cuda", "cpu", "meta"):
        return f"expected a tensor on a GPU or the CPU, got one on {param.device}"
    if layout(param) is None:
        return f"expected no gaps or overlaps, got shape {tuple(param.shape)} with strides {param.stride()}"
    if (room := param.untyped_storage().nbytes()) < (param.storage_offset() + param.numel()) * param.element_size():
        return f"expected memory for its {param.numel()} elements, got a storage of {room} bytes"
    return ""
