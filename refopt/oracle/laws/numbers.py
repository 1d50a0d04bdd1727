"""Numbers of a step, given for each tensor; and numbers that are arrays or lists, which a step only reads."""

from collections.abc import Iterator, Sequence
from functools import partial

import numpy as np

from refopt.oracle.broken import Misconduct, Skipped
from refopt.oracle.exact.cases import Case
from refopt.oracle.laws.law import Law, Try, taken
from refopt.oracle.trial import Trial

SIZES = 300, 45, 7, 20
MANY = 111
LISTS = "numbers in lists"


def in_lists(trial: Trial) -> Iterator[Try]:
    def held(case: Case) -> None:
        trial.hold(case, taken(trial, case, LISTS))

    def untouched(case: Case) -> None:
        taken(trial, case, LISTS)
        unaltered(trial, case)

    for hyper in trial.row.hypers:
        if hyper.per_tensor and hyper.name != "seed" and trial.takes(hyper.name):
            yield Try(f"{hyper.name} for each tensor", partial(varied, trial, hyper.name), held)
    if trial.takes("lr"):
        yield Try("lr for each, untouched", partial(varied, trial, "lr"), untouched)
    yield Try(f"lr for each of {MANY}", partial(varied, trial, "lr", [3 + i % 5 for i in range(MANY)]), held)


def varied(trial: Trial, name: str, sizes: Sequence[int] = SIZES, count: int = 2) -> Case:
    """A case with another value of a number for each tensor."""
    if name in trial.fixed:
        raise Skipped(f"{name} is fixed at {trial.fixed[name]:g}", lacks=True)
    trial.need(name)
    case = trial.case(sizes, count=count)
    hyper = next(hyper for hyper in trial.row.hypers if hyper.name == name)
    factors = [1 + i % 32 / 4 for i in range(len(sizes))]
    if hyper.below > 1 and any(slot.initial == name for slot in trial.row.slots):  # powers of more than 1 would grow
        factors = [1 / factor for factor in factors]
    values = [hyper.times(case.steps[0][name], factor) for factor in factors]
    return case.replace(steps=[case.steps[0] | {name: values}])


def unaltered(trial: Trial, case: Case) -> None:
    """A step does not write numbers that are arrays or lists."""
    for name in trial.observe(case).altered:
        raise Misconduct(f"{name}: expected unchanged, since a step only reads it, got another value in it")


def kept(trial: Trial) -> Iterator[Try]:
    """A try that the step leaves the gate and the factor unchanged."""
    given = {"grad_factor": 0.5625, "found_inf": 0.0}
    arrays = {name: np.full(1, x, np.float32) for name, x in given.items() if trial.takes(name)}

    def case() -> Case:
        plain = trial.case(SIZES, count=2)
        return plain.replace(steps=[plain.steps[0] | {name: x.copy() for name, x in arrays.items()}])

    if arrays:
        yield Try("numbers untouched", case, partial(unaltered, trial))


LAWS = (Law("L14", "numbers in lists", "Numbers may be given per tensor, if the step takes lists.", in_lists),)
