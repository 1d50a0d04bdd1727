"""Tensors as what plans take: on a GPU as they are, on the CPU as arrays of the executor over the same memory."""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor

from refopt import simt
from refopt.checks.dtypes import SIZES, name_of, numpy_dtype
from refopt.torch import sharded

try:
    from torch._C._dynamo.guards import TensorGuards
except ImportError:  # which is no public name
    TensorGuards = None
FLOATS = {getattr(torch, name) for name in SIZES}


def array_of(tensor: Tensor) -> Any:
    """The tensor's memory, shared: what a plan takes."""
    return tensor if tensor.is_cuda else _over(tensor)


def arrays_of(tensors: list[Tensor | None]) -> list[Any]:
    """`array_of` each, ``None`` where there is none."""
    return [None if tensor is None else array_of(tensor) for tensor in tensors]


def places_of(tensors: Sequence[Tensor]) -> np.ndarray:
    """Where the tensors lie: their addresses, int64."""
    return np.fromiter(map(Tensor.data_ptr, tensors), np.int64, len(tensors))


def follow_stream(plan: Any, device: torch.device) -> None:
    """Have what is bound to arrays on a GPU go on on PyTorch's current stream there."""
    if device.type == "cuda":
        stream = torch.cuda.current_stream(device).cuda_stream
        if stream != plan.stream:
            plan.stream = stream


def _over(tensor: Tensor) -> Any:
    plain = tensor.detach()
    if plain.dtype == torch.bfloat16:  # which NumPy has from ml_dtypes alone
        return simt.over(plain.view(torch.uint16).numpy().view(numpy_dtype(name_of(plain.dtype))))
    return simt.over(plain.numpy())


def layout(tensor: Tensor) -> tuple[int, ...] | None:
    """Strides in elements, 0 for extents of one; None if the elements do not lie side by side in any order of axes."""
    if tensor.numel() == 0:
        return ()
    expected = 1
    for stride, extent in sorted((s, n) for s, n in zip(tensor.stride(), tensor.shape, strict=True) if n > 1):
        if stride != expected:
            return None
        expected *= extent
    return tuple(s if n > 1 else 0 for s, n in zip(tensor.stride(), tensor.shape, strict=True))


class Alike:
    """Whether tensors are like some others in shape, strides, dtype and sign bit; holds none of them.

    PyTorch's guards of compiled code compare all of them in one call, which costs the host 0.1 us a tensor.
    """

    def __init__(self, tensors: Sequence[Tensor]) -> None:
        """Take note of the tensors that others are to be like."""
        self._check = TensorGuards and TensorGuards(*tensors, dynamic_dims_sizes=None, dynamic_dims_strides=None).check
        self._known = None if self._check else [_kind(x) for x in tensors]

    def __call__(self, tensors: Sequence[Tensor]) -> bool:
        """Whether these are; they may be said not to be where only autograd's flags differ."""
        return self._check(*tensors) if self._check else self._known == [_kind(x) for x in tensors]


class Steady:
    """Whether tensors are where they were, and in shape, strides, dtype and sign bit as they were; holds none."""

    def __init__(self, tensors: Sequence[Tensor]) -> None:
        """Take note of the tensors as they are."""
        self._places = places_of(tensors).tobytes()
        self._kinds = [_kind(x) for x in tensors]
        self._alike = Alike(tensors)

    def __call__(self, tensors: Sequence[Tensor]) -> bool:
        """Whether these are those, unchanged."""
        if places_of(tensors).tobytes() != self._places:
            return False
        if self._alike(tensors):
            return True
        if self._kinds != [_kind(x) for x in tensors]:
            return False
        self._alike = Alike(tensors)  # another flag of autograd's, such as requires_grad
        return True


def _kind(x: Tensor) -> tuple:
    return x.shape, x.stride(), x.dtype, x.is_neg()


def require_apart(tensors: Sequence[Tensor], labels: Sequence[str]) -> None:
    """Raise ValueError naming two of some dense tensors that share memory, which one launch would write twice."""
    spans = sorted((str(x.device), x.data_ptr(), x.nbytes, i) for i, x in enumerate(tensors) if x.numel())
    for (device, place, size, i), (other, start, _, k) in pairwise(spans):
        if device == other and start < place + size:
            first, second = labels[min(i, k)], labels[max(i, k)]
            raise ValueError(f"{second}: expected memory of its own, got some of {first.partition(': ')[2]}")


def has_memory(param: Any) -> bool:
    """Whether it has elements to update: a lazy parameter has none yet, one on the meta device has never any."""
    return not torch.nn.parameter.is_lazy(param) and param.device.type != "meta"


def refusal(param: Tensor) -> str:
    """Why a parameter cannot be updated by kernels, as what was expected and what came; empty if it can."""
    if torch.nn.parameter.is_lazy(param):
        return ""
    if because := sharded.refusal(param):
        return because
    param = sharded.local(param)
    if hasattr(param, "__tensor_flatten__"):  # what is made of several tensors
        return f"expected a tensor with memory of its own, got a {type(param).__name__}"
    if param.layout is not torch.strided:
        return f"expected a dense tensor, got one of layout {param.layout}"
    if param.dtype not in FLOATS:
        return f"expected one of {', '.join(SIZES)}, got {str(param.dtype).removeprefix('torch.')}"
    if param.device.type not in ("cuda", "cpu", "meta"):
        return f"expected a tensor on a GPU or the CPU, got one on {param.device}"
    if layout(param) is None:
        return f"expected elements side by side, got shape {tuple(param.shape)} with strides {param.stride()}"
    return ""
