#!/usr/bin/env bash
# bitsandbytes 0.50.2 on a CPU: Lion8bit moves parameters whose gradient is always 0 by the full learning rate.
#
# The quantizer of the CPU stores a 0 beside other numbers as a small number that is not 0. Lion steps by the sign of
# its momentum, so such a parameter moves by lr in every step after the first, as far as one that has gradients.
# AdamW8bit drifts, too, but slowly. Rows of an embedding that do not occur in the data are such parameters. The lines
# below are the largest movement after 50 steps.
#
# Expected: 0, as in Lion32bit, since the sign of a zero momentum is 0. The overview of the documentation says that
# 8-bit optimizers save memory without degradation.
#
#> Lion32bit: 0.0 lr
#> Lion8bit: 49.0 lr
#> AdamW32bit: 0.0 lr
#> AdamW8bit: 0.1 lr
. "$(dirname "$0")/common.sh"
finding torch==2.13.0 bitsandbytes==0.50.2 numpy==2.4.6 <<'PY'
import bitsandbytes as bnb
import torch

for name in ("Lion32bit", "Lion8bit", "AdamW32bit", "AdamW8bit"):
    torch.manual_seed(0)
    p = torch.nn.Parameter(torch.zeros(4096))
    optimizer = getattr(bnb.optim, name)([p], lr=1e-3, weight_decay=0)
    for _ in range(50):
        p.grad = torch.randn(4096)
        p.grad[::2] = 0
        optimizer.step()
    print(f"{name}: {p.detach()[::2].abs().max().item() / 1e-3:.1f} lr")
PY
