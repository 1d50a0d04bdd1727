"""That any other tree than N6's is seen, by the triplets of the laws."""

import importlib

import numpy as np
import pytest
from evidence.other_sums import OTHERS, by_tile, halves, in_order
from evidence.triplets import triplets
from laws.test_n06_reduction import DTYPES, NORMS, norm_of_reference, wrong, wrong_of_check
from laws.test_n07_global_norm import between_tensors, wrong_of_tensors

from refopt import cpu
from refopt.oracle.exact.laws import reference


@pytest.mark.parametrize("name", OTHERS)
def test_another_order_is_seen(monkeypatch, name):
    """By the gradient check, and by each routine of the triplets that the check sees it by."""
    size, dtypes = 5000, DTYPES[0]
    for module in ("lars_momentum", "lamb", "novograd", "gradient_check"):
        monkeypatch.setattr(importlib.import_module(f"refopt.cpu.{module}"), "sum_of_squares", OTHERS[name])
    some = [(size, triplet) for triplet in triplets(size, name)]
    seen = [one for one in some if wrong_of_check(dtypes[0], [one], norm_of_reference)]
    assert seen
    for norm in NORMS:
        if "master" not in norm.choices.values() and len(norm.steps) == 1:
            assert wrong(norm, dtypes, seen[:10], reference), norm


def test_the_contract_is_not_another_order(monkeypatch):
    """What the others are made of, put together as the contract has it, is right."""
    monkeypatch.setattr(cpu.gradient_check, "sum_of_squares", by_tile())
    assert not wrong_of_check("float32", [(5000, triplet) for triplet in triplets(5000, "")], norm_of_reference)


@pytest.mark.parametrize("other", [in_order, halves, np.sum])
def test_another_order_of_tensors_is_seen(monkeypatch, other):
    monkeypatch.setattr(cpu.gradient_check, "tree_sum", other)
    assert wrong_of_tensors(33, between_tensors(33, "", 200), norm_of_reference)
