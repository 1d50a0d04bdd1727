"""AdamW in Triton: the step that is checked. With TRITON_INTERPRET=1 it runs without a GPU."""

import torch
import triton
import triton.language as tl

BLOCK = 1024


@triton.jit
def kernel(params, grads, moments, squares, n, lr, beta1, beta2, epsilon, decay, bias1, bias2, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    there = i < n
    p = tl.load(params + i, there).to(tl.float32)
    g = tl.load(grads + i, there).to(tl.float32)
    m = tl.load(moments + i, there).to(tl.float32)
    v = tl.load(squares + i, there).to(tl.float32)
    m += (1 - beta1) * (g - m)
    v += (1 - beta2) * (g * g - v)
    p -= lr * (decay * p + (m / bias1) / (tl.sqrt(v / bias2) + epsilon))
    tl.store(params + i, p, there)
    tl.store(moments + i, m, there)
    tl.store(squares + i, v, there)


def adamw(params, grads, moment1, moment2, *, lr, beta1, beta2, epsilon, coeff, step):
    """One step of lists of tensors, in place."""
    for p, g, m, v in zip(params, grads, moment1, moment2, strict=True):
        if p.dtype == torch.float64:
            raise NotImplementedError("fp64: the arithmetic is fp32")
        if not all(x.is_contiguous() for x in (p, g, m, v)):
            raise NotImplementedError("tensors are contiguous")
        n = p.numel()
        kernel[triton.cdiv(n, BLOCK),](
            p, g, m, v, n, lr, beta1, beta2, epsilon, coeff,
            1 - beta1**step, 1 - beta2**step, BLOCK,
        )
