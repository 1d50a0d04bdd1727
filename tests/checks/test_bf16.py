"""A seed that is none, and a remainder beside a parameter that has none, are refused; nothing is modified."""

import numpy as np
import pytest

from checks.refused import call
from refopt import cpu
from refopt.catalog import LARS_MOMENTUM, ROUTINES
from refopt.oracle.exact.build import make, step_of
from refopt.oracle.exact.cases import assert_same

pytest.importorskip("ml_dtypes")


@pytest.mark.parametrize(("change", "error", "text"), [
    (dict(seed=-1), ValueError, "seed: expected a whole number at least 0 and below 16777216, got -1"),
    (dict(seed=2**24), ValueError, "seed: expected a whole number"),
    (dict(seed=0.5), ValueError, "seed: expected a whole number"),
    (dict(rounding="up"), ValueError, "rounding: expected one of nearest, stochastic, got 'up'"),
    (dict(remainder="float32"), TypeError, r"master_params\[0\]: expected no master for a float32 parameter"),
    (dict(remainder="float16"), TypeError, r"master_params\[0\]: expected float32, got uint16"),
])
def test_bad_arguments(change, error, text):
    """A seed that is none, and a remainder of a parameter that has none; nothing is modified."""
    change = dict(change)
    dtype = change.pop("remainder", "bfloat16")
    case = make(ROUTINES["sgd"], [3], (dtype, "float32", "float32"))
    before = [x.copy() for x in case.params]
    masters = [np.zeros(3, np.uint16)] if dtype != "bfloat16" else None
    with pytest.raises(error, match=text):
        cpu.merged_sgd(case.params, case.grads, lr=0.1, master_params=masters, **change)
    assert all((x == y).all() for x, y in zip(before, case.params, strict=True))


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_refused_beside_other_parameters(dtype):
    """A remainder belongs to bf16; nothing is modified."""
    case = make(LARS_MOMENTUM, [3, 3], (dtype,) * 3).replace(master_params=[None, np.zeros(3, np.uint16)])
    before = case.copy()
    expected = {"float32": "no master for a float32 parameter", "float16": "float32"}[dtype]
    message = rf"^merged_lars_momentum: master_params\[1\]: expected {expected}, got uint16$"
    with pytest.raises(TypeError, match=message):
        call(cpu, LARS_MOMENTUM, case.slots, step_of(LARS_MOMENTUM))
    assert_same(before.outcome(), case.outcome(), "nothing modified")
