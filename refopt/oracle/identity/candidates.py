"""Each routine with every choice and the numbers of an optimizer, and its results, step by step."""

import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations, product
from typing import Any, NamedTuple

import numpy as np

from refopt import checks
from refopt.catalog import Routine
from refopt.checks.arguments import is_number
from refopt.cpu.merged import run, tensors
from refopt.oracle import cases
from refopt.oracle.exact.cases import has
from refopt.oracle.subjects.torch_peers import ON_REQUEST

# Choices that do not matter in fp64, or within eight steps, and which of their values are tried.
LEFT_OUT = {"rounding": ["nearest"], "norm_of": ["param"], "compute": ["bfloat16", "float64"]}
SCHEDULE = "decay_base"  # of NAdam; 0 for no schedule, as in several libraries


def telling(optimizer: Any) -> dict[str, Any]:
    """Values, for options left at their defaults, for which no two formulas agree."""
    if not is_of_library(optimizer):
        return {}
    named: dict[str, Any] = {}
    for peer in optimizer.peers:
        for ours, theirs in peer.numbers.items():
            if ours in cases.NUMBERS and ours not in ON_REQUEST:
                x = float(cases.NUMBERS[ours])
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


def numbers_of(row: Routine, optimizer: Any, names: Mapping[str, str]) -> Iterator[dict[str, Any]]:
    """The numbers of a routine if the optimizer implements it: its own, or neutral values, or the defaults.

    There are several if the rule has a number that the optimizer may lack.
    """
    theirs, fixed = optimizer.called(row.name) if is_of_library(optimizer) else ({}, {})
    known: dict[str, Any] = {}
    for hyper in row.hypers:
        value = optimizer.values.get(names.get(hyper.name, theirs.get(hyper.name, hyper.name)))
        if value is None and hyper.name in theirs and theirs[hyper.name] in optimizer.values:
            value = 0.0  # None disables it
        if hyper.name in fixed:
            known[hyper.name] = fixed[hyper.name]
        elif value is not None and _is_scalar(value):
            known[hyper.name] = 0.96 ** float(value) if theirs.get(hyper.name) == "momentum_decay" else float(value)
    default = cases.numbers_of(row, lambda name: False)
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


class Candidate(NamedTuple):
    """A routine with fixed choices.

    Attributes:
        states: its optional states.
        ones: the states that start from 1 instead of 0.
    """

    row: Routine
    numbers: Mapping[str, Any]
    choices: Mapping[str, Any]
    states: tuple[str, ...]
    ones: tuple[str, ...] = ()


def candidates(row: Routine, numbers: Mapping[str, Any], ones: bool) -> Iterator[Candidate]:
    """A routine in every choice, with and without each of its optional states; ``ones``: each starting from 1."""
    tried = {name: LEFT_OUT.get(name, values) for name, values in row.choices.items()}
    if not has("bfloat16"):
        tried = {name: [x for x in values if x != "bfloat16"] for name, values in tried.items()}
    scalars = tuple(slot.name for slot in row.slots if slot.optional and slot.scalar)
    states = cases.optional_states(row)
    for size in range(len(states) + 1):
        for there in combinations(states, size):
            for values in product(*tried.values()):
                plain = Candidate(row, numbers, dict(zip(tried, values, strict=True)), there + scalars)
                if not ones:
                    yield plain
                    continue
                for slot in row.slots[2:-1]:
                    if not slot.scalar and (not slot.optional or slot.name in there):
                        yield plain._replace(ones=(slot.name,))


def off(
    of: Candidate, params: Sequence[np.ndarray], grads: Sequence[Sequence[np.ndarray]],
    came: Sequence[Sequence[np.ndarray]], enough: float,
) -> tuple[int, float]:
    """After how many steps a candidate is off by more than ``enough``, and its error then, or its largest error.

    Args:
        params, grads: the data, fp64.
        came: the parameters after each step.
        enough: the tolerance, relative to the largest change of a tensor since the first step.
    """
    shapes = [x.shape for x in params]
    case = cases.draw(
        of.row, shapes, [cases.alike("float64")] * len(shapes), seed=0, numbers=of.numbers, choices=of.choices,
        optional=of.states,
    ).replace(params=[x.copy() for x in params])
    case = case.replace(**{name: [np.ones_like(x) for x in case.lists()[name]] for name in of.ones})
    call = checks.check(of.row, case.slots, {**of.numbers, **of.choices}, checks.host_array)
    every_tensor = tensors(of.row.rule, call)
    worst = 0.0
    for k, (of_step, expected) in enumerate(zip(grads, came, strict=True)):
        for grad, x in zip(case.grads, of_step, strict=True):
            grad[...] = x
        run(every_tensor)
        with np.errstate(all="ignore"):
            away = [_away(x, y, p) for x, y, p in zip(case.params, expected, params, strict=True)]
        worst = max(worst, *away)
        if worst > enough:
            return k, worst
    return len(grads), worst


def _away(got: np.ndarray, expected: np.ndarray, first: np.ndarray) -> float:
    """How far apart two results are, relative to the largest change."""
    change = float(np.max(np.abs(expected - first)))
    apart = float(np.max(np.abs(got - expected)))
    if not np.isfinite(apart):
        return 0.0 if np.array_equal(got, expected, equal_nan=True) else np.inf
    return apart / change if change else (0.0 if apart == 0 else np.inf)
