"""A law: an id, a name, a one-line statement, and the cases that show whether it holds."""

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any, NamedTuple

from refopt.oracle.exact.cases import Case
from refopt.oracle.running import Running
from refopt.oracle.trial import Trial


class Try(NamedTuple):
    """A case of a law: its name, a function that makes it, and one that raises `broken.Broken` if the law is broken.

    Without ``case`` it consists of runs, whose states the optimizer makes itself, and ``holds`` has no argument.
    """

    label: str
    case: Callable[[], Case] | None
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
    tries: Callable[[Any], Iterable[Try]]
    runs: bool = False
    asked: bool = False
    declared: str = ""
    secret: bool = False


def of_bound(trial: Trial, label: str, *args: object, **named: object) -> Try:
    """A try that checks the outcome of a case against the bound."""
    return Try(label, partial(trial.case, *args, **named), trial.hold)  # type: ignore[arg-type]


def of_runs(label: str, holds: Callable[[], object]) -> Try:
    """A try of runs."""
    return Try(label, None, holds)


def both(
    of_cases: Callable[[Trial], Iterable[Try]], *of_runs: Callable[[Running], Iterable[Try]]
) -> Callable[[Any], Iterator[Try]]:
    """The tries of a law: cases, if there is a formula, and runs."""

    def tries(trial: Any) -> Iterator[Try]:
        if trial.row is not None:
            yield from of_cases(trial)
        for of in of_runs:
            yield from of(trial)

    return tries
