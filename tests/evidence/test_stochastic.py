"""Stochastic rounding: means over many seeds, which approach the number that is rounded."""

import math

import numpy as np
import pytest

from evidence.cells import STOCHASTIC, cells
from evidence.trial import Trial, flat
from refopt.checks.dtypes import numpy_dtype
from refopt.oracle.bound.storage import from_words, words
from refopt.oracle.exact.cases import Case
from refopt.oracle.exact.laws import reference

SEEDS = range(120)
DELTA = 1e-9  # that chance alone makes one of these tests fail


BY_CHANCE = [cell for cell in cells() if cell.variant == STOCHASTIC and cell.precision == "bf16"]


@pytest.mark.clause("N16")
@pytest.mark.parametrize("cell", [pytest.param(cell, marks=pytest.mark.evidence(*cell), id="-".join(cell))
                                  for cell in BY_CHANCE])
def test_means_over_seeds(cell):
    """Each element becomes one of its neighbours in bf16, and on average over seeds what the formula comes to.

    Of n independent numbers within one unit of each other, the mean is farther than h from what is expected with a
    probability of at most 2 exp(-2 n h**2) (Hoeffding 1963); so it is for one of k such means with k times that.
    """
    trial = Trial(cell)
    slots = {name: x if x is None else [x[0].copy() for _ in SEEDS] for name, x in trial.first().items()}
    numbers = {name: x[0] if isinstance(x, list) else x for name, x in trial.numbers(1).items()}
    slots["grads"] = [trial.gradients(1)[0]] * len(SEEDS)
    case = Case(trial.routine, slots, [numbers | {"seed": list(SEEDS)}], trial.choices)
    after = reference(case)
    lists = {name: x[0] for name, x in case.lists().items()}
    known = trial.known(1, 0, numbers, lists, {name: x[0] for name, x in after.items()})
    for name, bound in trial.outcome(known).items():
        if name in trial.routine.scalars:
            continue
        rounded = np.array([flat(x) for x in after[name]])
        assert rounded.dtype == numpy_dtype("bfloat16")
        below, unit = neighbours(bound.value)
        assert ((rounded == below) | (rounded == below + unit)).all(), name
        h = math.sqrt(math.log(2 * rounded[0].size / DELTA) / (2 * len(SEEDS)))
        off = abs(rounded.astype(np.float64).mean(axis=0) - bound.value)
        assert (off <= h * abs(unit) + bound.error).all(), name
        assert h < 0.4  # what rounding to nearest would come to is farther off


def neighbours(values):
    """Of fp64 values, the number of bf16 that is nearer to 0, and the distance to the next one."""
    pattern = words(values.astype(np.float32))
    below = from_words(pattern & 0xFFFF0000).astype(np.float64)
    return below, from_words((pattern & 0xFFFF0000) + 0x10000).astype(np.float64) - below
