"""Products of many matrices in one launch: the bits of `cpu.matmul`, half of the tiles where they are symmetric."""

import numpy as np
import pytest

from refopt import cpu
from refopt.gpu import cuda, products
from refopt.gpu.matmul import LARGE, SMALL
from refopt.gpu.products import Product, padded, tiles

bfloat16 = pytest.importorskip("ml_dtypes").bfloat16

pytestmark = pytest.mark.clause("N17")


@pytest.mark.parametrize("tiling", [SMALL, pytest.param(LARGE, marks=pytest.mark.slow)])
def test_products_of_all_matrices_are_one_launch(machine, tiling):
    """X X^T or X^T X, by half the tiles; sizes and tiles of all kinds."""
    more = tiling.side + 2
    xs = [np.random.default_rng(k).standard_normal(shape).astype(bfloat16)
          for k, shape in enumerate([(1, 1), (1, 5), (5, 1), (17, 33), (more + 4, more)])]  # fmt: skip
    rows, inputs, outs = [], [], []
    for x in xs:
        small, large = sorted(x.shape)
        whole = np.zeros([padded(size) for size in x.shape], bfloat16)
        whole[: len(x), : x.shape[1]] = x
        inputs.append(machine.to_device(whole.view(np.uint16)))
        outs.append(machine.to_device(np.zeros((padded(small), padded(small)), np.uint16)))
        at = cuda.address(inputs[-1])
        rows.append(Product(at, at, cuda.address(outs[-1]), 0, small, small, large, x.shape[0] > x.shape[1]))
    table, zero = tiles(rows, True, tiling.side), np.float32(0)
    assert len(table) == len(xs) + 2
    tables = machine.to_device(table), machine.to_device(np.array(rows, np.int64))
    products.merged("bfloat16", True, True, False, tiling)[len(table), tiling.threads](*tables, zero, zero)
    machine.synchronize()
    for x, out in zip(xs, outs, strict=True):
        x = x if x.shape[0] <= x.shape[1] else x.T
        got, want = out.copy_to_host(), np.zeros(out.shape, np.uint16)
        want[: len(x), : len(x)] = cpu.matmul(x, x.T).astype(bfloat16).view(np.uint16)
        assert (got == want).all()


def test_symmetric_products_take_half_of_the_tiles():
    """Those on the diagonal and below, the longest sums first."""
    rows = [Product(0, 0, 0, 0, 200, 200, 64), Product(0, 0, 0, 0, 65, 65, 640)]
    assert len(tiles(rows, False, 64)) == 16 + 4
    half = tiles(rows, True, 64)
    assert len(half) == 10 + 3 and (half[:, 1] >= half[:, 2]).all() and (half[:3, 0] == 1).all()
