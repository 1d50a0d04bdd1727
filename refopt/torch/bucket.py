"""The parameters that one plan updates: those of one device, arithmetic type, routine and choices."""

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from refopt import gpu
from refopt.cpu.lazy import LAZY
from refopt.state.steps import BASES
from refopt.torch import coded
from refopt.torch.arrays import arrays_of, follow_stream, require_apart
from refopt.torch.formulas import Formula
from refopt.torch.gate import Gate
from refopt.torch.gradients import Gradients, Rows
from refopt.torch.masters import MASTER, Masters
from refopt.torch.options import SEEDS
from refopt.torch.recent import Recent
from refopt.torch.sharded import is_dtensor, local, spread_of
from refopt.torch.states import Member, Scalars, Steps, completed, numbers_of, whole


@dataclass
class _Planned:
    """A plan for gradients of one kind, and whether a graph has a step of it, so that its tables must stay."""

    plan: gpu.Plan
    captured: bool = False


class Watched:
    """Tensors that plans have, as they were when the plans were made."""

    def __init__(self, tensors: Sequence[Tensor], form: Any) -> None:
        """Record them; parts and placements of DTensors."""
        self._tensors = list(tensors)
        self._sharded = any(map(is_dtensor, tensors))
        self.steady, self._spreads = form.Steady(self._parts()), self._spreads_now()

    def is_current(self) -> bool:
        """Whether they still are; whoever has looked at them in between."""
        return self.steady(self._parts()) and self._spreads_now() == self._spreads

    def _parts(self) -> list[Tensor]:
        return list(map(local, self._tensors)) if self._sharded else self._tensors

    def _spreads_now(self) -> list[tuple | None]:
        return list(map(spread_of, self._tensors)) if self._sharded else []


