#!/usr/bin/env bash
# torch 2.13.0, torch.optim.Muon: with bfloat16 parameters and nesterov=False, the step normalizes the momentum
# itself.
#
# The orthogonalization divides its input by its norm in place. For float32, that input is a bfloat16 copy. For
# bfloat16 without Nesterov, it is the momentum buffer, which then has a norm of 1 whatever the gradients were. So
# beside large gradients, the past is forgotten at once, and small gradients hardly change it.
#
# Expected: buffer = momentum * buffer + (1 - momentum) * gradient, up to rounding, as the same class computes in
# float32.
#
#> float32, nesterov=True: momentum / expected = 1.00
#> float32, nesterov=False: momentum / expected = 1.00
#> bfloat16, nesterov=True: momentum / expected = 1.00
#> bfloat16, nesterov=False: momentum / expected = 0.01
. "$(dirname "$0")/common.sh"
finding torch==2.13.0 numpy==2.4.6 <<'PY'
import torch

for dtype in (torch.float32, torch.bfloat16):
    for nesterov in (True, False):
        p = torch.nn.Parameter(torch.zeros(8, 8, dtype=dtype))
        gradient = 1000 * torch.eye(8)[torch.arange(8) - 1]
        p.grad = gradient.to(dtype)
        optimizer = torch.optim.Muon([p], lr=0.1, momentum=0.96875, nesterov=nesterov)
        optimizer.step()
        ratio = optimizer.state[p]["momentum_buffer"].float().norm() / (gradient * (1 - 0.96875)).norm()
        print(f"{str(dtype)[6:]}, nesterov={nesterov}: momentum / expected = {ratio:.2f}")
PY
