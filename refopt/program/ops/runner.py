"""An op bound to its arrays."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from typing import Any


class Runner:
    """An op bound to its arrays.

    Attributes:
        run: runs it.
        numbers: names of the numbers that steps may change.
        provided: whether the caller provides what it writes, in each step.
    """

    numbers: frozenset[str] = frozenset()
    provided = False

    def __init__(self, run: Callable[[], Any]) -> None:
        self.run = run

    def check(self, name: str, value: Any) -> None:
        """Raise if a number cannot take a value."""

    def set(self, numbers: Mapping[str, Any]) -> None:
        """Change numbers that have been checked."""

    def check_gradients(self) -> None:
        """Raise if the gradients that the caller provides cannot be written."""


def each(calls: Sequence[Callable[[], Any]]) -> Callable[[], None]:
    """A function that makes calls, one after the other."""

    def run() -> None:
        for call in calls:
            call()

    return run


class Runners(tuple[Runner, ...]):
    """Ops of a step, bound to their arrays."""

    def run(self) -> None:
        """Run them, one after the other."""
        for runner in self:
            runner.run()

    def check_gradients(self) -> None:
        """Raise if the gradients that the caller provides cannot be written."""
        for runner in self:
            if runner.provided:
                runner.check_gradients()

    def check_numbers(self, numbers: Mapping[str, Any]) -> None:
        """Raise if a number of a step is unknown or has an invalid value; the error names the number."""
        if not numbers:
            return
        known = {name for runner in self for name in runner.numbers}
        for name, value in numbers.items():
            if name not in known:
                raise TypeError(f"step: {name}: expected one of {', '.join(sorted(known)) or 'none'}, got a number")
            for runner in self:
                if name in runner.numbers:
                    runner.check(name, value)

    def set(self, numbers: Mapping[str, Any]) -> dict[str, Any]:
        """Change numbers that have been checked, in the runners that have them; return copies, as lists may change."""
        held = copy.deepcopy(dict(numbers))
        for runner in self if held else ():
            runner.set({name: value for name, value in held.items() if name in runner.numbers})
        return held


