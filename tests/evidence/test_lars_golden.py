"""Results recorded from PaddlePaddle 3.3.1: somebody else's formulae, not ours.

Here those of its LARS operator, which adapts by decay and norms.
"""

import json
from pathlib import Path

import numpy as np
import pytest
from mutants.lars import MUTANTS

from evidence.cells import cell_of
from refopt.catalog import LARS_MOMENTUM
from refopt.oracle.exact.cases import Case
from refopt.oracle.exact.laws import reference
from refopt.oracle.exact.placed import kernels

RECORDED = np.load(Path(__file__).parents[1] / "golden" / "lars_momentum.npz")
CASES = json.loads(str(RECORDED["meta"]))["cases"]
ULPS = 16
NUMBERS = ("mu", "lars_coeff", "lars_weight_decay", "epsilon", "rescale_grad")


def arrays(case, direction, slot):
    return [RECORDED[f"{case}/{direction}/{slot}/{i}"].copy() for i in range(CASES[case]["tensors"])]


def recorded(case):
    p, g, v = (arrays(case, "in", slot) for slot in ("param", "grad", "velocity"))
    step = {name: CASES[case][name] for name in NUMBERS} | {"lr": [float(x[0]) for x in arrays(case, "in", "lr")]}
    slots = {"params": p, "grads": g, "velocities": v}
    return Case(LARS_MOMENTUM, slots, [step], {"adapt": "decay_and_norms"})


def of_a_cell(k):
    """A case with the marker of the cell that it belongs to."""
    case = recorded(k)
    (cell,) = cell_of(LARS_MOMENTUM, "fp32", case.choices, case.steps[0])
    return pytest.param(k, marks=pytest.mark.evidence(*cell, by="paddle"), id="-".join([*cell, str(k)]))


every_case = pytest.mark.parametrize("case", [of_a_cell(k) for k in range(len(CASES))])


def assert_near(case, got):
    """Within `ULPS` of the larger of an element's old and new value and a twentieth of its tensor's maximum."""
    for name, slot in (("param", "params"), ("velocity", "velocities")):
        columns = zip(arrays(case, "in", name), arrays(case, "out", name), got[slot], strict=True)
        for i, (old, new, mine) in enumerate(columns):
            size = np.maximum(np.maximum(abs(old), abs(new)), abs(new).max() / 20)
            ulps = abs(mine.astype(np.float64) - new) / np.spacing(size)
            assert ulps.max() <= ULPS, f"{slot}[{i}]: {ulps.max()} ulp"


@every_case
def test_reference(case):
    """The reference computes what Paddle does."""
    assert_near(case, reference(recorded(case)))


@pytest.mark.parametrize("form", LARS_MOMENTUM.forms)
@every_case
def test_kernel(machine, form, case):
    """Every form of the kernels computes what Paddle does."""
    assert_near(case, kernels(form, machine)(recorded(case)))


def test_the_cases_are_many_and_varied():
    """1 to 205 tensors; with and without weight decay, epsilon and rescaling."""
    assert len(CASES) == 8 and {1, 205} <= {case["tensors"] for case in CASES}


FORMULAE = [
    "EpsilonInVelocity", "DecayElementwiseInDenominator", "RescaleForgottenInNorm", "RescaleForgottenInUpdate",
    "FirstLearningRate", "FirstWeightDecay", "MomentumOfEverything", "LearningRateAgain",
]


@pytest.mark.parametrize("name", FORMULAE)
def test_another_formula_is_seen(name):
    """The recorded inputs and the tolerance tell wrong formulae from the right one."""
    with pytest.raises(AssertionError):
        for case in range(len(CASES)):
            assert_near(case, MUTANTS[name](recorded(case)))
