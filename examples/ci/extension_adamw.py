"""AdamW as an extension of PyTorch's in C++ and CUDA: the step that is checked."""

from pathlib import Path

import torch
from torch.utils import cpp_extension

HERE = Path(__file__).parent
SOURCES = ["adamw.cpp", "adamw.cu"] if torch.cuda.is_available() else ["adamw.cpp"]
cpp_extension.load("ci_adamw", [str(HERE / name) for name in SOURCES], is_python_module=False)


def adamw(params, grads, moment1, moment2, *, lr, beta1, beta2, epsilon, coeff, step, found_inf=None):
    """One step of lists of tensors, in place."""
    tensors = params, grads, moment1, moment2
    for p, *others in zip(*tensors, strict=True):
        if any(x.dtype != p.dtype for x in others):
            raise NotImplementedError("gradients and states are of the parameter's dtype")
        if not all(x.is_contiguous() for x in (p, *others)):
            raise NotImplementedError("tensors are contiguous")
    if params:
        torch.ops.ci_adamw.step(
            *tensors, found_inf, lr, beta1, beta2, epsilon, coeff, 1 - beta1**step, 1 - beta2**step
        )
