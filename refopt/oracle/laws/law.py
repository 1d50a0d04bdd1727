"""What a law is: an id, a name, a line on what it says, and the cases that show whether it holds."""

from collections.abc import Callable, Iterable
from functools import partial
from typing import NamedTuple

from refopt.oracle.cases import Case
from refopt.oracle.trial import Trial


class Try(NamedTuple):
    """A case of a law: its name, how it is made, and what raises `trial.Broken` where the law does not hold."""

    label: str
    case: Callable[[], Case]
    holds: Callable[[Case], object]


class Law(NamedTuple):
    """A law. ``tries`` gives its cases for a subject in a dtype; ``asked`` says that it is left out by default."""

    id: str
    name: str
    about: str
    tries: Callable[[Trial], Iterable[Try]]
    asked: bool = False


def of_bound(trial: Trial, label: str, *args: object, **named: object) -> Try:
    """A try that the outcome of a case is within the bound."""
    return Try(label, partial(trial.case, *args, **named), trial.hold)  # type: ignore[arg-type]

