"""Results recorded from PaddlePaddle 3.3.1: independent formulas."""

import contextlib
import importlib
import json
from pathlib import Path

import numpy as np
import pytest
from mutants import lars
from mutants.family import mutants

from evidence.cells import cell_of
from refopt import cpu
from refopt.catalog import ROUTINES
from refopt.oracle.exact.cases import Case
from refopt.oracle.exact.laws import reference
from refopt.oracle.exact.placed import kernels

FOLDER = Path(__file__).parents[1] / "golden"
ULPS = 16
# Recorded operator: our routine, and its names for the slots after param and grad.
OPERATORS = {"sgd": ("sgd", {}), "merged_momentum": ("momentum", {"velocity": "velocities"}), "adam": ("adam", {}),
             "merged_adam": ("adam", {}), "adamw": ("adamw", {}), "lamb": ("lamb", {}),
             "lars_momentum": ("lars_momentum", {"velocity": "velocities"})}
SPARSE = {"sparse_sgd": ("sgd", {}), "sparse_adagrad": ("adagrad", {}), "sparse_adam": ("adam", {}),
          "sparse_momentum": ("momentum", {"velocity": "velocities"})}
CHOICES = {"lars_momentum": {"adapt": "decay_and_norms"}}  # what an operator has for itself
RECORDS = {name: np.load(FOLDER / f"{name}.npz") for name in OPERATORS | SPARSE}
EACH = [(name, k) for name, record in RECORDS.items() for k in range(len(json.loads(str(record["meta"]))["cases"]))]
CASES = [(name, k) for name, k in EACH if name in OPERATORS]


def arrays(operator, k, direction):
    """The recorded arrays by slot, and the attributes of the case."""
    record, (routine, names) = RECORDS[operator], (OPERATORS | SPARSE)[operator]
    attributes = json.loads(str(record["meta"]))["cases"][k]
    names = {"param": "params", "grad": "grads"} | names
    slots = sorted({key.split("/")[2] for key in record.files if key.startswith(f"{k}/{direction}/")})
    found = {names.get(slot, slot): [record[f"{k}/{direction}/{slot}/{i}"].copy() for i in range(attributes["tensors"])]
             for slot in slots}
    return ROUTINES[routine], found, attributes


def recorded(operator, k):
    routine, slots, attributes = arrays(operator, k, "in")
    step = {"lr": [float(x[0]) for x in slots.pop("lr")]}
    step |= {hyper.name: attributes[hyper.name] for hyper in routine.hypers if hyper.name in attributes}
    if "l2_decay" in step:
        step["l2_decay"] = step["l2_decay"] or 0.0
    choices = {name: attributes[name] for name in routine.choices if name in attributes} | CHOICES.get(operator, {})
    return Case(routine, slots, [step], choices)


def of_a_cell(operator, k):
    """A case with the marker of the cell that it belongs to; without momentum it shows nothing of that."""
    case = recorded(operator, k)
    cells = [] if case.steps[0].get("mu") == 0 else cell_of(case.routine, "fp32", case.choices, case.steps[0])
    marks = [pytest.mark.evidence(*cell, by="paddle") for cell in cells]
    return pytest.param(operator, k, marks=marks, id="-".join([*sum(cells, ()), operator, str(k)]))


ROWS = [of_a_cell(operator, k) for operator, k in CASES]


def assert_near(operator, k, got):
    """Within `ULPS` of the larger of an element's old and new value and a twentieth of its tensor's maximum."""
    _, before, _ = arrays(operator, k, "in")
    _, after, _ = arrays(operator, k, "out")
    for slot, values in after.items():
        for i, (old, new, mine) in enumerate(zip(before[slot], values, got[slot], strict=True)):
            size = np.maximum(np.maximum(abs(old), abs(new)), abs(new).max() / 20)
            ulps = abs(mine.astype(np.float64) - new) / np.spacing(size)
            assert ulps.max() <= ULPS, f"{slot}[{i}]: {ulps.max()} ulp"


