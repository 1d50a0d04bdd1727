"""The same laws as tests of pytest: an item for each law in each dtype, or one for a report."""

from pathlib import Path

import torch
from torch_adamw import AdamW

from refopt import oracle

HERE = Path(__file__).parent
PINNED = {"seed": 1, "secret": 1}


@oracle.parametrize(
    "adamw", AdamW, dtypes=["float32", "float64"],
    expected_failures=HERE / "torch_adamw.txt", **PINNED,
)
def test_a_class_of_ones_own(check):
    check()


def test_fused():
    laws = ["L1", "L2", "L4"]
    report = oracle.check("adamw", torch.optim.AdamW, fused=True, laws=laws, **PINNED)
    report.raise_if_failed()


def test_fused_without_a_formula():
    expected = HERE / "torch_fused.txt"
    laws, fp32 = ["L2", "L4", "L16"], ["float32"]
    report = oracle.check(
        None, torch.optim.AdamW, fused=True, dtypes=fp32, laws=laws, expected_failures=expected
    )
    report.raise_if_failed()
