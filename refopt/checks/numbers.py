"""Checks of hyperparameters: numbers in an arithmetic type, one for all or one per tensor, and named choices."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from refopt.checks.arguments import chosen, is_number, listed, rounded, shown, to_float
from refopt.checks.rows import Hyper, Routine


def check_hypers(routine: Routine, hypers: dict[str, Any], count: int, reals: set[type]) -> dict[str, Any]:
    """Each number of the routine as a float or a list of floats, and each choice, given or by default."""
    name = routine.merged_name
    known = [hyper.name for hyper in routine.hypers] + list(routine.choices)
    for unknown in set(hypers) - set(known):
        raise TypeError(f"{name}: {unknown}: expected one of {', '.join(known)}")
    regular: dict[str, Any] = {
        hyper.name: check_hyper(routine, hyper, hypers.get(hyper.name, hyper.default), count, reals)
        for hyper in routine.hypers
    }
    for choice, values in routine.choices.items():
        regular[choice] = chosen(f"{name}: {choice}", hypers.get(choice, values[0]), values)
    return regular


def check_hyper(routine: Routine, hyper: Hyper, value: Any, count: int, reals: set[type]) -> float | list[float]:
    """A number as a float, or as a list with one for each of ``count`` tensors."""
    if type(value) is (int if hyper.whole else float) and 1e-37 < value < 1e38 and value < hyper.below / 2:
        return float(value)  # the fast path for each step: normal in every type, not rounded to the bound
    where = f"{routine.merged_name}: {hyper.name}"
    if type(value) is np.ndarray and value.ndim:
        value = value.tolist() if value.dtype.kind in "iuf" else list(value)
    if not isinstance(value, Sequence) or isinstance(value, str):
        return _number(where, hyper, value, reals)
    values = listed(where, value, "numbers")
    if not hyper.per_tensor:
        raise TypeError(f"{where}: expected one number for all tensors, got {len(values)} values")
    if len(values) != count:
        raise ValueError(f"{where}: expected one number or one per tensor, {count}, got {len(values)}")
    if (ordinary := _ordinary(hyper, values)) is not None:
        return ordinary
    return [_number(f"{where}[{i}]", hyper, entry, reals) for i, entry in enumerate(values)]


def _ordinary(hyper: Hyper, values: list) -> list[float] | None:
    """The numbers, if all are floats in the range of the fast path for one, or allowed zeros; else None."""
    if set(map(type, values)) != {float} or hyper.whole:
        return None
    numbers = np.array(values) + 0.0  # turns -0 into 0
    fine = (numbers > 1e-37) & (numbers < min(1e38, hyper.below / 2))
    if not hyper.positive:
        fine |= numbers == 0
    return numbers.tolist() if fine.all() else None


def _number(where: str, hyper: Hyper, value: Any, reals: set[type]) -> float:
    if not is_number(value):
        raise TypeError(f"{where}: expected a number, got {shown(value)}")
    bound = "above 0" if hyper.positive else "at least 0"
    if hyper.below < math.inf:
        bound += f" and below {hyper.below:.10g}"
    number = to_float(where, value)
    for real in reals:
        stored = rounded(number, real)
        least = stored > 0 if hyper.positive else stored >= 0
        if not (np.isfinite(stored) and least and stored < hyper.below) or (hyper.whole and number % 1):
            kind = "whole number" if hyper.whole else f"finite {np.dtype(real).name}"
            raise ValueError(f"{where}: expected a {kind} {bound}, got {shown(value)}")
    return number + 0.0  # turns -0 into 0
