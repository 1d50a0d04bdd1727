"""The elementwise routines once more, and the ways in which implementations have been, or easily are, wrong.

`Optimizer` is right, for every routine. Classes derived from it change one thing for all routines; `RULES`
has wrong rules for each. Both are implementations for the laws: a check that lets one of them pass checks
nothing there.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from refopt.catalog import Routine
from refopt.checks import flat
from refopt.checks.dtypes import arithmetic
from refopt.cpu.merged import exact
from refopt.cpu.remainder import split_numbers
from refopt.cpu.stochastic import dither, random16
from refopt.oracle.exact.cases import Case, Outcome, Run
from refopt.oracle.wrong import RULES


def rule_of(routine: Routine) -> Callable[..., tuple]:
    """The rule in `refopt.cpu`."""
    return routine.rule


class Optimizer:
    """Correct. The methods are the places where a mutant differs."""

    def __init__(self, rule: Callable[..., tuple] | None = None) -> None:
        self.rule = rule

    def __call__(self, case: Case) -> Outcome:
        case = case.copy()
        for step in case.steps:
            numbers = {h.name: h.default for h in case.routine.hypers} | step
            for i in range(len(case)):
                arrays = {name: flat(values[i]) for name, values in case.lists().items()}
                if arrays["grads"] is None:
                    continue
                arrays |= self.scalars(case, i)
                with np.errstate(all="ignore"):
                    self.tensor(case, arrays, {n: self.of(n, x, i) for n, x in numbers.items()})
        return case.outcome()

    def choices(self, case: Case) -> dict[str, Any]:
        return {name: values[0] for name, values in case.routine.choices.items()} | case.choices

    def scalars(self, case: Case, i: int) -> dict[str, Any]:
        return {name: case.slots[name][i] for name in case.routine.scalars}  # type: ignore[index]

    def of(self, name: str, value: Any, i: int) -> float:
        return value[i] if isinstance(value, list) else value

    def tensor(self, case: Case, arrays: dict[str, Any], numbers: dict[str, Any]) -> None:
        routine, param, master = case.routine, arrays["params"], arrays["master_params"]
        real = arithmetic(param.dtype.name)
        values: dict[str, Any] = {name: real(x) for name, x in numbers.items()}
        seed, choices = int(values.pop("seed", 0)), self.choices(case)
        stochastic = choices.pop("rounding", "nearest") == "stochastic"
        p, g = self.exact(param, master, real), arrays["grads"].astype(real)
        carried = [name for name in routine.slot_names if name in (*routine.states, *routine.scalars)]
        states = [self.value(arrays[name], real, name in routine.scalars) for name in carried]
        g = self.rescaled(g, values.pop("rescale_grad"))
        if not routine.elementwise:
            values["stored"] = lambda name, x: self.stored(x, arrays[name].dtype)
        p, *states = self.evaluate(self.rule or rule_of(routine), p, g, states, values | choices)
        for name, state in zip(carried, states, strict=True):
            if arrays[name] is not None:
                if stochastic and name in routine.states:
                    state = self.by_chance(state, arrays[name], seed, 1 + routine.states.index(name))
                self.store(arrays[name], state, "scalar" if name in routine.scalars else "state")
        if master is not None and master.dtype == np.uint16:
            upper, lower = self.split(p)
            self.store(param, upper, "param")
            self.store(master, lower, "master")
            return
        self.store(param, self.by_chance(p, param, seed, 0) if stochastic else p, "param")
        if master is not None:
            self.store(master, p, "master")

    def exact(self, param: Any, master: Any, real: Any) -> Any:
        return exact(param, master, real)

    def split(self, p: Any) -> Any:
        return split_numbers(p)

    def by_chance(self, x: Any, array: Any, seed: int, number: int) -> Any:
        return dither(x, random16(x.size, seed, number)) if array.dtype.name == "bfloat16" else x

    def value(self, array: Any, real: Any, scalar: bool) -> Any:
        if array is None:
            return None
        return array.reshape(-1)[0] if scalar else array.astype(real)

    def rescaled(self, g: Any, rescale: Any) -> Any:
        return rescale * g

    def evaluate(self, rule: Callable[..., tuple], p: Any, g: Any, states: list[Any], values: dict[str, Any]) -> tuple:
        return rule(p, g, *states, **values)

    def stored(self, x: Any, dtype: Any) -> Any:
        return x.astype(dtype).astype(x.dtype)

    def store(self, array: Any, value: Any, kind: str) -> None:
        array[...] = np.asarray(value).astype(array.dtype)


class FirstLearningRate(Optimizer):
    """The learning rate of the first tensor for all, as a graph pass of Paddle takes it."""

    def of(self, name, value, i):
        return super().of(name, value, 0 if name == "lr" else i)


class FirstScalars(Optimizer):
    """The powers of the first tensor for all, each tensor's own advanced from there."""

    def scalars(self, case, i):
        first = {name: values[0].copy() for name, values in case.slots.items() if name in case.routine.scalars}
        return super().scalars(case, i) if i == 0 else first


