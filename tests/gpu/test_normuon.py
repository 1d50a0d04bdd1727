"""Merged NorMuon: the bits of `cpu.merged_normuon`, on the executor and on a GPU."""

import numpy as np
import pytest

from gpu.test_muon import compare, goes_on, lists, with_rows

pytest.importorskip("ml_dtypes")
pytestmark = pytest.mark.clause("N20", "N6")
SHAPES = {"executor": [(1, 1), (1, 9), (9, 1), (17, 33), (33, 17), (24, 16), (2, 3100), (1030, 1)],
          "gpu": [(1, 1), (1, 300), (300, 1), (17, 33), (33, 17), (64, 64), (512, 512), (99, 9000), (3000, 40)]}


@pytest.mark.parametrize("compute", ["bfloat16", "float16", "float32", "float64"])
def test_the_bits_are_those_of_the_reference(machine, compute):
    """Rows of a part of a tile, of one and of several, few of them and many; in two steps."""
    host = lists(SHAPES[machine.name], "float64" if compute == "float64" else "float32")
    step = compare(machine, host, 2, routine="normuon", compute=compute, iterations=1)
    assert step.launches == 5 + 3


@pytest.mark.parametrize("named", [
    {"beta2": 0.0}, {"beta2": [0.5, 0.9], "row_epsilon": [0.25, 0.0], "lr": [0.1, 0.2]},
    {"use_nesterov": False, "average": False}, {"adjust_lr": "match_rms_adamw", "weight_decay": 0.0}], ids=str)
def test_every_option(machine, named):
    compare(machine, lists([(3, 5), (16, 8)]), 2, routine="normuon", **{"iterations": 1} | named)


@pytest.mark.parametrize("row_epsilon", [0.0, 1e-8])
def test_rows_that_are_zero_or_not_finite(machine, row_epsilon):
    """Single rows and all; squares that underflow; NaN and inf stay in their matrix."""
    host = lists([(4, 8)] * 6)
    for g, v, value in zip(*host[1:], (0, 1e-30, np.nan, np.inf, -0.0, 1), strict=True):
        v *= 0
        g[1] *= value
    host[1][4][:] = 0
    host = with_rows(host)
    for w in host[3]:
        w[1:3] = 0
    with np.errstate(all="ignore"):
        compare(machine, host, 2, routine="normuon", iterations=1, row_epsilon=row_epsilon)


def test_a_state_goes_on_in_another_plan(machine):
    goes_on(machine, "normuon", with_rows(lists([(6, 8), (3, 4)])), iterations=2)
