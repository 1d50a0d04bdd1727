#!/usr/bin/env bash
# PaddlePaddle 3.3.1, CPU: Adam corrects a sparse gradient's first step by beta squared, and a dense one's by beta.
#
# The first step of Adam moves an element by the learning rate, whatever its gradient is. With a sparse gradient it
# moves by 0.744 of that: the powers of beta are multiplied before the correction uses them. Both choices of lazy_mode
# do so. The same embedding with sparse=False moves by the learning rate.
#
# Expected: rows that have a gradient take the same first step, however the gradient is stored.
#
#> sparse=False: 0.1000
#> sparse=True, lazy_mode=False: 0.0744
#> sparse=True, lazy_mode=True: 0.0744
. "$(dirname "$0")/common.sh"
finding paddlepaddle==3.3.1 numpy==2.4.6 <<'PY'
import numpy as np
import paddle

for sparse, lazy in ((False, False), (True, False), (True, True)):
    table = paddle.nn.Embedding(4, 3, sparse=sparse)
    before = table.weight.numpy().copy()
    optimizer = paddle.optimizer.Adam(0.1, parameters=[table.weight], lazy_mode=lazy)
    table(paddle.to_tensor([1])).sum().backward()
    optimizer.step()
    moved = np.abs(table.weight.numpy() - before)[1].max()
    print(f"sparse={sparse}{f', lazy_mode={lazy}' if sparse else ''}: {moved:.4f}")
PY
