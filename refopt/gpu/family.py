"""What people call: a merged function, a single one and a plan for each routine, made from the catalogue."""

import inspect
from collections.abc import Callable
from typing import Any

from refopt import cpu
from refopt.catalog import Routine
from refopt.gpu import elementwise, lamb, lars, novograd
from refopt.gpu.launches import Launches
from refopt.gpu.plan import Plan

LAUNCHES: dict[str, Callable[..., Launches]] = {
    "lars_momentum": lars.launches, "lamb": lamb.launches, "novograd": novograd.launches,
}  # fmt: skip
# The form of a merged call and of a single one, where they are not both the first that merges.
FORMS = {"lars_momentum": ("two_launches", "separate")}


def planner(routine: Routine) -> Callable[..., Plan]:
    """`refopt.gpu.plan` for a routine; raises TypeError if no launches have been written for it."""
    launches = LAUNCHES.get(routine.name, elementwise.launches)
    if routine.name not in LAUNCHES and routine.name not in elementwise.RULES:
        wanted = "a rule in refopt.gpu.elementwise.RULES" if routine.elementwise else "launches in refopt.gpu.family"
        raise TypeError(f"{routine.merged_name}: expected {wanted} under the name {routine.name}, got none")
    required = [slot.name for slot in routine.slots if not slot.optional]
    optional = [slot.name for slot in routine.slots if slot.optional]
    usual, _ = FORMS.get(routine.name, (routine.merged_form,) * 2)

    def plan(
        *lists: Any, form: str = usual, stream: Any = 0, grad_factor: Any = None, found_inf: Any = None, **hyper: Any
    ) -> Plan:
        if len(lists) != len(required):
            expected = ", ".join(required)
            raise TypeError(f"{routine.merged_name}: expected {len(required)} lists ({expected}), got {len(lists)}")
        slots = dict(zip(required, lists, strict=True)) | {name: hyper.pop(name, None) for name in optional}
        shared = {"grad_factor": grad_factor, "found_inf": found_inf}
        return Plan(routine, launches, slots, hyper, form, stream, shared)

    return plan


def functions(routine: Routine) -> tuple[Callable[..., None], Callable[..., None]]:
    """The merged function of a routine and the single one, in the signatures of those in `refopt.cpu`."""
    plan = planner(routine)
    for name in (routine.merged_name, routine.name):
        if not hasattr(cpu, name):
            raise TypeError(f"{name}: expected a function of that name in refopt.cpu, got none")
    usual, of_one = FORMS.get(routine.name, (routine.merged_form,) * 2)
    optional = {slot.name: _one_of(slot.name) for slot in routine.slots if slot.optional}

    def merged(*lists: Any, form: str = usual, **named: Any) -> None:
        slots = _in_order(routine.merged_name, lists, named)
        for row in routine.hypers:
            if row.default is None and row.name not in named:
                raise TypeError(f"{routine.merged_name}: {row.name}: expected a number, got none")
        step = plan(*slots, form=form, **named)
        step()
        step.device.synchronize()

    def single(*arrays: Any, form: str = of_one, **named: Any) -> None:
        slots = [[array] for array in _in_order(routine.name, arrays, named)]
        given = {slot: named.pop(name, None) for slot, name in optional.items()}
        for slot in set(named).intersection(routine.slot_names):
            raise TypeError(f"{routine.name}: {slot}: expected {_one_of(slot)}, a single array")
        lists = {slot: None if array is None else [array] for slot, array in given.items()}
        merged(*slots, form=form, **lists, **named)

    return _like(merged, routine.merged_name, routine, usual), _like(single, routine.name, routine, of_one)


def _one_of(slot: str) -> str:
    """The name that a slot has where there is one tensor."""
    plurals = {"params": "param", "grads": "grad", "velocities": "velocity", "master_params": "master_param"}
    return plurals.get(slot, slot)


def _in_order(name: str, given: tuple, named: dict[str, Any]) -> list[Any]:
    """The arguments by position of a function of `refopt.cpu`, those that are given by name taken out of there."""
    parameters = inspect.signature(getattr(cpu, name)).parameters.values()
    expected = [x.name for x in parameters if x.kind is x.POSITIONAL_OR_KEYWORD]
    if len(given) > len(expected):
        raise TypeError(f"{name}: expected {len(expected)} by position ({', '.join(expected)}), got {len(given)}")
    for argument in expected[: len(given)]:
        if argument in named:
            raise TypeError(f"{name}: {argument}: expected it once, got it by position and by name")
    for argument in expected[len(given) :]:
        if argument not in named:
            raise TypeError(f"{name}: {argument}: expected it, got none")
    return [*given, *(named.pop(argument) for argument in expected[len(given) :])]


def _like(function: Callable[..., None], twin: str, routine: Routine, form: str) -> Callable[..., None]:
    """The function, presented as the device's counterpart of one in `refopt.cpu`."""
    function.__name__ = function.__qualname__ = twin
    signature = inspect.signature(getattr(cpu, twin))
    parameters = list(signature.parameters.values())
    at = len(parameters) - (parameters[-1].kind is inspect.Parameter.VAR_KEYWORD)
    own = [inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=value)
           for name, value in (("form", form), ("stream", 0))]  # fmt: skip
    function.__signature__ = signature.replace(parameters=[*parameters[:at], *own, *parameters[at:]])  # type: ignore[attr-defined]
    function.__doc__ = (
        f"`refopt.cpu.{twin}` for device arrays, on a stream; ``form`` is one of {', '.join(routine.forms)}.\n\n"
        "It builds the tables for this one call; a loop wants `refopt.gpu.plan`."
    )
    return function