class Bucket:
    """Parameters with states, and the plans that update them in place: one for each set of given gradients.

    The host counts the steps of each. If only the device knows whether a step was taken, since a scaler may have found
    an inf, the device counts the skipped ones, and `settle` waits for that count.

    Attributes:
        params: the parameters.
        gradients: the reader of their gradients.
        masters: those of parameters that have one.
    """

    def __init__(
        self, members: Sequence[Member], formulas: Sequence[Formula], form: Any, states_too: bool, lazy: bool
    ) -> None:
        """Complete the states; `bind` makes the plan, and `commit` puts the states where PyTorch has them.

        Args:
            members: the parameters.
            formulas: of each group of the optimizer, by number.
            form: that of `refopt.torch.host`.
            states_too: whether other code may refer to the states.
            lazy: whether the gradients are sparse, and name the rows to update.
        """
        self._members, self._form = members, form
        self._groups = [member.group for member in members]
        self._formulas, self._formula = formulas, formulas[members[0].group]
        self.params = [member.param for member in members]
        self._sharded = any(map(is_dtensor, self.params))
        self._on_gpu = local(self.params[0]).is_cuda
        self._lazy, self._turning = lazy, [member.param for member in members if formulas[member.group].lazy]
        self._watched = Watched(self.params, form)
        self._compared = not (lazy or self._sharded)  # with the gradients, in one pass
        steady = self._watched.steady if self._compared else None
        self._labels = [member.label for member in members]
        grads = [f"{label}: grad" for label in self._labels]
        self.gradients: Any = Rows(self.params, grads) if lazy else Gradients(
            self.params, grads, form, steady, "; sparse='rows' takes sparse ones" * (self._formula.routine in LAZY))
        self._states = [completed(m.label, m.param, m.state, formulas[m.group]) for m in members]
        self._check_apart()
        self.masters = Masters(self.params, [kept.get(MASTER) for kept in self._states], form)
        held = [member.state for member in members]
        begun = [any(state.get(key) is not None for key in self._formula.states.values()) for state in held]
        self.steps = Steps(whole(self._labels, numbers_of(held, "step", 0).tolist() if self._formula.counts else begun))
        self._skipped = torch.zeros(1, dtype=torch.float64, device=self.params[0].device)
        self._waits = False  # whether that may be anything but 0
        self._see()
        self._scalars = Scalars(self._formula.row, list(map(local, self.params)))
        self._scalars.read(held, self._formula)
        self._views = ({"step": self.steps.views} if self._formula.counts else {}) | self._scalars.views(self._formula)
        self._numbers = self._of_tensors(formulas)
        self._count_scalars()
        self._plans: Recent[tuple, _Planned] = Recent()  # by kind of gradients
        self._of_graphs: list[_Planned] = []
        self._moved = False  # whether the plan has yet to be told
        self._hidden: list[int] = []  # whose states PyTorch does not have yet
        self._early = bool(self._formula.first)  # whether some tensor may have its first step ahead
        self._others: Watched | None = None  # states, if other code may refer to them
        if states_too:
            self.watch_states()

    def watch_states(self) -> None:
        """Compare states, too, before each step: from now on, other code may refer to them."""
        if self._others is None:
            kept = [x for kept in self._states for x in kept.values()]
            self._others = Watched([*kept, *(x for views in self._views.values() for x in views)], self._form)

    def _check_apart(self) -> None:
        """Refuse states that share memory with another or a parameter."""
        found = [(param, member.label) for param, member in zip(self.params, self._members, strict=True)]
        for member, kept in zip(self._members, self._states, strict=True):
            found += [(x, f"{member.label}: state[{key!r}]") for key, x in kept.items()]
        require_apart(found)

    def bind(self, gate: Gate) -> None:
        """Make a plan that reads the numbers of a gate on the same device."""
        self._gate = gate
        self._plans.use(self.gradients.kind, _Planned(self._made()))
        self.gradients.pass_to(self._now.plan)

    def commit(self) -> None:
        """Put the tensors that kernels write in the parameters' states, where PyTorch has them."""
        for i, (member, kept) in enumerate(zip(self._members, self._states, strict=True)):
            member.state.put({key: views[i] for key, views in self._views.items()} | kept)

    @property
    def _now(self) -> _Planned:
        return self._plans[self._plans.last]

    @property
    def captured(self) -> bool:
        """Whether a graph has a step of one of the plans."""
        return bool(self._of_graphs) or any(each.captured for each in self._plans.values())

    def _made(self) -> gpu.Plan:
        """A plan for the current gradients."""
        formula, row = self._formula, self._formula.row
        params = list(map(local, self.params))
        slots: dict[str, Any] = {"params": params}
        for slot in row.slots[2:]:
            if slot.scalar:
                slots[slot.name] = list(self._scalars.tensors[slot.name].split(1))
            elif slot.name == "master_params":
                slots[slot.name] = [kept.get(MASTER) for kept in self._states]
            elif slot.name in formula.states:
                slots[slot.name] = [kept[formula.states[slot.name]] for kept in self._states]
            elif not slot.optional:  # PyTorch has none, and what a step leaves there is not needed
                slots[slot.name] = list(map(coded.zeros if formula.coded else torch.zeros_like, params))
        slots = {name: arrays_of([local(x) for x in tensors]) for name, tensors in slots.items()}
        if formula.blocks is not None:
            slots["blocks"] = [self._formulas[k].blocks for k in self._groups]
        make: Any = gpu.lazy_plan if self._lazy else gpu.plan
        grads = self.gradients.arrays() if self._lazy else [self.gradients.arrays()]
        by_position = [slots.pop("params"), *grads, *(slots.pop(x.name) for x in row.slots[2:] if not x.optional)]
        with self._reworded():
            return make(formula.routine, *by_position, **slots, **self._gate.arrays, **formula.choices, **self._numbers)

    @contextmanager
    def _reworded(self) -> Iterator[None]:
        try:
            yield
        except (TypeError, ValueError) as error:
            raise type(error)(self._in_pytorchs_words(str(error))) from None

    def _in_pytorchs_words(self, message: str) -> str:
        """A plan's error message, such as ``merged_adamw: moment1s[3]: expected ...``, with PyTorch's names."""
        found = re.match(r"merged_\w+: (\w+)\[(\d+)\]: (.*)", message, re.DOTALL)
        if not found or int(found[2]) >= len(self._members):
            return message
        slot, where = found[1].removesuffix("s"), self._members[int(found[2])].label
        keys = {"grad": ": grad", "value": ": grad", "master_param": f": state[{MASTER!r}]"}
        keys |= {ours.removesuffix("s"): f": state[{key!r}]" for ours, key in self._formula.states.items()}
        return f"{where}{keys.get(slot, '')}: {found[3]}"

    def is_current(self, before_compare: bool = False) -> bool:
        """Whether parameters and states are the tensors that the plans have; ``param.data = x`` moves one.

        ``before_compare`` leaves out what `compare` finds.
        """
        if self._turning and any(x.grad is not None and x.grad.is_sparse != self._lazy for x in self._turning):
            return False
        if not (before_compare and self._compared) and not self._watched.is_current():
            return False
        if self._others is None or not self._others.is_current():
            return self._others is None
        if self._formula.counts and self.steps.written():
            self.steps.begin(whole(self._labels, self.steps.shown.tolist()))
            self._count_scalars()
            self._now.plan.refresh()
        elif self._scalars.written():
            self._now.plan.refresh()
        return True

    def compare(self) -> bool | None:
        """Pass the gradients to the plan; returns whether any has moved, appeared or disappeared since the last.

        If a parameter is another tensor than planned, nothing is passed, and the answer is None.
        """
        if (moved := self.gradients.compare()) is None:
            return None
        self._moved |= moved
        if self.gradients.kind is not self._plans.last and self.gradients.kind != self._plans.last:
            self.settle()
            self._choose(self.gradients.kind)
            self._see()
        follow_stream(self._now.plan, self._skipped.device)
        if self._moved:
            with self._reworded():
                self.gradients.pass_to(self._now.plan)
            self._moved = False
        return moved

    def _choose(self, kind: tuple) -> None:
        """Choose the plan for gradients of a kind: the one used last for that kind, or a new one."""
        planned = self._now if self._lazy else self._plans.get(kind) or _Planned(self._made())
        if self._now.captured:  # its tables are a graph's
            self._of_graphs.append(self._plans.pop(self._plans.last))
        if kind in self._plans:
            planned.plan.set(**self._numbers)
            planned.plan.refresh()
        self._plans.use(kind, planned)

    def _see(self) -> None:
        """Record which parameters have a gradient."""
        self._present = self.gradients.present.copy()
        stepped = [param for param, there in zip(self.params, self.gradients.present, strict=True) if there]
        self._stepped = [*stepped, *map(local, stepped)] if self._sharded else stepped

    def step(self) -> None:
        """Update the parameters by the gradients that were looked up."""
        plan = self._now.plan
        captured = plan.device.capturing(plan.stream)
        for i in self._hidden:
            self._members[i].state.put(self._states[i])
        self._hidden = []
        if not self._stepped:
            return
        if self._early or self._formula.by_step:
            self._set_of_step(captured)
        plan.step()
        self._count(captured)
        self._form.increment_version(self._stepped)
        self.masters.known()

    def _count(self, captured: bool) -> None:
        """Count a step; the device counts a captured one, at every replay."""
        if captured:
            self._now.captured = True
            self._skipped -= 1
        else:
            self.steps.count(self._present)
            if self._others is not None:
                self.steps.show()
        if self._gate.found_inf is not None:
            self._skipped += self._gate.found_inf
        self._waits |= captured or self._gate.found_inf is not None
        if self._waits and not self._on_gpu:
            self.settle()

    def set(self, formulas: Sequence[Formula]) -> None:
        """Set the numbers of groups whose routine and choices are unchanged."""
        numbers = self._of_tensors(formulas)
        changed = {name: value for name, value in numbers.items() if value != self._numbers[name]}
        self._now.plan.set(**changed)
        self._numbers, self._formulas, self._formula = numbers, formulas, formulas[self._groups[0]]
        if not {*BASES.values()}.isdisjoint(changed):
            # PyTorch takes the power of the current beta, refopt the product of the past ones.
            self.settle()
            self._count_scalars()
            self._now.plan.refresh()

    def settle(self) -> None:
        """Subtract the steps that were skipped, which waits for the device."""
        if self._waits:
            self.steps.count(self._present, -round(self._skipped.item()))
            self.steps.show()
            self._skipped.zero_()
            self._waits = False

    def show(self, compares: bool) -> None:
        """Bring the states up to date, as PyTorch's class would have them."""
        self.masters.follow(compares)
        self.settle()
        if self._others is None:  # or they are up to date, unless somebody has written them
            self.steps.show()
        if self._formula.first:  # PyTorch has no such state before a tensor's first step
            for i in np.flatnonzero(self.steps.taken == 0).tolist():
                state, kept = self._members[i].state, self._states[i]
                if state.keys() == kept.keys() and all(state[key] is x for key, x in kept.items()):
                    state.empty()
                    self._hidden.append(i)

    def _count_scalars(self) -> None:
        """Set the scalars that depend on the numbers of steps."""
        own = [{name: value[i] if isinstance(value, list) else value for name, value in self._numbers.items()}
               for i in range(len(self.params))]
        self._scalars.count(self.steps.taken.tolist(), own)

    def _of_tensors(self, formulas: Sequence[Formula]) -> dict[str, Any]:
        """The numbers of the plan: one for all tensors if their groups agree, else a list with one per tensor."""
        own = {k: formulas[k].numbers for k in dict.fromkeys(self._groups)}
        together: dict[str, Any] = {}
        for name, first in formulas[self._groups[0]].numbers.items():
            alike = all(numbers[name] == first for numbers in own.values())
            together[name] = float(first) if alike else [float(own[k][name]) for k in self._groups]
        if "seed" in together:  # tensors of one seed are rounded by the same bits
            count = len(self.params)
            together["seed"] = [int(own[k]["seed"] * count + i) % SEEDS for i, k in enumerate(self._groups)]
        return together

    def _set_of_step(self, captured: bool) -> None:
        """Set the plan's numbers that depend on how many steps a tensor has taken."""
        names = [*{**self._formula.first, **self._formula.by_step}]
        if captured:
            expected = "expected a step that is not captured, since the host counts steps for it"
            raise RuntimeError(f"{self._members[0].label}: {names[0]}: {expected}")
        self.settle()
        counts = self.steps.taken.tolist()
        for name in names:
            steps = zip(self._groups, counts, strict=True)
            self._now.plan.set(**{name: [self._formulas[k].number_at(name, count + 1) for k, count in steps]})
        self._early = self._early and not all(counts)
