"""Copies of host arrays on a device where a test wants them: at any offset, in any axis order, between guards."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from refopt import gpu, simt
from refopt.catalog import Routine
from refopt.gpu.runtime import Device
from refopt.oracle.exact.cases import Case, Outcome, arguments
from refopt.oracle.memory import GUARD, guarded

GATE = "grad_factor", "found_inf"  # arguments of a step that are arrays of one element


class Placed:
    """A copy of a dense host array, ``shift`` elements off an aligned address. ``array`` is the device array.

    Without a ``guard`` behind it, a load from there is an access out of bounds.
    """

    def __init__(self, machine: Device, host: np.ndarray, shift: int = 0, guard: int = GUARD) -> None:
        self.shift = shift
        self._host = guarded(host, shift, guard)
        self._memory = machine.to_device(self._host.whole.view(np.uint8))
        if machine.name == "executor":
            whole = self._memory.data.view(host.dtype)
            self.array: Any = simt.DeviceArray(self._memory.buffer, self._host._replace(whole=whole).view())
        else:
            self.array = _View(self._memory, self._host.offset * host.itemsize, host)

    def read(self) -> np.ndarray:
        """The present array; an AssertionError if anything around it has changed."""
        before, whole = self._host, self._memory.copy_to_host().view(self._host.whole.dtype)
        assert (before.around(before.whole) == before.around(whole)).all(), "bytes next to an array were written"
        return before._replace(whole=whole).view()


class _View:
    """Elements within a device array of bytes, with the interface that other libraries offer."""

    def __init__(self, memory: Any, at: int, like: np.ndarray) -> None:
        self.memory, self.shape, self.dtype = memory, like.shape, like.dtype
        address = memory.__cuda_array_interface__["data"][0] + at
        self.__cuda_array_interface__ = {
            "shape": like.shape, "typestr": like.dtype.str, "version": 3,
            "strides": like.strides, "data": (address if like.size else 0, False),
        }


Shifts = Sequence[int] | Mapping[str, Sequence[int]]


class PlacedCase:
    """The arrays of a case on a device. Each slot is an attribute, as in the case.

    ``shifts`` are offsets in elements that tensors use in turn, for all slots or by slot; ``guard`` is as in `Placed`.
    """

    def __init__(self, machine: Device, case: Case, shifts: Shifts = (0,), guard: int = GUARD) -> None:
        self._machine = machine
        self.case = case
        self.placed: dict[str, list[Any]] = {}
        for name, values in case.lists().items():
            own = shifts.get(name, (0,)) if isinstance(shifts, Mapping) else shifts
            self.placed[name] = [
                x if x is None else Placed(machine, x, own[i % len(own)], guard) for i, x in enumerate(values)
            ]
        self.slots = {
            name: None if case.slots[name] is None else [x if x is None else x.array for x in values]
            for name, values in self.placed.items()
        }

    def __getattr__(self, name: str) -> Any:
        if name in self.__dict__.get("slots", ()):
            return self.slots[name]
        raise AttributeError(name)

    def plan(self, form: str, **hyper: Any) -> gpu.Plan:
        """A plan over the arrays, with the choices of the case."""
        positional, named = arguments(self.case.routine, self.slots)
        return gpu.plan(self.case.routine.name, *positional, **named, form=form, **self.case.choices, **hyper)

    def outcome(self) -> Outcome:
        """The present arrays; an AssertionError if a gradient or anything between arrays has changed."""
        self._machine.synchronize()
        now = {name: [x if x is None else x.read() for x in slot] for name, slot in self.placed.items()}
        for slot in self.case.routine.slots:
            for i, before in enumerate(self.case.lists()[slot.name]):
                if before is not None and not slot.written:
                    assert now[slot.name][i].tobytes() == before.tobytes(), f"{slot.name}[{i}] was written"  # type: ignore[union-attr]
        return {slot.name: now[slot.name] for slot in self.case.routine.slots if slot.written}


def kernels(form: str, machine: Device, shifts: Shifts = (0,)) -> Callable[[Case], Outcome]:
    """The implementation that runs a case with one plan of a form on a device.

    If the first step has a factor or a flag, all must have it: the plan is bound to these arrays, which are
    overwritten before each step.
    """

    def run(case: Case) -> Outcome:
        placed = PlacedCase(machine, case, shifts)
        numbers = case.steps[0] if case.steps else {}
        gate = {name: Placed(machine, numbers[name]) for name in GATE if name in numbers}
        step = placed.plan(form, **{name: target.array for name, target in gate.items()})
        for hyper in case.steps:
            for name, target in gate.items():
                target._memory.copy_to_device(Placed(machine, hyper[name])._memory)
            step(**{name: value for name, value in hyper.items() if name not in gate})
        return placed.outcome()

    return run


def merged_step(routine: Routine, form: str, machine: Device) -> Callable[..., None]:
    """A merged function of `refopt.gpu` for NumPy arrays, which it copies to the device and back."""

    def step(*lists, **named):
        slots = dict(zip((slot.name for slot in routine.slots if not slot.optional), lists, strict=True))
        slots |= {slot.name: named.pop(slot.name, None) for slot in routine.slots if slot.optional}
        placed = PlacedCase(machine, Case(routine, slots, []))
        positional, optional = arguments(routine, placed.slots)
        getattr(gpu, routine.merged_name)(*positional, **optional, form=form, **named)
        for name, values in placed.outcome().items():
            for host, array in zip(slots[name] or [], values, strict=False):
                if host is not None:
                    host[...] = array

    return step
