"""What a law is: an id, a name, a line on what it says, and the cases that show whether it holds."""

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any, NamedTuple

from refopt.oracle.exact.cases import Case
from refopt.oracle.running import Running
from refopt.oracle.trial import Trial


class Try(NamedTuple):
    """A case of a law: its name, how it is made, and what raises `broken.Broken` where the law does not hold.

    Without ``case`` it is of runs, whose states the optimizer makes itself, and ``holds`` takes nothing.
    """

    label: str
    case: Callable[[], Case] | None
    holds: Callable[..., object]


class Law(NamedTuple):
    """A law.

    Attributes:
        tries: its cases, for a subject in a dtype.
        runs: whether it has cases of runs, which need no formula.
        asked: whether it is left out by default.
        declared: the property of an optimizer that it needs; "" for none.
    """

    id: str
    name: str
    about: str
    tries: Callable[[Any], Iterable[Try]]
    runs: bool = False
    asked: bool = False
    declared: str = ""


def of_bound(trial: Trial, label: str, *args: object, **named: object) -> Try:
    """A try that the outcome of a case is within the bound."""
    return Try(label, partial(trial.case, *args, **named), trial.hold)  # type: ignore[arg-type]


def of_runs(label: str, holds: Callable[[], object]) -> Try:
    """A try of runs."""
    return Try(label, None, holds)


def both(
    of_cases: Callable[[Trial], Iterable[Try]], *of_runs: Callable[[Running], Iterable[Try]]
) -> Callable[[Any], Iterator[Try]]:
    """The tries of a law: of cases, where there is a formula, and of runs."""

    def tries(trial: Any) -> Iterator[Try]:
        if trial.row is not None:
            yield from of_cases(trial)
        for of in of_runs:
            yield from of(trial)

    return tries