class NormOfUnrounded(Optimizer):
    """What is normed is not what was stored."""

    def stored(self, x, dtype):
        return x


class TailDropped(Optimizer):
    """Vectors of four, and no loop for what is left."""

    def store(self, array, value, kind):
        if kind == "scalar":
            super().store(array, value, kind)
        else:
            flat, end = array.reshape(-1), array.size // 4 * 4
            super().store(flat[:end], np.asarray(value).reshape(-1)[:end], kind)


class RuleInDouble(Optimizer):
    """The rule worked out in twice the precision and rounded at the end."""

    def evaluate(self, rule, p, g, states, values):
        wide = np.longdouble if p.dtype == np.float64 else np.float64
        values = {name: wide(x) if isinstance(x, np.floating) else x for name, x in values.items()}
        states = [x if x is None else x.astype(wide) for x in states]
        results = rule(p.astype(wide), g.astype(wide), *states, **values)
        return tuple(x if x is None else np.asarray(x).astype(p.dtype)[()] for x in results)


class SeedIgnored(Optimizer):
    """The random numbers of one seed for all."""

    def by_chance(self, x, array, seed, number):
        return super().by_chance(x, array, 0, number)


class OneChanceForAllArrays(Optimizer):
    """Parameter and states rounded by the same random numbers."""

    def by_chance(self, x, array, seed, number):
        return super().by_chance(x, array, seed, 0)


class Truncated(Optimizer):
    """The lower half cut off, where chance should decide."""

    def by_chance(self, x, array, seed, number):
        return dither(x, np.zeros(x.size, np.uint32)) if array.dtype.name == "bfloat16" else x


class HalvesSideBySide(Optimizer):
    """Parameter and remainder taken for the two halves, rounding forgotten."""

    def exact(self, param, master, real):
        if master is None or master.dtype != np.uint16:
            return super().exact(param, master, real)
        return (param.view(np.uint16).astype(np.uint32) << 16 | master).view(np.float32)


class ParameterAloneForExact(Optimizer):
    """The remainder written, and never read."""

    def exact(self, param, master, real):
        wanted = master is None or master.dtype != np.uint16
        return super().exact(param, master if wanted else None, real)


SHARED = tuple(Optimizer.__subclasses__())


def mutants(routine: Routine, right: type[Optimizer] = Optimizer) -> dict[str, Run]:
    """Every mutant of a routine that differs from it, by name; ``right`` is what the shared ones are made of."""
    shared: dict[str, Run] = {cls.__name__: type(cls.__name__, (cls, right), {})() for cls in SHARED}
    if not routine.scalars:
        del shared["FirstScalars"]
    if routine.name != "lamb":
        del shared["NormOfUnrounded"]  # of what it has stored, LAMB alone takes the norm
    if "rounding" not in routine.choices:
        del shared["SeedIgnored"], shared["OneChanceForAllArrays"], shared["Truncated"]
    if not routine.states:
        shared.pop("OneChanceForAllArrays", None)
    return shared | {name: Optimizer(rule) for name, rule in RULES.get(routine.name, {}).items()}
