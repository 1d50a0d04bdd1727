"""`refopt.oracle.check` of every class: what ``refopt check refopt.torch:AdamW --as adamw`` runs is clean.

The laws of long lists and large tensors, and other dtypes than fp32, take minutes on the executor: they are slow tests.
"""

from functools import partial

import pytest
from peers.trials import check, right

from pytorch.bound import NAMES
from pytorch.subjects import class_of
from refopt import oracle

LARGE = "L3", "L5"  # many tensors, and up to 2**20 + 3 elements
REPEATED = "L14", "L16", "L17"  # several plans each, of what other tests have as well
USE = "L24"  # thousands of calls
CONDUCT = "L19", "L20", "L21", "L22", "L23"  # of the step around a formula, which is one for all classes
CLASSES = [("sgd", "SGD"), ("momentum", "SGD"), *((routine, name) for name, routine in NAMES.items())]
FIRST = "momentum", "adamw", "novograd"  # of one state, of two, and with norms: others go the same ways
every_routine = pytest.mark.parametrize(("routine", "name"), CLASSES, ids=[routine for routine, _ in CLASSES])


def laws(*without):
    return [law.id for law in oracle.LAWS.values() if not law.asked and not law.declared and law.id not in without]


@pytest.mark.parametrize(("routine", "name"), [
    pytest.param(*of, marks=[pytest.mark.slow] * (of[0] not in FIRST), id=of[0]) for of in CLASSES])
def test_the_laws(routine, name):
    report = right(routine, class_of(name), dtypes=["float32"], laws=laws(*LARGE, *REPEATED, USE, *CONDUCT),
                   examples=0, diagnose=False)
    assert {item.law for item in report.of("passed")} >= {"L1", "L2", "L4", "L6", "L7", "L8", "L9", "L15"}


@pytest.mark.parametrize(("routine", "name", "which"), [
    ("momentum", "SGD", CONDUCT), pytest.param("momentum", "SGD", [USE], marks=pytest.mark.slow),
    pytest.param("novograd", "NovoGrad", [USE, *CONDUCT], marks=pytest.mark.slow)])
def test_conduct_and_use(routine, name, which):
    """Of a kernel of elements, and of one with sums."""
    report = right(routine, class_of(name), dtypes=["float32"], laws=("L1", *which), examples=0, diagnose=False)
    assert {item.law for item in report.of("passed")} >= {*which}


@pytest.mark.slow
@every_routine
@pytest.mark.parametrize("dtype", oracle.DTYPES)
def test_every_law(routine, name, dtype):
    check(routine, class_of(name), dtypes=[dtype], diagnose=False).raise_if_failed()


@pytest.mark.parametrize(("routine", "name", "options"), [
    ("adam", "Adam", {"amsgrad": True, "maximize": True}), ("adam", "Adam", {"decoupled_weight_decay": True}),
    ("rmsprop", "RMSprop", {"centered": True, "maximize": True}),
    ("momentum", "SGD", {"nesterov": True, "maximize": True}),
    ("momentum", "SGD", {"dampening": 0.25}), ("nadam", "NAdam", {"decoupled_weight_decay": True}),
    ("radam", "RAdam", {"decoupled_weight_decay": True, "maximize": True}),
    ("adagrad", "Adagrad", {"initial_accumulator_value": 0.25, "lr_decay": 0.125})])
def test_the_step_with_options(routine, name, options):
    """Those that change the formula."""
    report = right(routine, class_of(name), dtypes=["float32"], laws=["L1"], examples=0, diagnose=False, **options)
    assert len(report.of("passed")) >= 10


@pytest.mark.parametrize("options", [*({"masters": kind} for kind in ("fp32", "remainder", "remainder8")),
                                     {"masters": "remainder8", "states": "8bit"}], ids=str)
def test_masters_and_few_bits(options):
    """Masters are cases' own; what `check` has an argument for is bound."""
    more = {"states": "8bit", "laws": ["L1", "L2", "L30"]} if "states" in options else {"laws": ["L1", "L7", "L16"]}
    report = right("adamw", partial(class_of("AdamW"), **options), dtypes=["bfloat16"], examples=0, **more)
    assert len(report.of("passed")) >= 15 and ("laws that ran: L1, L2, L30" in str(report)) == ("states" in options)


def test_no_states_in_8_bits():
    report = check("adamw", class_of("AdamW"), states="8bit", dtypes=["float16"], laws=["L1", "L31"])
    assert not report.ok and not report.wrong and "add --with states=8bit" in str(report), str(report)


class Late(class_of("AdamW")):  # type: ignore[misc]
    """Takes the rate of the step before."""

    def step(self, closure=None):
        rates = [group["lr"] for group in self.param_groups]
        for group in self.param_groups:
            group["lr"] = group.get("last", group["lr"] * 1.01)
        loss = super().step(closure)
        for group, rate in zip(self.param_groups, rates, strict=True):
            group["lr"] = group["last"] = rate
        return loss


def test_a_wrong_subclass_is_found():
    report = check("adamw", Late, dtypes=["float32"], laws=["L1"], examples=0, diagnose=False)
    assert report.failed_laws == ["L1"]
