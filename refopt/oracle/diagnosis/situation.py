"""One tensor of a case under a hypothesis: what the rule is, what it is given, and what is stored of its results."""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from refopt.catalog import Routine
from refopt.dtypes import numpy_dtype
from refopt.oracle import cases
from refopt.oracle.bound import sums
from refopt.oracle.bound.bounded import Arithmetic, Bounded, high, size
from refopt.oracle.bound.evaluate import evaluate
from refopt.oracle.bound.expected import Expected, stored
from refopt.oracle.cases import Case, memory

Rule = Callable[..., tuple]
NONE = -1000
DIGITS = {"float16": (11, 2.0**-24), "bfloat16": (8, 2.0**-133), "float32": (24, 2.0**-149)}


class Situation(NamedTuple):
    """What a hypothesis changes.

    Attributes:
        case, tensor: what it is about.
        rule: of the form of those in `refopt.cpu`.
        arrays, numbers, choices: of the tensor, as `bound.evaluate.evaluate` takes them.
        powers: by scalar, the step that it is of, where that is another; ``NONE`` for 0.
        narrow: by slot, a dtype that results pass through on their way to memory.
        kept: written slots that stay as they were.
        real: the arithmetic.
        flushes: whether it may take subnormal numbers for 0.
        of_powers: numbers that powers are of, where they are others.
        rounded: states that are narrow already when the parameter is made of them.
        worked: the dtype that each operation is rounded to, where that is a narrower one.
    """

    case: Case
    tensor: int
    rule: Rule
    arrays: dict[str, Any]
    numbers: dict[str, Any]
    choices: dict[str, Any]
    powers: dict[str, int]
    narrow: Mapping[str, str]
    kept: frozenset[str]
    real: Any
    flushes: bool
    worked: str = ""
    of_powers: Mapping[str, float] = MappingProxyType({})
    rounded: frozenset[str] = frozenset()

    @property
    def row(self) -> Routine:
        return self.case.routine

    def expected(self) -> dict[str, Expected] | None:
        """What each slot has to hold if the hypothesis is true; ``None`` if it says nothing of this step."""
        of = Arithmetic(self.real, depth=sums.random_data, regroups=True, flushes=self.flushes, inputs=True)
        if self.worked:
            digits, least = DIGITS[self.worked]
            of.rounding, of.unit, of.least = 2.0**-digits, 2 * 2.0**-digits, 2 * least
        # Powers are those of the numbers that the rule was to have.
        right = cases.true_scalars(
            self.row, self.arrays, self.case.numbers_of(self.tensor), self.case.choices, self.case.count, of
        )
        used = {}
        for name, known in right.items():
            power = self._power(name, of) if name in self.powers or self.of_powers else known
            if power is None:
                return None
            used[name] = power
        choices = {name: value for name, value in self.choices.items() if name != "rounding"}

        def bounds(scalars: dict[str, Bounded]) -> dict[str, Bounded]:
            return evaluate(self.row, self.arrays, self.numbers, choices, of, rule=self.rule, scalars=scalars)

        found = bounds(used)
        if self.powers:  # which are used otherwise, and advanced as they should be
            found |= {name: x for name, x in bounds(right).items() if name in self.row.scalars}
        for name in self.rounded:
            found["params"] = self._of_rounded(name, found[name], used, choices, of)["params"]
        like = dict(self.arrays)
        for name, dtype in self.narrow.items():
            if like.get(name) is not None:
                like[name] = np.empty_like(like[name], numpy_dtype(dtype))
        expected = stored(like, found, self.choices.get("rounding") == "stochastic")
        for name in self.kept & expected.keys():
            exact = of.exact(memory(self.arrays[name]).astype(self.real))
            expected[name] = Expected(exact, self.arrays[name])
        return expected

    def _of_rounded(self, name: str, state: Bounded, scalars: Any, choices: Any, of: Arithmetic) -> dict[str, Bounded]:
        """The results from an old state of which the new one is what a narrow array holds of it.

        New states depend on old ones as averages and velocities do, by a factor.
        """
        old = memory(self.arrays[name]).astype(np.float64)
        away = np.where(old == 0, 1.0, 1.5 * old).astype(self.arrays[name].dtype)

        def after(elements: np.ndarray) -> dict[str, Bounded]:
            array = np.empty_like(self.arrays[name])
            memory(array)[...] = elements
            arrays = self.arrays | {name: array}
            return evaluate(self.row, arrays, self.numbers, choices, of, rule=self.rule, scalars=scalars)

        new = high(state.value)
        factor = (high(after(away)[name].value) - new) / (away.astype(np.float64) - old)
        if not factor.all():
            raise ArithmeticError("the old state does not matter")
        narrow = new.astype(self.real).astype(numpy_dtype(self.narrow[name])).astype(np.float64)
        return after(old + (narrow - new) / factor)

    def _power(self, name: str, of: Arithmetic) -> Bounded | None:
        """What a power and the like is of another step; 0 for step ``NONE``."""
        count = self.powers.get(name, self.case.count)
        if count == NONE:
            return of.exact(0.0)
        if count < 1:
            return None
        numbers = self.case.numbers_of(self.tensor) | dict(self.of_powers)
        value = cases.truth(self.row, numbers, self.case.choices, count, self.real)[name].value
        return Bounded(value, np.float64(2 * of.rounding * size(value)), of)


def of_case(case: Case, tensor: int, rule: Rule, real: Any, flushes: bool = False) -> Situation:
    """A tensor of a case of one step, as it is."""
    numbers = case.numbers_of(tensor)
    choices = dict(case.choices)
    return Situation(
        case, tensor, rule, case.tensor(tensor), numbers, choices, {}, {}, frozenset(), real, flushes
    )  # fmt: skip
