"""Evidence of the variants' rules: PyTorch's optimizers are within the bound of each, and not of its neighbours."""

import numpy as np
import pytest

from peers.trials import check
from refopt.oracle.bound import sums
from refopt.oracle.subjects import subject_of
from refopt.oracle.trial import Trial
from refopt.oracle.variants import ROUTINES

torch = pytest.importorskip("torch")

DECAY, DECOUPLED = {"weight_decay": 0.125}, {"weight_decay": 0.125, "decoupled_weight_decay": True}
UP = {"maximize": True}
NO_DECAY, L2, APART, DOWN = {"weight_decay": 0.0}, {"decay": "l2"}, {"decay": "decoupled"}, {"maximize": False}
# A routine, PyTorch's class and its options, and choices or numbers of which the rule is another one.
ROWS = [("sgd", "SGD", UP, [DOWN]),
        ("momentum", "SGD", {"dampening": 0.5}, [{"dampening": 0.0}, {"dampening": 0.25}, {"mu": 0.0}]),
        ("momentum", "SGD", UP | DECAY, [DOWN]),
        ("momentum", "SGD", UP | {"nesterov": True}, [DOWN, {"use_nesterov": False}]),
        ("adam", "Adam", DECAY, [NO_DECAY, APART]), ("adam", "Adam", DECOUPLED, [NO_DECAY, L2]),
        ("adam", "Adam", DECAY | UP | {"amsgrad": True}, [APART, DOWN]), ("adamw", "AdamW", UP, [DOWN]),
        ("adagrad", "Adagrad", DECAY, [NO_DECAY, APART, {"epsilon_at": "inside"}]),
        ("adagrad", "Adagrad", {"lr_decay": 0.125}, [{"lr_decay": 0.0}, {"lr_decay": 0.25}]),
        ("adagrad", "Adagrad", {"initial_accumulator_value": 0.5}, [{"epsilon_at": "inside"}]),
        ("rmsprop", "RMSprop", DECAY | UP, [NO_DECAY, APART, DOWN]),
        ("rmsprop", "RMSprop", DECAY | {"centered": True}, [NO_DECAY, APART]),
        ("adadelta", "Adadelta", DECAY | UP, [NO_DECAY, APART, DOWN]),
        ("adamax", "Adamax", {}, [{"epsilon_at": "norm"}]),
        ("adamax", "Adamax", DECAY | UP, [NO_DECAY, APART, DOWN, {"epsilon_at": "norm"}]),
        ("nadam", "NAdam", DECAY | UP, [NO_DECAY, APART, DOWN]), ("nadam", "NAdam", DECOUPLED, [NO_DECAY, L2]),
        ("radam", "RAdam", DECAY | UP, [NO_DECAY, APART, DOWN]), ("radam", "RAdam", DECOUPLED, [NO_DECAY, L2])]
ids = [f"{routine}-{'-'.join(options) or 'default'}" for routine, _, options, _ in ROWS]


@pytest.mark.parametrize(("routine", "name", "options", "others"), ROWS, ids=ids)
def test_neighbours_do_not(routine, name, options, others):
    """What PyTorch comes to in fp64 is outside the bound of the rule with any one choice or number changed."""
    row = ROUTINES[routine]
    subject = subject_of(row, getattr(torch.optim, name), options=options)
    trial = Trial(row, subject, "float64", 0, subject.fixed)
    case = trial.case([300], count=3)
    got = trial.run(case)["params"][0]
    own = trial.expected(case, 0, sums.random_data)["params"].ratio(got)
    assert np.max(own) <= (1e9 if routine == "nadam" else 1)
    for other in others:
        choices = {name: value for name, value in other.items() if name in row.choices}
        numbers = {name: value for name, value in other.items() if name not in row.choices}
        changed = case.replace(choices=case.choices | choices, steps=[case.steps[0] | numbers])
        assert np.max(trial.expected(changed, 0, sums.random_data)["params"].ratio(got)) > 1e10, other


def test_sums_that_start_above_zero():
    """The first step of Adagrad begins with what the sum starts from; that of another start is outside."""
    given = dict(dtypes=["float64"], laws=["L1"], examples=0, diagnose=False, initial_accumulator_value=0.5)
    check("adagrad", torch.optim.Adagrad, **given).raise_if_failed()
    report = check("adagrad", torch.optim.Adagrad, set={"initial_accumulator": 0.25}, **given)
    assert "step 1" in {item.label for item in report.of("failed")}
