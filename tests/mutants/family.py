"""The merged functions once more, and the ways in which implementations have been, or easily are, wrong.

What is wrong is a difference to `refopt.cpu`: text that stands instead of other text in `refopt.cpu.merged`, which all
routines share, or in a rule. Each is an implementation for the laws: a check that lets one of them pass checks nothing
there.
"""

import inspect
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from texts import executed

from refopt import cpu
from refopt.catalog import Routine
from refopt.cpu import merged
from refopt.oracle.bound.evaluate import copied
from refopt.oracle.exact.cases import Run, runner
from refopt.oracle.wrong import OF


def implementation(routine: Routine, rule: Callable[..., tuple] | None = None, changes: Mapping[str, str] = {}) -> Run:
    """A routine by another rule, if one is given, and by `refopt.cpu.merged` with changes."""
    text = inspect.getsource(merged)
    for old, new in changes.items():
        assert old in text, old
        text = text.replace(old, new)
    made, row = executed(text, in_double=in_double), routine._replace(rule=rule or routine.rule)

    def step(_: Routine, arguments: dict[str, Any]) -> None:
        made["step"](row, arguments)

    return runner(copied(getattr(cpu, routine.merged_name), lambda x: step if x is merged.step else x))


def in_double(rule: Callable[..., tuple]) -> Callable[..., tuple]:
    """The rule worked out in twice the precision and rounded at the end."""

    def wide_rule(p: Any, g: Any, *states: Any, **values: Any) -> tuple:
        wide = np.longdouble if p.dtype == np.float64 else np.float64
        values = {name: wide(x) if isinstance(x, np.floating) else x for name, x in values.items()}
        wider = [x if x is None else x.astype(wide) for x in states]
        results = rule(p.astype(wide), g.astype(wide), *wider, **values)
        return tuple(x if x is None else np.asarray(x).astype(p.dtype)[()] for x in results)

    return wide_rule


def of_the_first(number: str) -> dict[str, str]:
    """A number of the first tensor for all."""
    return {"self.set(call.hyper_of(i))": f'self.set(call.hyper_of(i) | {{"{number}": call.hyper_of(0)["{number}"]}})'}


OF_ALL = {
    "FirstLearningRate": of_the_first("lr"),  # as a graph pass of Paddle takes it
    "TailDropped": {  # vectors of four, and no loop for what is left
        "array[...] = values.astype(array.dtype)":
            "end = array.size // 4 * 4 or array.size\n    array[:end] = values.astype(array.dtype).reshape(-1)[:end]"},
    "RuleInDouble": {"return rule(": "return in_double(rule)("},
    # Parameter and remainder taken for the two halves, rounding forgotten; and the remainder written, and never read.
    "HalvesSideBySide": {
        "join(param, master)": "(param.view(np.uint16).astype(np.uint32) << 16 | master).view(np.float32)"},
    "ParameterAloneForExact": {"join(param, master)": "param.astype(real)"}}
OF_SCALARS = {"FirstScalars": {"call.slots[name][i])": "call.slots[name][0 if name in row.scalars else i])"}}
OF_LAMB = {"NormOfUnrounded": {"else x.astype(array.dtype)": "else x"}}  # the norm of what it has stored it alone takes
OF_CHANCE = {"SeedIgnored": {'int(numbers.pop("seed", 0))': '0 * int(numbers.pop("seed", 0))'},
             "Truncated": {"random16(values.size, seed, chance)": "np.zeros(values.size, np.uint32)"}}
OF_STATES = {"OneChanceForAllArrays": {"name: k for k, name in enumerate(rounded)": "name: 0 for name in rounded"}}


def mutants(routine: Routine) -> dict[str, Run]:
    """Every mutant of a routine that differs from it, by name."""
    chance = "rounding" in routine.choices
    everywhere = OF_ALL | (OF_SCALARS if routine.scalars else {}) | (OF_LAMB if routine.name == "lamb" else {})
    everywhere |= (OF_CHANCE if chance else {}) | (OF_STATES if chance and routine.states else {})
    by_rule = {name: implementation(routine, wrong.of(routine.rule)) for name, wrong in OF[routine.name].items()}
    return by_rule | {name: implementation(routine, None, changes) for name, changes in everywhere.items()}
