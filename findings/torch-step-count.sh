#!/usr/bin/env bash
# PyTorch 2.13.0, CPU: the step count of fp64 parameters is an fp32 tensor, which stops at 16,777,216.
#
# Adagrad with lr_decay divides the learning rate by 1 + lr_decay * (step - 1). Its count of steps is fp32, whatever
# the parameters are: one step after another leaves it at 2^24, so the learning rate decays no further. The count is
# fp64 only if the default dtype was fp64 when the optimizer was made. Adam's corrections are over by then.
#
# Expected: a count that goes on, or one in the precision of the parameters.
#
#> default dtype float32: torch.float32 16777215 16777216 16777216 16777216
#> default dtype float64: torch.float64 16777215 16777216 16777217 16777218
. "$(dirname "$0")/common.sh"
finding torch==2.13.0 numpy==2.4.6 <<'PY'
import torch

for default in (torch.float32, torch.float64):
    torch.set_default_dtype(default)
    param = torch.nn.Parameter(torch.ones(1, dtype=torch.float64))
    optimizer = torch.optim.Adagrad([param], lr=0.1, lr_decay=0.01)
    param.grad = torch.ones_like(param)
    count = optimizer.state[param]["step"]
    count.fill_(2**24 - 1)
    counts = [int(count)]
    for _ in range(3):
        optimizer.step()
        counts.append(int(optimizer.state[param]["step"]))
    print(f"default dtype {str(default).partition('.')[2]}:", count.dtype, *counts)
PY
