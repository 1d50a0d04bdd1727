"""A law: an id, a name, a one-line statement, and the cases that show whether it holds."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

from refopt.oracle.exact.cases import Case, Outcome
from refopt.oracle.running import Data, skipping
from refopt.oracle.trial import Trial


class Try(NamedTuple):
    """A case of a law: its name, a function that makes it, and one that raises `broken.Broken` if the law is broken.

    Instead of a case it may make the data of runs, whose states the optimizer makes itself, or ``holds`` makes them.
    """

    label: str
    case: Callable[[], Case | Data] | None
    holds: Callable[..., object]


class Law(NamedTuple):
    """A law.

    Attributes:
        tries: makes its cases for a subject in a dtype.
        runs: whether some cases are runs, which need no formula.
        asked: whether it is left out by default.
        declared: the property that an optimizer must declare; "" for none.
        secret: whether cases depend on the secret of a check.
    """

    id: str
    name: str
    about: str
    tries: Callable[[Trial], Iterable[Try]]
    runs: bool = False
    asked: bool = False
    declared: str = ""
    secret: bool = False


def of_bound(trial: Trial, label: str, *args: object, **named: object) -> Try:
    """A try that checks the outcome of a case against the bound."""
    return Try(label, partial(trial.case, *args, **named), trial.hold)  # type: ignore[arg-type]


def of_runs(label: str, holds: Callable[[], object]) -> Try:
    """A try of runs, whose data ``holds`` makes itself."""
    return Try(label, None, holds)


def of_either(trial: Trial, label: str, sizes: Sequence[Any], holds: Callable[..., object]) -> Iterator[Try]:
    """Tries of a step from given states, if there is a formula, and of a run; ``holds`` takes the case or the data."""
    if trial.row is not None:
        yield Try(f"{label}, one step", partial(trial.case, sizes, count=2), holds)
    yield Try(label, partial(trial.data, sizes), holds)


def both(
    of_cases: Callable[[Trial], Iterable[Try]], *of_runs: Callable[[Trial], Iterable[Try]]
) -> Callable[[Trial], Iterator[Try]]:
    """The tries of a law: cases, if there is a formula, and runs."""

    def tries(trial: Trial) -> Iterator[Try]:
        for of in (of_cases, *of_runs) if trial.row is not None else of_runs:
            yield from of(trial)

    return tries


def taken(trial: Trial, of: Case | Data, what: str) -> Outcome:
    """Results, unless the step raises an error; then it does not take something that its signature cannot tell."""
    with skipping(f"takes no {what}"):
        return trial.run(of)
