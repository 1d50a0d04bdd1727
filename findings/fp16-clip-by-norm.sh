#!/usr/bin/env bash
# torch 2.13.0, Keras 3.15.1 on it: clipping four finite float16 gradients to a norm of 1 gives zeros or NaN.
#
# Four gradients of 30,000 have a norm of 60,000, which float16 can hold; four of 40,000 have one of 80,000, which it
# cannot. In torch, that norm is inf and every gradient becomes 0, so the step does nothing except for momentum and
# weight decay. Keras squares in float16: its norm is inf in both cases, and the parameters become NaN.
#
# Expected: gradients of 0.5, which both give in float32. Neither documents the dtype of the norm; torch's
# error_if_nonfinite is about a norm that is nan or inf, and the norm of these numbers is not.
#
#> torch, 30000: [0.5, 0.5, 0.5, 0.5]
#> torch, 40000: [0.0, 0.0, 0.0, 0.0]
#> Keras, 30000: [nan, nan, nan, nan]
#> Keras, 40000: [nan, nan, nan, nan]
#> Keras, 40000, float32: [-0.5, -0.5, -0.5, -0.5]
. "$(dirname "$0")/common.sh"
export KERAS_BACKEND=torch
finding torch==2.13.0 keras==3.15.1 numpy==2.4.6 <<'PY'
import keras
import torch

for value in (30_000.0, 40_000.0):
    p = torch.nn.Parameter(torch.zeros(4, dtype=torch.float16))
    p.grad = torch.full((4,), value, dtype=torch.float16)
    torch.nn.utils.clip_grad_norm_([p], 1.0)
    print(f"torch, {value:.0f}:", [round(x, 3) for x in p.grad.tolist()])
for value, dtype in (30_000.0, "float16"), (40_000.0, "float16"), (40_000.0, "float32"):
    v = keras.Variable([0.0] * 4, dtype=dtype)
    gradient = keras.ops.convert_to_tensor([value] * 4, dtype=dtype)
    keras.optimizers.SGD(1.0, global_clipnorm=1.0).apply([gradient], [v])
    what = "" if dtype == "float16" else f", {dtype}"
    print(f"Keras, {value:.0f}{what}:", [round(x, 3) for x in v.value.tolist()])
PY
