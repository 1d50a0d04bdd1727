"""A trial: some steps of a routine on tensors of several shapes, each step held to its formula.

Every step starts from what the step before has stored, so that the bound is that of one step, and states are those that
steps come to. Powers are held to the number of steps since the first.
"""

import inspect
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from evidence import data, formulas, philox
from evidence.cells import FOUND_INF, GRAD_FACTOR, PRECISIONS, STOCHASTIC, optional_states, variants
from evidence.data import EVERY, SHAPES
from refopt.catalog import ROUTINES
from refopt.checks.dtypes import numpy_dtype
from refopt.oracle.bound import storage
from refopt.oracle.bound.bounded import Arithmetic, Bounded
from refopt.oracle.bound.double_double import size
from refopt.oracle.exact.cases import Case, Run

STEPS, OF_RADAM = 4, 7  # it rectifies from the sixth
SKIPPED = {2: 1.0, 3: np.nan, 4: np.inf}  # flags of steps that come before these, and are to change nothing


class Known(NamedTuple):
    """One tensor in one step: what the formula may take, by name, and what its slots hold afterwards."""

    where: str
    inputs: dict[str, Any]
    seed: int
    before: dict[str, Any]
    after: dict[str, Any]


def flat(x: np.ndarray) -> np.ndarray:
    return x.reshape(-1)


def of_tensor(lists: dict[str, Any], i: int) -> dict[str, Any]:
    return {name: arrays[i] for name, arrays in lists.items()}


