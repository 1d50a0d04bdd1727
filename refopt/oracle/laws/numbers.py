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
    yield Try("lr for each, one of them empty", partial(varied, trial, "lr", (*SIZES[:2], 0, *SIZES[2:])), held)
    if trial.takes("lr"):
        yield Try("lr for each, untouched", partial(varied, trial, "lr"), untouched)
    if getattr(trial.subject, "is_function", False):
        yield Try("numbers of numpy.float64", partial(of_numpy, trial), partial(held_unless_promoted, trial))
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


def of_numpy(trial: Trial) -> Case:
    """Numbers as NumPy's functions return them; they are Python floats in other cases."""
    case = trial.case(SIZES, count=2)
    return case.replace(steps=[{name: np.float64(x) if type(x) is float else x for name, x in case.steps[0].items()}])


def held_unless_promoted(trial: Trial, case: Case) -> None:
    """A step whose results become fp64 with such numbers is told so: its caller can pass Python floats."""
    try:
        trial.hold(case)
    except Misconduct as error:
        if "got one of float64" not in str(error):
            raise
        text = "numbers of np.float64 promote results to float64: pass float(lr)"
        raise Skipped(text, lacks=True) from None


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
