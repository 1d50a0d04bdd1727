"""The public functions: a merged one, a single one and a plan for each routine, made from the catalogue."""

import inspect
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from refopt import cpu
from refopt.checks.rows import Routine
from refopt.cpu.routine import bind, single
from refopt.gpu import elementwise, lars, norms
from refopt.gpu.muon import MuonPlan
from refopt.gpu.plan import Plan
from refopt.gpu.tried import rule_for


def launches_of(routine: Routine) -> Callable[..., Any]:
    """The function that makes the launches of a group; `refopt.gpu.lars` has forms that no other routine has."""
    if routine.elementwise:
        return elementwise.launches
    return lars.launches if "cooperative" in routine.forms else norms.launches


def planner(routine: Routine) -> Callable[..., Plan]:
    """`refopt.gpu.plan` for a routine; raises TypeError if its rule is incomplete."""
    required = [slot.name for slot in routine.slots if not slot.optional]
    optional = [slot.name for slot in routine.slots if slot.optional]
    if routine.matrix_arguments:
        make: Callable[..., Plan] = partial(MuonPlan, routine)
    else:
        defaults = {name: values[0] for name, values in routine.choices.items() if name != "rounding"}
        rule_for(routine, np.float32, frozenset(required), defaults)
        make = partial(Plan, routine, launches_of(routine))

    def plan(
        *lists: Any, form: str = routine.merged_form, stream: Any = 0, grad_factor: Any = None, found_inf: Any = None,
        **hyper: Any,
    ) -> Plan:
        if len(lists) != len(required):
            expected = ", ".join(required)
            raise TypeError(f"{routine.merged_name}: expected {len(required)} lists ({expected}), got {len(lists)}")
        slots = dict(zip(required, lists, strict=True)) | {name: hyper.pop(name, None) for name in optional}
        shared = {"grad_factor": grad_factor, "found_inf": found_inf}
        return make(slots, hyper, form, stream, shared)

    return plan


def functions(routine: Routine) -> tuple[Callable[..., None], Callable[..., None]]:
    """The merged function of a routine and the single one, with the signatures of those in `refopt.cpu`."""
    plan, name = planner(routine), routine.merged_name
    if not hasattr(cpu, name):
        raise TypeError(f"{name}: expected a function of that name in refopt.cpu, got none")
    own = [inspect.Parameter(x, inspect.Parameter.KEYWORD_ONLY, default=value)
           for x, value in (("form", routine.merged_form), ("stream", 0))]
    signature = inspect.signature(getattr(cpu, name))
    signature = signature.replace(parameters=[*signature.parameters.values(), *own])

    def merged(*args: Any, **named: Any) -> None:
        arguments = bind(name, signature, args, named)
        lists = [arguments.pop(slot.name) for slot in routine.slots if not slot.optional]
        step = plan(*lists, **arguments)
        step()
        step.device.synchronize()

    merged.__signature__ = signature  # type: ignore[attr-defined]
    merged.__name__ = merged.__qualname__ = name
    one = single(merged, form="separate" if "separate" in routine.forms else routine.merged_form)
    for function in (merged, one):
        function.__doc__ = (
            f"`refopt.cpu.{function.__name__}` for device arrays, on a stream; ``form`` is one of "
            f"{', '.join(routine.forms)}.\n\nIt builds the tables for this one call; in a loop, use `refopt.gpu.plan`."
        )
    return merged, one
