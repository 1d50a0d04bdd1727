"""One tensor of a case under a hypothesis: its rule, the rule's inputs, and how results are stored; and hypotheses."""

import functools
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from refopt.catalog import Routine
from refopt.checks.dtypes import numpy_dtype
from refopt.cpu.adam import descend, moments
from refopt.oracle import cases
from refopt.oracle.bound import sums
from refopt.oracle.bound.bounded import Arithmetic, Bounded, high, roundings_of, size
from refopt.oracle.bound.evaluate import evaluate, inputs_of
from refopt.oracle.bound.expected import Expected, cut, stored
from refopt.oracle.bound.iterations import BITS
from refopt.oracle.exact.cases import Case, memory
from refopt.oracle.source import substituted

Rule = Callable[..., tuple]
Inputs = tuple[list[Any], dict[str, Any]]
NONE = -1000


class Unbounded:
    """fp64 in place of an `Arithmetic`: numbers without bounds, rounded to ``real`` as those of the step are."""

    regroups = False

    def __init__(self, real: Any) -> None:
        self.real = real

    def exact(self, x: Any) -> Any:
        return np.float64(x)

    def number(self, x: Any) -> Any:
        return np.float64(self.real(x))


class Situation(NamedTuple):
    """The state of a step that hypotheses change.

    Attributes:
        case, tensor: the case, and the index of the tensor.
        rule: with the signature of those in `refopt.cpu`.
        arrays, numbers, choices: of the tensor, as `bound.evaluate.evaluate` takes them.
        powers: by scalar, the step whose power it is, if another; ``NONE`` for 0.
        narrow: by slot, a dtype to which results are rounded before they are stored.
        kept: written slots that stay unchanged.
        real: the arithmetic.
        flushes: whether it may replace subnormal numbers by 0.
        of_powers: the base numbers of powers, where they are others.
        worked: the dtype to which each operation is rounded, if narrower.
        cut: slots whose results are rounded towards 0 when they are stored.
        apart: whether the parameter is computed from its own value, not rounded from its master.
        elements: the tensor's elements in the arrays, in memory order; all, or some if each is independent.
        among: the range of this tensor, if the arrays are those of all tensors, one after the other.
        loose: whether results are less precise than the rule's.
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
    cut: frozenset[str] = frozenset()
    apart: bool = False
    elements: Any = slice(None)
    among: slice | None = None
    loose: bool = False

    @property
    def is_rough(self) -> bool:
        """Whether `plain` differs from the values that are stored."""
        return bool(self.narrow or self.worked or self.loose or self.cut or self.apart)

    @property
    def row(self) -> Routine:
        return self.case.routine

    def expected(self) -> dict[str, Expected] | None:
        """What each slot must hold if the hypothesis is true; ``None`` if it does not apply to this step."""
        roundings = roundings_of(self.row)
        of = Arithmetic(self.real, roundings, depth=sums.random_data, regroups=True, flushes=self.flushes, inputs=True)
        if self.worked:
            digits, least = BITS[self.worked]
            of.rounding, of.least = 2.0**-digits, 2.0 ** (least + 1)
            of.unit = of.unit_of_sums = 2 * of.rounding
        # Powers are those of the numbers that the rule should have.
        right = cases.true_scalars(
            self.row, self.arrays, self.case.numbers_of(self.tensor), self.case.choices, self.case.count, of
        )
        used = {}
        for name, known in right.items():
            used[name] = known
            if name in self.powers or self.of_powers:
                power = self._power(name)
                if power is None:
                    return None
                error = 2 * of.rounding * size(power)
                used[name] = Bounded(power, np.float64(error), of) if error else of.exact(0.0)
        choices = {name: value for name, value in self.choices.items() if name != "rounding"}

        def bounds(scalars: dict[str, Bounded]) -> dict[str, Bounded]:
            return evaluate(self.row, self.arrays, self.numbers, choices, of, rule=self.rule, scalars=scalars)

        bounded = bounds(used)
        if self.powers:  # which are used wrongly, and advanced correctly
            bounded |= {name: x for name, x in bounds(right).items() if name in self.row.scalars}
        bounded = {name: self._mine(x) for name, x in bounded.items() if self.arrays.get(name) is not None}
        expected = stored(self._narrowed(), bounded, self.choices.get("rounding") == "stochastic")
        if self.apart:
            own = self._replace(arrays=self.arrays | {"master_params": None}, apart=False).expected()
            expected["params"] = (own or expected)["params"]
        for name in self.cut & bounded.keys():
            expected[name] = Expected(bounded[name], self.arrays[name], cut)
        for name in self.kept & expected.keys():
            still = of.exact(memory(self.arrays[name]).astype(self.real))
            expected[name] = Expected(still, self.arrays[name])
        return expected

    def _narrowed(self) -> dict[str, Any]:
        """Arrays of the dtypes in which results are stored."""
        like = dict(self.case.tensor(self.tensor) if self.among else self.arrays)
        for name, dtype in self.narrow.items():
            if like.get(name) is not None:
                like[name] = np.empty_like(like[name], numpy_dtype(dtype))
        return like

    def _mine(self, x: Any) -> Any:
        """This tensor's part of a result, if the arrays are those of all tensors."""
        if self.among is None or not np.ndim(getattr(x, "error", x)):
            return x
        if isinstance(x, Bounded):
            return Bounded(x.value[self.among], x.error[self.among], x.arithmetic)
        return x[self.among]

    def plain(self, inputs: Inputs | None = None) -> dict[str, Any] | None:
        """Results in fp64, by slot, without bounds and before they are stored; ``None`` if it does not apply.

        This takes a tenth of the time of `expected`, and is enough to reject a hypothesis that explains nothing.
        ``inputs`` are those of the rule, if they are known.
        """
        inputs = inputs or self.inputs()
        if inputs is None:
            return None
        given, named = inputs
        results = dict(zip(("params", *self.row.carried), self.rule(*given, **named), strict=True))
        for name in self.kept & results.keys():
            results[name] = memory(self.arrays[name]).astype(np.float64)
        skipped = cases.by_count(self.row)
        return {name: self._mine(x) for name, x in results.items() if x is not None and name not in skipped}

    def inputs(self) -> Inputs | None:
        """What `plain` passes to the rule, by position and by name; ``None`` if one of its powers does not exist."""
        powers = {name: self._power(name) for name in cases.by_count(self.row)}
        if any(x is None for x in powers.values()):
            return None
        scalars = {name: np.float64(high(x)) for name, x in powers.items()}
        return inputs_of(self.row, self.arrays, self.numbers, self.choices, Unbounded(self.real), scalars)

    def _power(self, name: str) -> Any:
        """The true value of a power, or a similar scalar, in another step; 0 for step ``NONE``."""
        count = self.powers.get(name, self.case.count)
        if count < 1:
            return 0.0 if count == NONE else None
        numbers = self.case.numbers_of(self.tensor) | dict(self.of_powers)
        return cases.truth(self.row, name, numbers, self.case.choices, count, self.real)


