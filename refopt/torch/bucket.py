"""The parameters that one plan updates: those of one device, arithmetic type, routine and choices."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.autograd.graph import increment_version

from refopt import gpu
from refopt.catalog import ROUTINES
from refopt.state.steps import BASES
from refopt.torch.arrays import arrays_of, follow, places_of
from refopt.torch.formulas import Formula
from refopt.torch.gate import Gate
from refopt.torch.gradients import Gradients
from refopt.torch.states import MASTER, Scalars, complete


class Member(NamedTuple):
    """A parameter, what errors call it, the number of its group, and its state in PyTorch's layout."""

    param: Tensor
    label: str
    group: int
    state: dict[str, Any]


class Bucket:
    """Parameters with states, and the plan that updates them in place.

    The steps of each are counted on the host. Where the device alone knows whether a step was taken, since a scaler may
    have found an inf, it counts what was skipped, and `counts` waits for it.

    Attributes:
        params: the parameters.
        gradients: what the plan reads of their gradients.
        captured: whether a graph has a step of the plan, whose tables are to stay.
    """

    def __init__(self, members: Sequence[Member], formulas: Sequence[Formula], masters: str | None) -> None:
        """Complete the states; `bind` makes the plan.

        Args:
            members: the parameters.
            formulas: of each group of the optimizer, by number.
            masters: what kind of masters 16-bit parameters have, if any.
        """
        self._members, self._masters = members, masters
        self._groups = [member.group for member in members]
        self._formulas, self._formula = formulas, formulas[members[0].group]
        self.params = [member.param for member in members]
        self._on_gpu = self.params[0].is_cuda
        self._places = places_of(self.params).tobytes()
        self.gradients = Gradients(self.params, lambda i: f"{members[i].label}: grad")
        begun = [any(x is not None for x in member.state.values()) for member in members]
        for member in members:
            complete(member.state, member.param, self._formula, masters)
        self._taken = _counts(members) if self._formula.counts else np.array(begun, np.int64)
        self._skipped = torch.zeros(1, dtype=torch.float64, device=self.params[0].device)
        self._waits = False  # whether that may be anything but 0
        self._see()
        self._scalars = Scalars(ROUTINES[self._formula.routine], self.params)
        self._scalars.read([member.state for member in members], self._formula)
        self._numbers = self._of_tensors(formulas)
        self._scalars.count(self._taken.tolist(), self._by_tensor())
        self._plan: Any = None
        self._moved = self.captured = False
        self._early = bool(self._formula.first)  # whether some tensor may have its first step ahead

    def bind(self, gate: Gate) -> None:
        """Make the plan, which reads what a gate on the same device has."""
        formula, row = self._formula, ROUTINES[self._formula.routine]
        slots: dict[str, Any] = {"params": self.params}
        for slot in row.slots[2:]:
            if slot.scalar:
                slots[slot.name] = list(self._scalars.tensors[slot.name].split(1))
            elif slot.name == "master_params":
                slots[slot.name] = [member.state.get(MASTER) if self._masters else None for member in self._members]
            elif slot.name in formula.states:
                slots[slot.name] = [member.state[formula.states[slot.name]] for member in self._members]
            elif not slot.optional:  # PyTorch has none, and what a step leaves there is not needed
                slots[slot.name] = [torch.zeros_like(param) for param in self.params]
        slots = {name: arrays_of(tensors) for name, tensors in slots.items()} | {"grads": self.gradients.arrays()}
        by_position = [slots.pop(slot.name) for slot in row.slots if not slot.optional]
        given = slots | gate.arrays | formula.choices | self._numbers
        self._gate, self._plan = gate, gpu.plan(formula.routine, *by_position, **given)
        self.gradients.give(self._plan)

    def stands(self) -> bool:
        """Whether the parameters are where the plan has them; ``param.data = other`` moves one."""
        return self._places == places_of(self.params).tobytes()

    def needs_another_plan(self) -> bool:
        """Whether gradients are what the plan was not made for, or a graph is to go on with the plan's tables."""
        return self.gradients.unlike or (self.captured and self.gradients.changed)

    def look(self) -> bool:
        """Look where the gradients are; whether any has moved, come or gone since the last step."""
        moved = self.gradients.look()
        if moved and self.gradients.changed:
            self._settle()
            self._see()
        self._moved |= moved
        return moved

    def _see(self) -> None:
        """Take note of which parameters have a gradient."""
        self._present = np.array(self.gradients.present)
        self._stepped = [param for param, there in zip(self.params, self.gradients.present, strict=True) if there]

    def step(self) -> None:
        """Update the parameters by the gradients that were looked at."""
        captured = self._follow()
        if self._moved:
            self.gradients.give(self._plan)
            self._moved = False
        if not self._stepped:
            return
        if self._early or self._formula.by_step:
            self._set_of_step(captured)
        self._plan.step()
        self._count(captured)
        increment_version(self._stepped)

    def _follow(self) -> bool:
        """Have the plan on PyTorch's current stream; whether that is being captured."""
        follow(self._plan, self.params[0].device)
        return self._on_gpu and torch.cuda.is_current_stream_capturing()

    def _count(self, captured: bool) -> None:
        """A step more; that of a graph is counted by the device, whenever it is replayed."""
        if captured:
            self.captured = True
            self._skipped -= 1
        else:
            self._taken += self._present
        if self._gate.found_inf is not None:
            self._skipped += self._gate.found_inf
        self._waits |= captured or self._gate.found_inf is not None

    def set(self, formulas: Sequence[Formula]) -> None:
        """Take the numbers of groups whose routine and choices are what they were."""
        before, self._numbers = self._numbers, self._of_tensors(formulas)
        self._formulas, self._formula = formulas, formulas[self._groups[0]]
        self._plan.set(**self._numbers)
        bases = {*BASES.values()} & self._numbers.keys()
        if any(before[name] != self._numbers[name] for name in bases):
            # PyTorch takes the power of the beta that is in force, refopt the product of those that were.
            self._scalars.count(self.counts().tolist(), self._by_tensor())
            self._plan.refresh()

    def counts(self) -> np.ndarray:
        """How many steps each tensor has taken."""
        self._settle()
        return self._taken

    def write(self) -> None:
        """Bring what PyTorch has in a state up to date: the number of steps, and numbers of one per tensor."""
        if self._formula.counts:
            for member, count in zip(self._members, self.counts().tolist(), strict=True):
                member.state["step"].fill_(count)
        elif self._formula.first:  # what a tensor has before its first step, PyTorch has not yet
            for member, count in zip(self._members, self.counts().tolist(), strict=True):
                if not count:
                    member.state.clear()
        self._scalars.write([member.state for member in self._members], self._formula)

    def _settle(self) -> None:
        """Take back the steps that were skipped, which waits for the device."""
        if self._waits:
            self._taken -= round(self._skipped.item()) * self._present
            self._skipped.zero_()
            self._waits = False

    def _by_tensor(self) -> list[dict[str, float]]:
        """The numbers of each tensor."""
        return [
            {name: value[i] if isinstance(value, list) else value for name, value in self._numbers.items()}
            for i in range(len(self.params))
        ]

    def _of_tensors(self, formulas: Sequence[Formula]) -> dict[str, Any]:
        """The numbers of the plan: one for all tensors where their groups agree, else a list of one per tensor."""
        own = {k: formulas[k].numbers for k in dict.fromkeys(self._groups)}
        together = {}
        for name, first in formulas[self._groups[0]].numbers.items():
            alike = all(numbers[name] == first for numbers in own.values())
            together[name] = float(first) if alike else [float(own[k][name]) for k in self._groups]
        return together

    def _set_of_step(self, captured: bool) -> None:
        """Put the numbers that depend on how many steps a tensor has taken into the plan."""
        names = [*{**self._formula.first, **self._formula.by_step}]
        if captured:
            expected = "expected a step that is not captured, since the host counts steps for it"
            raise RuntimeError(f"{self._members[0].label}: {names[0]}: {expected}")
        counts = self.counts().tolist()
        for name in names:
            steps = zip(self._groups, counts, strict=True)
            self._plan.set(**{name: [self._formulas[k].number_at(name, count + 1) for k, count in steps]})
        self._early = self._early and not all(counts)


def _counts(members: Sequence[Member]) -> np.ndarray:
    """The steps that each has taken, by its state."""
    counts = [torch.as_tensor(member.state["step"]).reshape(()).to(torch.float64) for member in members]
    devices = {count.device for count in counts}
    by_device = {each: iter(torch.stack([x for x in counts if x.device == each]).tolist()) for each in devices}
    return np.array([next(by_device[count.device]) for count in counts]).astype(np.int64)
