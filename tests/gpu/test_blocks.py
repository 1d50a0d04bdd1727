"""Blocks of as many threads as a GPU gets: what a thread leaves out or does twice depends on how many there are (N6).

Elsewhere the executor makes every block one warp, which is faster.
"""

import numpy as np
import pytest

from refopt import cpu, gpu
from refopt.cpu.reduce import TILE
from refopt.gpu.runtime import Executor
from refopt.gpu.tiles import ROW

SIZES = [1, ROW - 1, ROW, 2 * ROW, 2 * ROW + 5, 3 * ROW + 1, TILE, 2 * TILE + 3]


def blocks_as_asked(monkeypatch):
    """Let the executor have blocks as asked; the list says how large those were that have been prepared."""
    blocks = []

    def prepare(self, kernel, grid, block, args, mode=""):
        blocks.append(block)
        return lambda stream: kernel.executor[grid, block, stream](*args)

    monkeypatch.setattr(Executor, "prepare", prepare)
    return blocks


asked = pytest.fixture(blocks_as_asked)


def test_a_gradient_check(asked):
    grads = [np.random.default_rng(n).normal(size=n).astype(np.float32) for n in SIZES]
    with gpu.use("executor") as machine:
        check = gpu.gradient_check([machine.to_device(g) for g in grads])
        check()
    for name, value in cpu.check_gradients(grads)._asdict().items():
        assert getattr(check, name).copy_to_host().tobytes() == value.tobytes(), name
    assert max(asked) > 32


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "int8"])
def test_copies_and_casts(asked, dtype):
    """Of words of every size, from and to a buffer."""
    values = [np.random.default_rng(n).integers(-99, 99, n).astype(dtype) for n in SIZES]
    with gpu.use("executor") as machine:
        here = gpu.coalesce_tensor([machine.to_device(x) for x in values], copy_data=True)
        for x, view in zip(values, here.views, strict=True):
            assert view.copy_to_host().tobytes() == x.tobytes()
        if dtype != "int8":
            targets = [machine.empty(x.shape, np.float32) for x in values]
            gpu.merged_cast([machine.to_device(x) for x in values], targets)
            for x, y in zip(values, targets, strict=True):
                assert y.copy_to_host().tobytes() == x.astype(np.float32).tobytes()
    assert max(asked) > 32
