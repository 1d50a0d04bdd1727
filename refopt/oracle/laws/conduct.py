"""Conduct: a step does its own work, has done it when it returns, and changes nothing else."""

from collections.abc import Iterator

from refopt.oracle.broken import Misconduct
from refopt.oracle.exact.cases import Case
from refopt.oracle.laws.law import Law, Try
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
            what = "the result when the step returned, also when all its work had ended: work left running is not done"
            trial.same(seen.got, seen.later, what)

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


LAWS = (
    Law("L19", "own work", "The step does its own work: it calls no reference, inspects no caller, starts no process.",
        own_work),
    Law("L20", "done", "When the step returns, its results are complete, and nothing changes them later.", done),
    Law("L23", "surroundings", "Settings, generators, handlers and other functions are left unchanged.", surroundings),
)
