"""Trials in which other code's optimizers take the steps, each held to the formula of `evidence.formulas`.

A peer keeps its own parameters, states and count of steps through all steps of a trial; what it has stored by one step
is where the formula of the next begins. Its numbers may change from tensor to tensor and from step to step as refopt's
do in the law of N13, so each tensor has an optimizer of its own. They are rounded to fp32, which some peers need,
unless a row fixes them.

The bound is that of the formula with two roundings for each of its operations (`refopt.oracle.bound`), and with sums in
any order. Peers evaluate the same formula in other forms. Each peer's file says in which, and that it has no more
roundings than that, at no larger sizes.
"""

import functools
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol

import numpy as np
import pytest
from evidence.cells import Cell
from evidence.trial import Trial, flat

from refopt import oracle
from refopt.oracle.bound import sums
from refopt.oracle.bound.bounded import Arithmetic
from refopt.oracle.exact.cases import Case, Outcome

check = functools.partial(oracle.check, process=False)  # a process of its own takes longer than most laws
PRECISIONS = "fp32", "fp64"
SCALE = 1 + 2.0**-8  # enough to be outside of each bound


def right(*given: Any, **named: Any) -> oracle.Report:
    """The report of a check that finds nothing wrong."""
    report = check(*given, **named)
    report.raise_if_failed()
    return report


class Optimizer(Protocol):
    """A peer's optimizer over one tensor."""

    def step(self, g: np.ndarray, numbers: dict[str, float]) -> dict[str, np.ndarray]:
        """Take a step; returns the parameter and the states afterwards, by refopt's names."""


class Row(NamedTuple):
    """A routine and a variant of it, the peer's name for it, its switches, and the numbers that are always the same."""

    routine: str
    variant: str
    peer: str
    switches: Mapping[str, Any] = MappingProxyType({})
    fixed: Mapping[str, float] = MappingProxyType({})

    def __str__(self) -> str:
        return f"{self.routine}-{self.variant}"


class PeerTrial(Trial):
    """The steps of a cell, taken by a peer. ``make`` returns an `Optimizer` of a row over a parameter.

    The number that is named in ``wrong`` is given to the peer larger than the formula has it.
    """

    def __init__(self, row: Row, precision: str, make: Callable[..., Optimizer], wrong: str = "") -> None:
        super().__init__(Cell(row.routine, row.variant, precision))
        self.arithmetic = Arithmetic(self.real, depth=sums.any_order)
        self.row, self.make, self.wrong = row, make, wrong
        self.optimizers: list[Optimizer] = []
        self.compared: list[set[str]] = []
        self.moved = False

    def numbers(self, t: int) -> dict[str, Any]:
        rounded = {name: np.float64(np.float32(x)) for name, x in super().numbers(t).items()}
        return rounded | dict(self.row.fixed)

    def given(self, numbers: dict[str, Any], i: int) -> dict[str, float]:
        """The numbers of a tensor, as refopt rounds them (N2)."""
        values = {name: float(self.real(x)) for name, x in of_tensor(numbers, i).items()}
        return {name: x * SCALE if name == self.wrong else x for name, x in values.items()}

    def run(self, case: Case) -> Outcome:
        """One step of all tensors. What a peer does not have, such as powers, stays as it is."""
        numbers = [self.given(case.steps[0], i) for i in range(len(case))]
        if not self.optimizers:
            self.optimizers = [self.make(self.row, p.copy(), n) for p, n in zip(case.params, numbers, strict=True)]
        after = {name: list(arrays) for name, arrays in case.outcome().items()}
        self.compared = []
        for i, optimizer in enumerate(self.optimizers):
            stored = optimizer.step(case.grads[i].astype(self.real), numbers[i])
            assert {"params", *(name for name in self.routine.states if self.has(name, i))} <= set(stored)
            self.moved |= bool((flat(stored["params"]) != flat(case.params[i])).any())
            self.compared.append(set(stored))
            for name, x in stored.items():
                after[name][i] = np.array(x).reshape(after[name][i].shape)
                assert after[name][i].dtype == self.real, name
        return after

    def hold_peer(self) -> None:
        """Hold the parameter and every state to the formula, after every step."""
        for k, known in enumerate(self.steps(self.run)):
            expected = self.outcome(known)
            for name in self.compared[k % len(self.compared)]:
                self.compare(known, name, expected[name])
        assert self.moved


def of_tensor(numbers: dict[str, Any], i: int) -> dict[str, Any]:
    return {name: np.ravel(x)[i if np.size(x) > 1 else 0] for name, x in numbers.items()}


def both_tests_of(rows: list[Row]) -> tuple[Callable[..., None], Callable[..., None]]:
    """Tests of a peer that a fixture ``make`` makes, by row and in both precisions, with the markers of their cells."""
    params = [pytest.param(row, real, marks=pytest.mark.evidence(row.routine, row.variant, real), id=f"{row}-{real}")
              for row in rows for real in PRECISIONS]

    @pytest.mark.parametrize(("row", "precision"), params)
    def within_the_bound(make: Callable[..., Optimizer], row: Row, precision: str) -> None:
        PeerTrial(row, precision, make).hold_peer()

    @pytest.mark.parametrize("row", rows, ids=str)
    def other_numbers_are_outside(make: Callable[..., Optimizer], row: Row) -> None:
        """Each number that a peer takes matters: with another one it is outside the bound."""
        numbers = of_tensor(PeerTrial(row, "fp32", make).numbers(1), 0)
        for name in (name for name, x in numbers.items() if x and name not in row.fixed):
            with pytest.raises(AssertionError, match=r"expected .* to .*, got"):
                PeerTrial(row, "fp32", make, wrong=name).hold_peer()
                pytest.fail(f"{name} does not show")

    return within_the_bound, other_numbers_are_outside