class Trial:
    """The steps of a cell on numbers of a seed. What is tried is a function of a case, ``run``."""

    def __init__(self, cell: tuple[str, str, str], seed: int = 0, **bound: Any) -> None:
        (name, label, precision), self.seed = cell, seed
        self.routine, self.where = ROUTINES[name], ": ".join(cell)
        self.variant = variants(self.routine)[label]
        self.feature = self.variant.feature
        self.dtype, self.master = PRECISIONS[precision]
        self.real: Any = np.float64 if self.dtype == "float64" else np.float32
        self.arithmetic = Arithmetic(self.real, **bound)
        self.choices = {choice: values[0] for choice, values in self.routine.choices.items()}
        self.choices |= dict(self.variant.choices)
        if self.feature == STOCHASTIC:
            self.choices["rounding"] = "stochastic"
        self.carried = (*self.routine.states, *self.routine.scalars)
        if not hasattr(formulas, name):
            raise LookupError(f"{name}: expected its formula in tests/evidence/formulas.py, under this name, got none")
        self.formula = getattr(formulas, name)
        self.takes = inspect.signature(self.formula).parameters

    def has(self, state: str, tensor: int) -> bool:
        """Whether a tensor has a state. Where chance rounds, every other tensor has the optional ones, too."""
        chance = self.feature == STOCHASTIC and tensor % 2 == 0
        return chance or state in self.variant.optional or state not in optional_states(self.routine)

    def first(self) -> dict[str, Any]:
        """All slots but the gradients before the first step. States are of either dtype that they may be, by turns."""
        params, masters = data.parameters(self.dtype, self.master, self.seed)
        dtypes = [np.dtype(self.real) if i % 2 else numpy_dtype(self.dtype) for i in EVERY]
        slots: dict[str, Any] = {"params": params, "master_params": masters}
        for name in self.routine.states:
            slots[name] = [np.zeros(SHAPES[i], dtypes[i]) if self.has(name, i) else None for i in EVERY]
        for name in self.routine.scalars:
            value = data.NUMBERS.get(data.FIRST[name], data.FIRST[name])
            slots[name] = [np.full(1, value, self.real) for _ in EVERY]
        return slots

    def gradients(self, t: int) -> list[np.ndarray]:
        """Those of a step, in dtypes that widen to the arithmetic type."""
        return data.gradients(t, list(dict.fromkeys([self.dtype, "float32", np.dtype(self.real).name])), self.seed)

    def numbers(self, t: int) -> dict[str, Any]:
        """The numbers of a step."""
        values = {hyper.name: data.number(hyper, self.feature, t) for hyper in self.routine.hypers}
        if self.feature == GRAD_FACTOR:
            values["grad_factor"] = np.full(1, 1.61 - 0.2 * t, self.real if t % 2 else np.float32)
        return {name: value for name, value in values.items() if value is not None}

    def steps(self, run: Run) -> Iterator[Known]:
        """Every tensor in every step that is taken; those that are skipped have changed nothing."""
        slots = self.first()
        for t in range(1, 1 + (OF_RADAM if self.routine.name == "radam" else STEPS)):
            numbers = self.numbers(t)
            if self.feature == FOUND_INF:
                if t in SKIPPED:
                    self.skip(run, slots, numbers, SKIPPED[t])
                numbers["found_inf"] = np.zeros(1, np.float32)
            case = Case(self.routine, slots | {"grads": self.gradients(t)}, [numbers], self.choices)
            after, before = run(case), case.lists()
            for i in EVERY:
                yield self.known(t, i, numbers, of_tensor(before, i), of_tensor(after, i))
            slots |= after

    def skip(self, run: Run, slots: dict[str, Any], numbers: dict[str, Any], flag: float) -> None:
        """A step whose ``found_inf`` is not 0 changes no bit, though its gradients are NaN."""
        grads = [np.full(shape, np.nan, numpy_dtype(self.dtype)) for shape in SHAPES]
        step = numbers | {"found_inf": np.full(1, flag, np.float32)}
        case = Case(self.routine, slots | {"grads": grads}, [step], self.choices)
        before, after = case.lists(), run(case)
        for name, arrays in after.items():
            for i, (old, new) in enumerate(zip(before[name], arrays, strict=True)):
                same = old is new or old.tobytes() == new.tobytes()
                assert same, f"{self.where}: {name}[{i}]: expected as it was, since found_inf is {flag}"

    def known(self, t: int, i: int, numbers: dict[str, Any], before: dict[str, Any], after: dict[str, Any]) -> Known:
        """A tensor in a step, as the formula takes it: numbers are rounded to the arithmetic type (N2)."""
        exact, real = self.arithmetic.exact, self.real

        def read(array: np.ndarray | None) -> Bounded | None:
            return array if array is None else exact(flat(array).astype(real))

        inputs: dict[str, Any] = {name: np.ravel(x)[i if np.size(x) > 1 else 0] for name, x in numbers.items()}
        seed = int(inputs.pop("seed", 0))
        inputs = {name: exact(real(x)) for name, x in inputs.items()} | self.choices
        g = read(before["grads"])
        factors = [inputs[name] for name in ("rescale_grad", "grad_factor") if name in inputs]
        for factor in factors[1:]:
            factors[0] = factors[0] * factor
        inputs |= {"t": t, "g": factors[0] * g if factors else g, "param": read(before["params"])}
        inputs["x"] = exact(self.exact(before))
        inputs |= {name: read(before[name]) for name in self.carried}
        inputs |= {"new_" + name: read(after[name]) for name in self.carried}
        return Known(f"{self.where}: step {t}, tensor {i}", inputs, seed, before, after)

    def exact(self, slots: dict[str, Any]) -> np.ndarray:
        """The exact parameters, which a tensor's slots hold."""
        param, master = flat(slots["params"]), slots["master_params"]
        if master is None:
            return param.astype(self.real)
        return storage.joined(param, flat(master)) if self.master == "uint16" else flat(master)

    def outcome(self, known: Known) -> dict[str, Bounded]:
        """What the formula comes to."""
        with np.errstate(all="ignore"):
            outcome = self.formula(**{name: x for name, x in known.inputs.items() if name in self.takes})
        for name, bound in outcome.items():
            assert np.all(np.isfinite(bound.error)), f"{known.where}: {name}: no bound"
        return outcome

    def hold(self, run: Run) -> dict[str, float]:
        """Hold every step to the formula; returns the greatest width of each slot's bound."""
        widest: dict[str, float] = {}
        for known in self.steps(run):
            expected = self.outcome(known)
            assert set(expected) == {"params", *(name for name in self.carried if known.after[name] is not None)}
            for name, bound in expected.items():
                self.compare(known, name, bound)
                old = known.inputs["x" if name == "params" else name]
                widest[name] = max(widest.get(name, 0.0), width(bound, old))
        return widest

    def compare(self, known: Known, name: str, bound: Bounded) -> None:
        """A slot against the ends of what it may be, each as the slot would hold it."""
        got, bits, where = known.after[name], None, f"{known.where}: {name}"
        low, high = (np.atleast_1d(x) for x in bound.ends())
        if name == "params" and self.master:
            exact = self.exact(known.after)
            assert_between(low, exact, high, f"{where}, exact")
            if self.master == "uint16":
                return
            low = high = exact
        if self.feature == STOCHASTIC and name not in self.routine.scalars:
            bits = philox.bits(known.seed, ("params", *self.routine.states).index(name), got.size)
        low, high = (storage.stored(x, got.dtype, bits) for x in (low, high))
        assert_between(low, flat(got).astype(self.real), high, where)


def width(bound: Bounded, old: Bounded | None) -> float:
    """A bound in eps of the arithmetic: its mean over a tensor, by the mean of the larger of new and old value."""
    largest = size(bound.value) if old is None else np.maximum(size(bound.value), size(old.value))
    whole = np.sum(largest) * np.finfo(bound.arithmetic.real).eps
    return float(np.sum(bound.error) / whole) if whole else 0.0


def assert_between(low: np.ndarray, got: np.ndarray, high: np.ndarray, where: str) -> None:
    """Raise an AssertionError that names the first element that is not."""
    outside = ~((low <= got) & (got <= high))
    if outside.any():
        k = int(np.argmax(outside))
        least, most = (float(np.broadcast_to(x, got.shape)[k]) for x in (low, high))
        raise AssertionError(f"{where}[{k}]: expected {least!r} to {most!r}, got {float(got[k])!r}")
