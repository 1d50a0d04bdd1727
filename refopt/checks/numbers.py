"""Hyperparameters: numbers that an arithmetic type has, one or one per tensor, and named choices."""

import math
import operator
from collections.abc import Sequence
from numbers import Integral, Real
from typing import Any

import numpy as np

from refopt.catalog import Hyper, Routine


def check_hypers(routine: Routine, hypers: dict[str, Any], count: int, reals: set[type]) -> dict[str, Any]:
    """Every number of the routine as a float or a list of floats, every choice as given or by default."""
    name = routine.merged_name
    known = [hyper.name for hyper in routine.hypers] + list(routine.choices)
    for unknown in set(hypers) - set(known):
        raise TypeError(f"{name}: {unknown}: expected one of {', '.join(known)}")
    regular: dict[str, Any] = {
        hyper.name: check_hyper(routine, hyper, hypers.get(hyper.name, hyper.default), count, reals)
        for hyper in routine.hypers
    }
    for choice, values in routine.choices.items():
        value = hypers.get(choice, values[0])
        if value not in values:
            raise ValueError(f"{name}: {choice}: expected one of {', '.join(map(str, values))}, got {value!r}")
        regular[choice] = value
    return regular


def check_hyper(
    routine: Routine, hyper: Hyper, value: Any, count: int, reals: set[type]
) -> float | list[float]:
    """One number as a float, or as a list with one for each of ``count`` tensors."""
    if type(value) is (int if hyper.whole else float) and 1e-37 < value < 1e38 and value < hyper.below / 2:
        return float(value)  # the ordinary case, in the time of a step: normal in every type, not rounded to the bound
    where = f"{routine.merged_name}: {hyper.name}"
    if value is None:
        raise TypeError(f"{where}: expected a number, got None")
    if isinstance(value, np.ndarray):
        value = value.tolist()
    if not isinstance(value, Sequence) or isinstance(value, str):
        return _number(where, hyper, value, reals)
    if not hyper.per_tensor:
        raise TypeError(f"{where}: expected one number for all tensors, got {len(value)} values")
    if len(value) != count:
        raise ValueError(f"{where}: expected one number or one per tensor, {count}, got {len(value)}")
    return [_number(f"{where}[{i}]", hyper, entry, reals) for i, entry in enumerate(value)]


def _number(where: str, hyper: Hyper, value: Any, reals: set[type]) -> float:
    if not isinstance(value, Real | np.floating | np.integer) or isinstance(value, bool):
        raise TypeError(f"{where}: expected a number, got {value!r}")
    bound = "above 0" if hyper.positive else "at least 0"
    if hyper.below < math.inf:
        bound += f" and below {hyper.below:.10g}"
    number = to_float(where, value)
    for real in reals:
        with np.errstate(over="ignore"):
            rounded = real(value)
        least = rounded > 0 if hyper.positive else rounded >= 0
        if not (np.isfinite(rounded) and least and rounded < hyper.below) or (hyper.whole and value % 1):
            kind = "whole number" if hyper.whole else f"finite {np.dtype(real).name}"
            raise ValueError(f"{where}: expected a {kind} {bound}, got {value!r}")
    return number + 0.0  # -0 is taken for 0


def to_float(where: str, value: Any) -> float:
    """A number as a float; raises if it is an integer or a fraction beyond the range of one."""
    try:
        return float(value)
    except OverflowError:
        raise ValueError(f"{where}: expected a number in the range of float64, got one beyond it") from None


def is_number(value: Any) -> bool:
    """Whether it is a real number of any type, and no truth value."""
    return isinstance(value, Real) and not isinstance(value, bool)


def is_whole(value: Any) -> bool:
    """Whether it is an integer of any type, and no truth value."""
    return isinstance(value, Integral) and not isinstance(value, bool)


def whole(where: str, value: Any) -> int:
    """An integer of any type as an int; raises if it is none, or a truth value."""
    try:
        found = operator.index(value)
    except TypeError:
        found = None
    if found is None or isinstance(value, bool):
        raise TypeError(f"{where}: expected an integer, got {value!r}")
    return found
