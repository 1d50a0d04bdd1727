#!/usr/bin/env bash
# torchao 0.18.0, AdamWFp8 and AdamW8bit: a parameter whose gradient ends moves by hundreds, where AdamW moves by
# 0.006.
#
# Every other element has a gradient of 0.001 in the first step and 0 afterwards, beside elements of N(0, 1) with
# which it shares the scales of both moments. Its second moment, a millionth of theirs, rounds to 0 and its first does
# not, so that the step is the first moment divided by epsilon. It runs without torch.compile, which would need a C++
# compiler.
#
# Expected: Adam's step cannot exceed about 7.3 lr with the default betas (the first moment is bounded by the root of
# the second, by Cauchy-Schwarz), which here means 0.6 after 80 steps. AdamW4bit keeps that bound, since its second
# moment has no code for 0.
#
#> AdamW: moved by less than 1
#> AdamW4bit: moved by less than 1
#> AdamW8bit: moved by more than 100
#> AdamWFp8: moved by more than 100
. "$(dirname "$0")/common.sh"
finding torch==2.13.0 torchao==0.18.0 numpy==2.4.6 <<'PY'
import torch
from torchao.optim import AdamW4bit, AdamW8bit, AdamWFp8

torch.compiler.set_stance("force_eager")
for make in (torch.optim.AdamW, AdamW4bit, AdamW8bit, AdamWFp8):
    torch.manual_seed(0)
    p = torch.nn.Parameter(torch.zeros(4096))
    optimizer = make([p], lr=1e-3, weight_decay=0)
    for step in range(80):
        p.grad = torch.randn(4096)
        p.grad[::2] = 0 if step else 1e-3
        optimizer.step()
    moved = p.detach()[::2].abs().max().item()
    print(f"{make.__name__}: moved by", "more than 100" if moved > 100 else "less than 1" if moved < 1 else moved)
PY
