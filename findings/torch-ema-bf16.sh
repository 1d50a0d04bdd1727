#!/usr/bin/env bash
# torch 2.13.0, AveragedModel with get_ema_multi_avg_fn: an average of bfloat16 weights never moves.
#
# The average has the dtype of the model. With a decay of 0.999, the default, each update adds a thousandth of the
# difference. That is less than half a unit in the last place of bfloat16, so after 5,000 updates with weights of 1.25
# the average is still the first value, 1. In float32 it has arrived.
#
# Expected: an average. The documentation shows the class for any model, and says nothing of a dtype in which it stays
# at the initial weights.
#
#> float32: average 1.248, weights 1.25
#> bfloat16: average 1.000, weights 1.25
. "$(dirname "$0")/common.sh"
finding torch==2.13.0 numpy==2.4.6 <<'PY'
import torch
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

for dtype in (torch.float32, torch.bfloat16):
    model = torch.nn.Linear(2, 2, bias=False).to(dtype)
    torch.nn.init.constant_(model.weight, 1.0)
    average = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.999))
    average.update_parameters(model)
    torch.nn.init.constant_(model.weight, 1.25)
    for _ in range(5000):
        average.update_parameters(model)
    print(f"{str(dtype)[6:]}: average {average.module.weight.mean().item():.3f}, weights {model.weight.mean().item()}")
PY
