"""Other orders of blocks and threads: the same bits from a right kernel, other bits from a wrong one."""

import numpy as np

from refopt import simt
from refopt.simt import cuda


@cuda.jit
def ordered_by_luck(x, out):
    cuda.atomic.add(out, 0, x[cuda.grid(1)])


@cuda.jit
def barrier_forgotten(x, out):
    part = cuda.shared.array(128, np.float32)
    t = cuda.threadIdx.x
    part[t] = x[cuda.grid(1)]
    out[cuda.grid(1) // 128] = part[127 - t]


def run(kernel, schedule="forward", seed=0):
    x = np.random.default_rng(1).standard_normal(256, np.float32)
    out = np.zeros(2, np.float32)
    with simt.observe(schedule=schedule, seed=seed):
        kernel[2, 128](x, out)
    return out.tobytes()


def test_wrong_kernels_do():
    for kernel in (ordered_by_luck, barrier_forgotten):
        assert len({run(kernel, "random", seed) for seed in range(5)} | {run(kernel), run(kernel, "reverse")}) > 2


def test_schedules_are_repeatable():
    for schedule in ("forward", "reverse", "random"):
        assert run(ordered_by_luck, schedule, 3) == run(ordered_by_luck, schedule, 3)


def order(schedule, seed=0):
    seen = []

    @cuda.jit
    def kernel():
        cuda.syncthreads()
        note()

    note = simt.ptx_twin()(lambda: seen.append((cuda.blockIdx.x, cuda.threadIdx.x)))

    with simt.observe(schedule=schedule, seed=seed):
        kernel[3, 4]()
    return seen


def test_orders():
    forward = [(block, thread) for block in range(3) for thread in range(4)]
    assert order("forward") == forward and order("reverse") == forward[::-1]
    assert sorted(order("random")) == forward and order("random") not in (forward, forward[::-1])
    assert order("random", 1) != order("random", 2)
    assert len({tuple(dict(order("random", seed))) for seed in range(20)}) == 6  # all orders of three blocks
