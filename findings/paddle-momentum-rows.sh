#!/usr/bin/env bash
# PaddlePaddle 3.3.1, CPU: Momentum leaves out rows of a sparse gradient that are not in ascending order.
#
# A step with gradients of ones for rows 5, 2 and 6 of an embedding should move three rows. Row 5 keeps its value, and
# its velocity stays 0. The same rows in ascending order are right, and SGD and Adagrad are right in any order.
# Embedding(sparse=True) gives the rows in the order in which the batch names them.
#
# Expected: the step of the dense gradient, in which row 5 moves by the learning rate as well.
#
#> Momentum, rows 2 5 6: moved [2, 5, 6]
#> Momentum, rows 5 2 6: moved [2, 6]
#> SGD, rows 5 2 6: moved [2, 5, 6]
#> Adagrad, rows 5 2 6: moved [2, 5, 6]
. "$(dirname "$0")/common.sh"
finding paddlepaddle==3.3.1 numpy==2.4.6 <<'PY'
import numpy as np
import paddle

for name, rows in (("Momentum", [2, 5, 6]), ("Momentum", [5, 2, 6]), ("SGD", [5, 2, 6]), ("Adagrad", [5, 2, 6])):
    table = paddle.nn.Embedding(8, 3, sparse=True)
    before = table.weight.numpy().copy()
    optimizer = getattr(paddle.optimizer, name)(0.5, parameters=[table.weight])
    table(paddle.to_tensor(rows)).sum().backward()
    optimizer.step()
    moved = np.flatnonzero((table.weight.numpy() != before).any(axis=1)).tolist()
    print(f"{name}, rows {' '.join(map(str, rows))}: moved {moved}")
PY
