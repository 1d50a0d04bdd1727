"""Branches that rounding could decide either way: both are taken, and their results united (numerics, N13)."""

from collections.abc import Callable
from contextvars import ContextVar
from typing import Any

import numpy as np

MOST = 64  # paths through one rule


class Undecided(ArithmeticError):
    """A branch that rounding could decide, where the caller does not follow both paths."""


class Condition:
    """A comparison of bounded numbers, by element: whether it holds for the values, and for certain despite rounding.

    ``bool`` decides a single one; ``np.where`` takes arrays.
    """

    def __init__(self, holds: Any, certain: Any, arithmetic: Any) -> None:
        self.holds, self.certain, self.arithmetic = holds, certain, arithmetic
        self._decision: bool | None = None

    def __bool__(self) -> bool:
        if np.size(self.holds) != 1:
            raise TypeError("a condition of arrays has no truth value: np.where chooses by element")
        holds = bool(np.all(self.holds))
        if np.all(self.certain):
            return holds
        if self._decision is None:
            self._decision = _decide(holds)
        return self._decision

    def __invert__(self) -> "Condition":
        return Condition(np.logical_not(self.holds), self.certain, self.arithmetic)

    def __and__(self, other: "Condition") -> "Condition":
        both = np.logical_and(self.holds, other.holds)
        no = (self.certain & np.logical_not(self.holds)) | (other.certain & np.logical_not(other.holds))
        return Condition(both, (self.certain & other.certain) | no, self.arithmetic)

    def __or__(self, other: "Condition") -> "Condition":
        return ~(~self & ~other)

    def __array_function__(self, function: Any, types: Any, arguments: Any, named: Any) -> Any:
        choose = function is np.where and not named
        return self.arithmetic.where(*arguments) if choose else NotImplemented


_WALK: ContextVar[Any] = ContextVar("walk", default=None)


class _Walk:
    def __init__(self, turns: list[bool]) -> None:
        self.turns, self.at = turns, 0


def _decide(holds: bool) -> bool:
    walk = _WALK.get()
    if walk is None:
        raise Undecided("a branch that rounding could decide")
    if walk.at == len(walk.turns):
        walk.turns.append(False)
    walk.at += 1
    return holds ^ walk.turns[walk.at - 1]


def every_way(function: Callable[[], Any]) -> list[Any]:
    """A function's results on every path through its undecided branches; first on the path of the values."""
    results: list[Any] = []
    turns: list[bool] = []
    while True:
        token = _WALK.set(_Walk(turns))
        try:
            results.append(function())
        finally:
            _WALK.reset(token)
        while turns and turns[-1]:
            turns.pop()
        if not turns:
            return results
        if len(results) == MOST:
            raise Undecided(f"more than {MOST} ways through branches that rounding could decide")
        turns[-1] = True
