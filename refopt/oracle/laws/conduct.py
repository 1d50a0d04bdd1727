"""Conduct: a step does its own work, has done it when it returns, and changes nothing else."""

from collections.abc import Iterator
from functools import partial

import numpy as np

from refopt.oracle.broken import Misconduct
from refopt.oracle.exact.cases import Case
from refopt.oracle.laws.calls import altered
from refopt.oracle.laws.law import Law, Try
from refopt.oracle.requiring import require_same
from refopt.oracle.trial import Trial

SIZES = 300, 45, 7, 20
LARGE = 2**18 + 1  # elements, which take a while
CHANGES = 3  # the most changes that a message names


def own_work(trial: Trial) -> Iterator[Try]:
    def called(case: Case) -> None:
        """Watch a first call and another one."""
        for _ in range(2):
            seen = trial.observe(case)
            if seen.called:
                got = f"a call of {', of '.join(seen.called)}"
                raise Misconduct(f"{trial.subject.name}: expected its own work, got {got}")

    yield Try("some tensors", lambda: trial.case(SIZES, count=2), called)
    yield Try("the first step", lambda: trial.case(SIZES), called)
    yield Try("a large one", lambda: trial.case([70001], count=3), called)


def done(trial: Trial) -> Iterator[Try]:
    def at_rest(case: Case) -> None:
        seen = trial.observe(case, rest=True)
        if seen.later is not None:
            what = "when the step returned, and when all its work had ended: work left running is not done"
            require_same(seen.got, seen.later, what)

    yield Try("some tensors", lambda: trial.case(SIZES, count=2), at_rest)
    yield Try("a large one", lambda: trial.case([LARGE], count=2), at_rest)


def surroundings(trial: Trial) -> Iterator[Try]:
    def kept(case: Case) -> None:
        trial.run(case)
        changed = trial.observe(case).changed
        if changed:
            more = f" and {len(changed) - CHANGES} more" if len(changed) > CHANGES else ""
            raise Misconduct(f"{trial.subject.name}: {'; '.join(changed[:CHANGES])}{more}")

    yield Try("some tensors", lambda: trial.case(SIZES, count=2), kept)
    yield Try("the first step", lambda: trial.case(SIZES), kept)


def numbers_kept(trial: Trial) -> Iterator[Try]:
    """A try that the step leaves the gate and the factor unchanged."""
    given = {"grad_factor": 0.5625, "found_inf": 0.0}
    taken = {name: np.full(1, x, np.float32) for name, x in given.items() if trial.takes(name)}

    def case() -> Case:
        plain = trial.case(SIZES, count=2)
        return plain.replace(steps=[plain.steps[0] | {name: x.copy() for name, x in taken.items()}])

    if taken:
        yield Try("numbers untouched", case, partial(altered, trial))


LAWS = (
    Law("L19", "own work", "The step does its own work: it calls no reference, inspects no caller, starts no process.",
        own_work),
    Law("L20", "done", "When the step returns, its results are complete, and nothing changes them later.", done),
    Law("L23", "surroundings", "Settings, generators, handlers and other functions are left unchanged.", surroundings),
)