@pytest.mark.parametrize(("operator", "k"), ROWS)
def test_reference(operator, k):
    """The reference computes what Paddle does."""
    assert_near(operator, k, reference(recorded(operator, k)))


@pytest.mark.parametrize(("operator", "k"), [(name, k) for name, k in EACH if name in SPARSE])
def test_sparse_gradients(operator, k):
    """Paddle's Adam takes lazy steps with ``lazy_mode``, by powers that are one step ahead; its Momentum takes steps of
    all rows. SGD and Adagrad leave other rows as they are in any case.
    """
    for lazy in (True, False):
        routine, slots, attributes = arrays(operator, k, "in")
        rows, values, lr = slots.pop("rows"), slots.pop("grads"), [float(x[0]) for x in slots.pop("lr")]
        named = {name: attributes[name] for name in ("beta1", "beta2", "epsilon", "mu", "use_nesterov")
                 if name in attributes}
        if routine.name == "adam":
            slots |= {name: arrays(operator, k, "out")[1][name] for name in ("beta1_pow", "beta2_pow")}
        states = [slots[slot.name] for slot in routine.slots[2:] if not slot.optional]
        if lazy:
            cpu.merged_lazy(routine.name, slots["params"], rows, values, *states, lr=lr, **named)
        else:
            dense = [np.zeros_like(x) for x in slots["params"]]
            for grad, at, each in zip(dense, rows, values, strict=True):
                np.add.at(grad, at, each)
            getattr(cpu, routine.merged_name)(slots["params"], dense, *states, lr=lr, **named)
        same = routine.name in ("sgd", "adagrad") or lazy == (routine.name == "adam")
        slots |= {name: x for name, x in arrays(operator, k, "out")[1].items() if name.endswith("_pow")}
        with contextlib.nullcontext() if same else pytest.raises(AssertionError):
            assert_near(operator, k, slots)


OF_FORMS = [pytest.param(*row.values, form, id=f"{row.id}-{form}", marks=[*row.marks, *[pytest.mark.slow] * (k > 0)])
            for row, (operator, k) in zip(ROWS, CASES, strict=True) for form in ROUTINES[OPERATORS[operator][0]].forms]


@pytest.mark.parametrize(("operator", "k", "form"), OF_FORMS)
def test_kernel(machine, operator, k, form):
    """Every form of the kernels computes what Paddle does."""
    assert_near(operator, k, kernels(form, machine)(recorded(operator, k)))


FORMULAE = {"merged_momentum": ["LearningRateInVelocity", "FirstLearningRate", "DecayDecoupled"],
            "merged_adam": ["FirstLearningRate"], "sgd": ["TailDropped"],
            "adamw": ["DecayInGradient", "RatioOnEverything"],
            "adam": ["FirstScalars", "NoBiasCorrection", "EpsilonUncorrected", "PowersBeforeUse"],
            "lamb": ["RatioByNormsAlone", "RatioForgotten", "DecayAfterTheNorm", "Uncorrected"],
            "lars_momentum": ["EpsilonInVelocity", "DecayElementwiseInDenominator", "RescaleForgottenInNorm",
                              "RescaleForgottenInUpdate", "FirstLearningRate", "FirstWeightDecay",
                              "MomentumOfEverything", "LearningRateAgain"]}


@pytest.mark.parametrize(("operator", "name"), [(operator, name) for operator, of in FORMULAE.items() for name in of])
def test_another_formula_is_seen(operator, name):
    """The recorded inputs and the tolerance tell wrong formulae from the right one."""
    wrong = (lars.MUTANTS if operator == "lars_momentum" else mutants(ROUTINES[OPERATORS[operator][0]]))[name]
    with pytest.raises(AssertionError):
        for other, k in CASES:
            if other == operator:
                assert_near(operator, k, wrong(recorded(operator, k)))


def test_the_reference_is_the_module_of_its_name():
    for routine in ROUTINES.values():
        assert importlib.import_module(f"refopt.cpu.{routine.name}").rule is routine.rule