def of_case(
    case: Case, tensor: int, rule: Rule, real: Any, flushes: bool = False, elements: Any = slice(None)
) -> Situation:
    """A tensor of a case with one step, or some of its elements, before any change."""
    numbers, arrays = case.numbers_of(tensor), case.tensor(tensor)
    if not isinstance(elements, slice):
        one = case.routine.scalars
        arrays = {name: x if x is None or name in one else memory(x)[elements] for name, x in arrays.items()}
    return Situation(
        case, tensor, rule, arrays, numbers, dict(case.choices), {}, {}, frozenset(), real, flushes, elements=elements
    )


class Hypothesis(NamedTuple):
    """``change`` returns the changed situation, or ``None`` if the hypothesis does not apply.

    ``kind`` is what it changes: two with equal ``kind`` and ``about`` are not paired, nor is one that is not
    ``paired``. ``needs`` are numbers that the step must take.
    """

    name: str
    change: Callable[[Situation], Situation | None]
    kind: str
    about: str = ""
    paired: bool = True
    needs: tuple[str, ...] = ()


@functools.cache
def base_rule(row: Routine) -> Rule:
    """The rule as in papers, with all of its source available."""
    return substituted(row.rule, {descend: descend_as_in_the_paper, moments: moments_one_by_one})


def moments_one_by_one(g, m, u, *, beta1, beta2):
    """`refopt.cpu.adam.moments`, with names for the new ones."""
    m = beta1 * m + (1 - beta1) * g
    u = beta2 * u + (1 - beta2) * g * g
    return m, u


def descend_as_in_the_paper(p, m, u, beta1_pow, beta2_pow, *, lr, epsilon, epsilon_at):
    """Adam's step with corrected moments; `refopt.cpu.adam.descend` regroups it."""
    if epsilon_at == "uncorrected":
        return p - lr * np.sqrt(1 - beta2_pow) / (1 - beta1_pow) * (m / (np.sqrt(u) + epsilon))
    m_hat = m / (1 - beta1_pow)
    d = m_hat / (np.sqrt(u / (1 - beta2_pow)) + epsilon)
    return p - lr * d
