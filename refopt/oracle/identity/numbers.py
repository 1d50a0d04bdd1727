"""An optimizer's numbers by refopt's names, for each possible routine, and numbers that distinguish routines."""

import math
from collections.abc import Iterator, Mapping
from typing import Any

from refopt.catalog import Routine
from refopt.checks.arguments import is_number
from refopt.oracle.cases import NEUTRAL, NUMBERS
from refopt.oracle.subject import Subject
from refopt.oracle.subjects.torch_peers import ON_REQUEST
from refopt.oracle.variants import ROUTINES

SCHEDULE = "decay_base"  # of NAdam; 0 for no schedule, as in several libraries


def telling(optimizer: Any) -> dict[str, Any]:
    """Values, for options left at their defaults, for which no two formulas agree."""
    if not is_of_library(optimizer):
        return {}
    named: dict[str, Any] = {}
    for peer in optimizer.peers:
        for ours, theirs in peer.numbers.items():
            if ours in NUMBERS and ours not in ON_REQUEST:
                x = float(NUMBERS[ours])
                named.setdefault(theirs, math.log(x) / math.log(0.96) if theirs == "momentum_decay" else x)
    if "beta1" in named:
        named["betas"] = named["beta1"], named["beta2"]
    return {
        name: named[name] for name, default in optimizer.accepts.items()
        if name in named and name not in optimizer.options and _alike(name, default)
    }


def is_of_library(optimizer: Any) -> bool:
    """Whether it is a library's class or function, for which the names of numbers are known."""
    return hasattr(optimizer, "peers")


def _alike(name: str, default: Any) -> bool:
    """Whether a default is a number or a pair of numbers, or ``None`` for a momentum."""
    if name == "betas":
        return isinstance(default, tuple) and len(default) == 2 and all(map(is_number, default))
    return (is_number(default) and not isinstance(default, bool)) or (default is None and name == "momentum")


def numbers_of(row: Routine, optimizer: Subject, names: Mapping[str, str]) -> Iterator[dict[str, Any]]:
    """The numbers of a routine if the optimizer implements it: its own, or neutral values, or the defaults.

    There are several if the rule has a number that the optimizer may lack.
    """
    theirs, fixed = _tables(row, optimizer)
    known: dict[str, Any] = {}
    for hyper in row.hypers:
        value = optimizer.values.get(names.get(hyper.name, theirs.get(hyper.name, hyper.name)))
        if value is None and hyper.name in theirs and theirs[hyper.name] in optimizer.values:
            value = 0.0  # None disables it
        if hyper.name in fixed:
            known[hyper.name] = fixed[hyper.name]
        elif value is not None and _is_scalar(value):
            known[hyper.name] = 0.96 ** float(value) if theirs.get(hyper.name) == "momentum_decay" else float(value)
    default = {hyper.name: NEUTRAL.get(hyper.name, hyper.default) for hyper in row.hypers}
    numbers = {name: known.get(name, x) for name, x in default.items()}
    for hyper in row.hypers:
        x = numbers[hyper.name]
        if x is None or not 0 <= x < hyper.below:  # the name means something else there
            return
    yield numbers
    if SCHEDULE in numbers and SCHEDULE not in known:
        yield numbers | {SCHEDULE: 0.0}


def _is_scalar(value: Any) -> bool:
    return is_number(value) or (hasattr(value, "item") and getattr(value, "ndim", 1) == 0)


def _tables(row: Routine, optimizer: Any) -> tuple[Mapping[str, str], Mapping[str, Any]]:
    """The optimizer's names for a routine's numbers, and numbers that its library fixes."""
    if not is_of_library(optimizer):
        return {}, {}
    numbers, own = optimizer.called(row.name)
    hypers = {hyper.name for hyper in row.hypers}
    return numbers, {name: x for name, x in own.items() if name in hypers}


def rows() -> list[Routine]:
    """Every routine with its variants, those with fewer numbers first."""
    return sorted(ROUTINES.values(), key=lambda row: (len(row.hypers), row.name))
