"""What a relation is: an id, a name, a line on what it says, and the cases that show whether it holds."""

from collections.abc import Callable, Iterable
from typing import NamedTuple

from refopt.oracle.relations.trial import Trial


class Try(NamedTuple):
    """A case of a relation: its name, and what raises `trial.Broken` where it does not hold."""

    label: str
    holds: Callable[[], object]


class Relation(NamedTuple):
    """A law that needs no formula. ``declared`` is the property of an optimizer that it needs; "" for none."""

    id: str
    name: str
    about: str
    tries: Callable[[Trial], Iterable[Try]]
    declared: str = ""
