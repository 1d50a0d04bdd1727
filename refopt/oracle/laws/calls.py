"""Calls: numbers for each tensor, tensors without a gradient, several steps, the same call again."""

from collections.abc import Iterator
from functools import partial

from refopt.oracle.cases import Case
from refopt.oracle.exact.cases import Outcome
from refopt.oracle.exact.laws import reference
from refopt.oracle.laws.law import Law, Try
from refopt.oracle.trial import Broken, Skipped, Trial

SIZES = 300, 45, 7, 20
STEPS = 3


def numbers(trial: Trial) -> Iterator[Try]:
    for hyper in trial.row.hypers:
        if hyper.per_tensor and hyper.name != "seed" and trial.takes(hyper.name) and hyper.name not in trial.fixed:
            make = partial(varied, trial, hyper.name)
            yield Try(f"{hyper.name} for each tensor", make, partial(held_if_taken, trial, what="numbers in lists"))


def varied(trial: Trial, name: str) -> Case:
    case = trial.case(SIZES, count=2)
    values = [case.steps[0][name] * (1 + i / 4) for i in range(len(SIZES))]
    return case.replace(steps=[case.steps[0] | {name: values}])


def held_if_taken(trial: Trial, case: Case, what: str) -> None:
    trial.hold(case, run_if_taken(trial, case, what))


def run_if_taken(trial: Trial, case: Case, what: str) -> Outcome:
    """A step that raises something does not take it, for nothing in its signature says so."""
    try:
        return trial.run(case)
    except Broken as error:
        raise Skipped(f"takes no {what}") from error


def without_gradient(trial: Trial) -> Iterator[Try]:
    def make() -> Case:
        case = trial.case(SIZES, count=2)
        return case.replace(grads=[None, case.grads[1], None, case.grads[3]])

    yield Try("two of four", make, partial(held_if_taken, trial, what="gradients of None"))


def going_on(trial: Trial) -> Iterator[Try]:
    def together(case: Case) -> None:
        """Steps one after the other are the same as each from copies of what the one before has stored."""
        at_once = trial.run(case.replace(steps=case.steps * STEPS))
        once = case
        for k in range(STEPS):
            got = trial.hold(once)
            once = once.replace(**_after(once, got), count=case.count + k + 1)
        trial.same(got, at_once, f"{STEPS} steps one after the other, and each from copies")

    yield Try(f"{STEPS} steps", lambda: trial.case(SIZES), together)


def _after(case: Case, got: Outcome) -> dict[str, list]:
    """The slots after a step; of what is not returned, the reference's."""
    missing = [slot.name for slot in case.routine.slots if slot.written and slot.name not in got]
    ours = reference(case.copy()) if missing else {}
    return got | {name: ours[name] for name in missing if case.slots[name] is not None}


def determinism(trial: Trial) -> Iterator[Try]:
    def twice(case: Case) -> None:
        trial.same(trial.run(case), trial.run(case), "twice the same call")

    yield Try("some tensors", lambda: trial.case(SIZES, count=2), twice)
    yield Try("a large one", lambda: trial.case([100003]), twice)


LAWS = (
    Law("L14", "numbers in lists", "Numbers that may be one for each tensor are, if the step takes lists.", numbers),
    Law("L15", "no gradient", "A tensor without a gradient stays as it is, if the step takes None.", without_gradient),
    Law("L16", "going on", "Steps in a row are the same as from what was stored: save, load and go on.", going_on),
    Law("L17", "determinism", "The same call has the same bits.", determinism),
)
