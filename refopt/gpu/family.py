"""What people call: a merged function, a single one and a plan for each routine, made from the catalogue."""

import inspect
from collections.abc import Callable
from typing import Any

from refopt import cpu
from refopt.catalog import Routine
from refopt.gpu import elementwise, lamb, novograd
from refopt.gpu.plan import Launches, Plan

LAUNCHES: dict[str, Callable[..., Launches]] = {"lamb": lamb.launches, "novograd": novograd.launches}


def planner(routine: Routine) -> Callable[..., Plan]:
    """`refopt.gpu.plan` for a routine."""
    required = [slot.name for slot in routine.slots if not slot.optional]
    optional = [slot.name for slot in routine.slots if slot.optional]

    def plan(
        *lists: Any, form: str = "merged", stream: Any = 0, grad_factor: Any = None, found_inf: Any = None, **hyper: Any
    ) -> Plan:
        if len(lists) != len(required):
            expected = ", ".join(required)
            raise TypeError(f"{routine.merged_name}: expected {len(required)} lists ({expected}), got {len(lists)}")
        slots = dict(zip(required, lists, strict=True)) | {name: hyper.pop(name, None) for name in optional}
        shared = {"grad_factor": grad_factor, "found_inf": found_inf}
        return Plan(routine, LAUNCHES.get(routine.name, elementwise.launches), slots, hyper, form, stream, shared)

    return plan


def functions(routine: Routine) -> tuple[Callable[..., None], Callable[..., None]]:
    """The merged function of a routine and the single one, in the signatures of those in `refopt.cpu`."""
    plan = planner(routine)
    optional = [slot.name for slot in routine.slots if slot.optional]

    def merged(*lists: Any, form: str = "merged", **hyper: Any) -> None:
        for row in routine.hypers:
            if row.default is None and row.name not in hyper:
                raise TypeError(f"{routine.merged_name}: {row.name}: expected a number, got none")
        step = plan(*lists, form=form, **hyper)
        step()
        step.device.synchronize()

    def single(*arrays: Any, **hyper: Any) -> None:
        for name in optional:
            value = hyper.pop("master_param" if name == "master_params" else name, None)
            hyper[name] = None if value is None else [value]
        merged(*([array] for array in arrays), **hyper)

    return _like(merged, routine.merged_name, routine), _like(single, routine.name, routine)


def _like(function: Callable[..., None], twin: str, routine: Routine) -> Callable[..., None]:
    """The function, presented as the device's counterpart of one in `refopt.cpu`."""
    function.__name__ = function.__qualname__ = twin
    function.__signature__ = inspect.signature(getattr(cpu, twin))  # type: ignore[attr-defined]
    function.__doc__ = f"`refopt.cpu.{twin}` for device arrays; ``form`` is one of {', '.join(routine.forms)}."
    return function
