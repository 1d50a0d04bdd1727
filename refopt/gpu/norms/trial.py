"""A rule is tried on numbers before kernels are made of it, here, where the functions of kernels are Python's."""

from typing import Any

import numpy as np

from refopt.catalog import Routine
from refopt.gpu.rules import NormRule


def norms_taken(routine: Routine, rule: NormRule, real: Any) -> int:
    """How many norms a rule takes, one or two.

    Raises:
        TypeError: a part of the rule is not as `NormRule` says; the text has what was expected.
    """

    def expect(holds: bool, what: str, got: Any) -> None:
        if not holds:
            raise TypeError(f"{routine.merged_name}: {what}, got {got}")

    def tried(part: str, first: tuple, numbers: tuple[str, ...], results: tuple[str, ...]) -> None:
        k = (one,) * (len(routine.hypers) + len(numbers))
        function = getattr(rule, part)
        expect(callable(function), f"{part}: expected a function", type(function).__name__)
        values = function(*first, k)
        got = f"{len(values)} numbers" if isinstance(values, tuple) else type(values).__name__
        expect(got == f"{len(results)} numbers", f"{part}: expected a tuple of {', '.join(results)}", got)

    one = real(0.5)
    last, scalars = routine.hypers[-1].name, routine.scalars
    expect(last == "rescale_grad", "expected rescale_grad as the last number", last)
    for slot in (*rule.reads, *rule.updates):
        known = *routine.slot_names, "stored_params"
        expect(slot in known, f"reads, updates: expected slots among {', '.join(known)}", slot)
    moved = tuple(name for name in rule.reads if name in routine.states and rule.moments)
    read, updated = (one,) * len(rule.reads), (one,) * len(rule.updates)
    with np.errstate(all="ignore"):
        if rule.moments:
            tried("moments", read, scalars, moved)
        count = len(rule.normed(*read, (one,) * (len(routine.hypers) + len(scalars))))
        expect(count in (1, 2), "normed: expected a tuple of one or two numbers", count)
        tried("close", ((one, one),), scalars, (*rule.numbers, *scalars))
        tried("rule", updated, rule.numbers, ("the parameter", *(x for x in routine.states if x not in moved)))
    return count
