"""A trial of rules on one number of each kind before kernels are made of them: on the CPU they are plain Python."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from refopt.checks.rows import Routine
from refopt.gpu.rules import RULES, NormRule, Rule


def rule_for(routine: Routine, real: Any, present: frozenset[str], choices: dict[str, Any]) -> Any:
    """A routine's `Rule` or `NormRule`, tried.

    Raises:
        TypeError: a part is missing, or its result lacks states or scalars of the routine; the message says which.
    """
    rule = RULES[routine.name](real, present, **choices)
    kind = Rule if routine.elementwise else NormRule
    if not isinstance(rule, kind):
        _refuse(routine, routine.name, f"a {kind.__name__}", type(rule).__name__)
    states = [name for name in routine.states if name in present]
    with np.errstate(all="ignore"):
        (_try_elements if routine.elementwise else _try_norms)(routine, rule, real(0.5), states)
    return rule


def _try_elements(routine: Routine, rule: Rule, x: Any, states: list[str]) -> None:
    scalars, numbers = (x,) * len(routine.scalars), (x,) * (len(routine.hypers) - 1)
    common = _call(routine, "prepare", rule.prepare, numbers, scalars)
    _expect(routine, "rule", rule.rule, (x, x, *(x for _ in states), common), ["the parameter", *states])
    if routine.scalars:
        _expect(routine, "advance", rule.advance, (numbers, scalars), list(routine.scalars))


def _try_norms(routine: Routine, rule: NormRule, x: Any, states: list[str]) -> None:
    for part, names in (("reads", rule.reads), ("updates", rule.updates)):
        if unknown := set(names) - {*states, "params", "stored_params", "grads"}:
            _refuse(routine, part, "params, stored_params, grads and states", ", ".join(sorted(unknown)))
    scalars, hypers, read = (x,) * len(routine.scalars), (x,) * len(routine.hypers), (x,) * len(rule.reads)
    moved = [name for name in rule.reads if name in states] if rule.moments else []
    if rule.moments:
        _expect(routine, "moments", rule.moments, (*read, hypers + scalars), moved)
    if (count := norms_taken(routine, rule, type(x))) not in (1, 2):
        _refuse(routine, "normed", "a tuple of one or two numbers", count)
    _expect(routine, "close", rule.close, ((x, x), hypers + scalars), [*rule.numbers, *routine.scalars])
    common = hypers + (x,) * len(rule.numbers)
    written = ["the parameter", *(name for name in states if name not in moved)]
    _expect(routine, "rule", rule.rule, (*(x for _ in rule.updates), common), written)


def norms_taken(routine: Routine, rule: NormRule, real: Any) -> int:
    """How many norms a rule takes."""
    x = real(0.5)
    k = (x,) * (len(routine.hypers) + len(routine.scalars))
    with np.errstate(all="ignore"):
        return len(_call(routine, "normed", rule.normed, *(x for _ in rule.reads), k))


def _call(routine: Routine, part: str, function: Any, *args: Any) -> Any:
    if not callable(function):
        _refuse(routine, part, "a function", type(function).__name__)
    return function(*args)


def _expect(routine: Routine, part: str, function: Any, args: tuple, names: Sequence[str]) -> None:
    values = _call(routine, part, function, *args)
    if not isinstance(values, tuple) or len(values) != len(names):
        got = len(values) if isinstance(values, tuple) else type(values).__name__
        _refuse(routine, part, f"a tuple of {', '.join(names)}", got)


def _refuse(routine: Routine, part: str, expected: str, got: Any) -> None:
    raise TypeError(f"{routine.merged_name}: {part}: expected {expected}, got {got}")
