"""L17 and L18: a bit that is another in one call of many, or in one tensor of several, breaks the case that has it."""

import collections

import numpy as np
import pytest

from refopt import cpu, oracle


def one_unit_up(x):
    x.reshape(-1)[-1] = np.nextafter(x.reshape(-1)[-1], np.float32(9))


@pytest.mark.parametrize(("elements", "call", "label"), [
    (45, 15, "the same steps, five times"), (100_003, 9, "a large tensor"), (45, 20, "two runs that take turns")])
def test_one_call_of_many(elements, call, label):
    """The last of five times three steps, of three times three, and of three that take turns with another run's."""
    calls = collections.Counter()

    def step(params, grads, *, lr):
        calls[params[0].size, len(params) > 2] += 1
        for p, g in zip(params, grads, strict=True):
            p -= lr * np.sign(g)
        if params[0].size == elements and calls[elements, elements == 45] == call:
            one_unit_up(params[-1])

    report = oracle.check(None, step, laws=["L17"], dtypes=["float32"], process=False)
    assert [item.label for item in report.of("failed")] == [label]


@pytest.mark.parametrize("size", [1, 300, 2100])
def test_one_tensor_of_several(size):
    """Of one element, of less than a tile, and of more."""

    def step(params, grads, **numbers):
        cpu.merged_sgd(params, grads, **numbers)
        for p in params:
            if p.size == size:
                one_unit_up(p)

    report = oracle.check("sgd", step, laws=["L18"], exact=True, dtypes=["float32"], diagnose=False, process=False)
    assert {"step 1", "step 2", "step 7"} <= {item.label for item in report.of("failed")}
