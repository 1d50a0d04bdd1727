"""PyTorch optimizers: `torch.optim`, and any other class derived from `torch.optim.Optimizer`.

Their states and numbers have the names of `refopt.state.peers`, as in most such classes. A case's states are put into
``optimizer.state``; initial states are left to the optimizer itself.
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from refopt.catalog import Routine
from refopt.checks.arguments import is_number, kind_of
from refopt.checks.dtypes import arithmetic, arithmetic_name, numpy_dtype
from refopt.oracle.cases import COUNTED, Dtypes, alike, choices_of, number, scalar_after
from refopt.oracle.exact.cases import Case, Outcome
from refopt.oracle.subject import GATE, Lacks, Wrong
from refopt.oracle.subjects.shared import as_told, check_dtypes, is_initial
from refopt.oracle.subjects.torch import TorchOptimizer, TorchRun
from refopt.oracle.subjects.torch_peers import ON_REQUEST
from refopt.oracle.variants import by_request, defaults
from refopt.state.peers import SWITCHED, Peer, to_group

EXACT_LR = 0.125  # a power of 2, so that states with and without it have the same digits


class Template(NamedTuple):
    """What a step leaves: a parameter's state; the step count in its group, or as an attribute; marks.

    A mark is anything else that a step has changed in its group, such as ``setup``, which says that states exist.
    """

    entry: dict[str, Any]
    in_group: Any
    in_optimizer: Any
    marks: dict[str, Any]


class TorchRoutine(TorchOptimizer):
    """A class of optimizers, or a function ``make(params, **numbers)`` that returns one, as a `Subject`.

    Attributes:
        fixed: refopt's numbers and choices that it fixes.
        dtypes: those in which it is checked by default.
        always: optional states that it always has.
        notes: remarks for the reader of a report.
    """

    def __init__(
        self, row: Routine, make: Callable[..., Any], name: str, *, options: Mapping[str, Any], accepts: Any,
        peer: Peer, step: str, without_lr: tuple[str, ...], device: str = "cpu",
    ) -> None:
        self.row, self.peer, self.step = row, peer, step
        self.without_lr = tuple(slot for slot in without_lr if slot in peer.states)
        self.fixed: dict[str, Any] = {}
        self.asleep: set[str] = set()
        numbers, choices = defaults(row.name, by_request(row.name))
        self._neutral: dict[str, Any] = numbers | choices
        self._templates: dict[Any, Template] = {}
        self.numbers = _numbers(row, peer)
        self.always = tuple(ours for ours, theirs in peer.switches.items() if options.get(theirs))
        super().__init__(make, options, device, name, accepts)
        self.module = str(getattr(self.kind.step, "__module__", ""))
        if self.module.startswith(("torch.optim.", "timm.")) and not self.scales:
            self.dtypes = self.dtypes[:2]
            self.notes.append("16-bit dtypes on request: unfused, each operation is rounded to the parameter's dtype")
        self._settle()

    def built(self, params: list[Any], numbers: Any = None, optional: tuple[str, ...] | None = None) -> Any:
        """An optimizer with the numbers of a routine's step; by default usual ones."""
        row = self.numbers if numbers is None else numbers
        optional = self.always if optional is None else optional
        optimizer = super().built(params, self._group(row, optional))
        self._number(optimizer, [], [row], optional)
        return optimizer

    def _settle(self) -> None:
        """Find the numbers that the options or the rule fix."""
        peer, own = self.peer, dict(self.options)
        self.fixed |= peer.choices
        if "betas" in own:
            own["beta1"], own["beta2"] = own.pop("betas")
        for ours, theirs in peer.numbers.items():
            name = ours if ours in own else theirs
            if name in own:
                self.fixed[ours] = own[name] if ours in self.row.choices else float(own[name])
                self.fixed[ours] = _ours(ours, self.fixed[ours])
            elif ours in ON_REQUEST and self.group.get(theirs) == self._neutral[ours]:
                self.asleep.add(ours)
            elif theirs in peer.only and theirs in self.group:
                self.fixed[ours] = peer.only[theirs]
                self.notes.append(f"{theirs} is {peer.only[theirs]}: otherwise its rule differs from {self.row.name}")
        if self.without_lr:
            self.fixed.setdefault("lr", EXACT_LR)
        for name, value in peer.only.items():
            if name not in peer.numbers.values() and self.group.get(name, value) != value:
                self.notes.append(f"{name}={self.group[name]!r}: the rule of {self.row.name} needs {value!r}")

    def takes(self, what: str) -> bool:
        if what in GATE:
            return self.scales
        slot = next((slot for slot in self.row.slots if slot.name == what), None)
        if slot is None:
            theirs = self.peer.numbers.get(what)
            names = "betas" if theirs in ("beta1", "beta2") else theirs, theirs
            known = any(name in self.group or name in self.accepts for name in names)
            return known and what not in self.fixed and what not in self.asleep
        if slot.optional:
            switch = self.peer.switches.get(what, "")
            return switch in self.group and self.options.get(switch, True)
        return what in ("params", "grads") or what in self.peer.states or self._follows(what)

    def _follows(self, slot: str) -> bool:
        """Whether a scalar follows from the step count."""
        return self.peer.counts and slot in COUNTED and slot in self.row.scalars

    def call(self, case: Case) -> Any:
        """How a script calls it."""
        from refopt.oracle.subjects.calls import of_torch

        return of_torch(self, case)

    def stores(self, dtype: str) -> Dtypes:
        """The dtypes of a tensor's slots: states may be wider than the parameter."""
        try:
            entry = self._template(numpy_dtype(dtype), self.numbers, ()).entry
        except Exception:  # a case of the step law will show it
            return alike(dtype)
        states = [entry.get(theirs) for ours, theirs in self.peer.states.items() if ours not in self.row.scalars]
        dtypes = {str(x.dtype).removeprefix("torch.") for x in states if isinstance(x, self.torch.Tensor)}
        return Dtypes(dtype, dtype, arithmetic_name(dtype)) if dtypes == {arithmetic_name(dtype)} else alike(dtype)

    def run(self, case: Case) -> Outcome:
        if not len(case):
            raise Lacks("an empty list of parameters")
        check_dtypes(case, self.dtypes, self.stores)
        if self.group.get("capturable") and self.arrays.device.type == "cpu" and self.module.startswith("torch.optim."):
            raise Lacks("capturable=True needs tensors on a GPU: device='cuda'")
        optional = self._optional(case)
        rows = [self._rows(case, step) for step in case.steps]
        run = TorchRun(self, case.params, None, len(rows[0]) > 1, rows[0][0], optional)
        self._check_changes(run.optimizer, rows, optional)
        if not is_initial(case, self.peer.states):
            self._fill(case, run, rows[0], optional)
        for step, numbers in zip(case.steps, rows, strict=True):
            self._number(run.optimizer, run._params, numbers, optional)
            run.step(case.grads, **self._gate(step, case.params[0].dtype))
        self.again = partial(self._outcome, case, run, rows[-1])
        return self.again()

    def _fill(self, case: Case, run: TorchRun, rows: list[dict[str, Any]], optional: tuple[str, ...]) -> None:
        """Put a case's states and step count where a step leaves them."""
        for i, p in enumerate(run._params):
            run.optimizer.state[p] = self._entry(case, i, rows[min(i, len(rows) - 1)], optional)
        template = self._template(case.params[0].dtype, rows[0], optional)
        for group in run.optimizer.param_groups:
            group.update(template.marks)
            if template.in_group is not None:
                group[self.step] = _like(self.torch, template.in_group, case.count - 1)
        if template.in_optimizer is not None:
            setattr(run.optimizer, self.step, _like(self.torch, template.in_optimizer, case.count - 1))

    def _optional(self, case: Case) -> tuple[str, ...]:
        """The optional states of a case, each of which all tensors or none must have."""
        some = {name: [x is not None for x in case.lists()[name]] for name in self.peer.switches}
        for name, there in some.items():
            if any(there) and not all(there):
                raise Lacks(f"{name} for only some tensors")
        return tuple(name for name, there in some.items() if any(there))

    def _rows(self, case: Case, step: Mapping[str, Any]) -> list[dict[str, Any]]:
        """The numbers and choices of a step, rounded to the arithmetic: one row for all tensors, or one for each."""
        real: Any = arithmetic(case.params[0].dtype.name)
        named = {name: x for name, x in step.items() if name not in GATE}
        apart = any(isinstance(x, list) for x in named.values())
        return [
            {name: as_told(self.row, name, real(x[i] if isinstance(x, list) else x)) for name, x in named.items()}
            | case.choices
            for i in range(len(case) if apart else 1)
        ]

    def _number(self, optimizer: Any, params: list[Any], rows: list[dict[str, Any]], optional: tuple[str, ...]) -> None:
        """Set numbers in the groups: one row for all, or one per tensor; options are kept."""
        for group in optimizer.param_groups:
            members = {id(p) for p in group["params"]}
            own = rows if len(rows) == 1 else [row for p, row in zip(params, rows, strict=True) if id(p) in members]
            if any(row != own[0] for row in own):
                raise Lacks("numbers for each tensor of a group")
            numbers = self._group(own[0], optional) if own else {}
            group.update({name: x for name, x in numbers.items() if name in group and name not in self.options})

    def _check_changes(self, optimizer: Any, rows: list[list[dict[str, Any]]], optional: tuple[str, ...]) -> None:
        """Refuse changing numbers that are in no group."""
        if all(row == rows[0] for row in rows):
            return
        known = {*optimizer.param_groups[0], *self.options, "beta1", "beta2"}
        outside = [name for name in self._group(rows[0][0], optional) if name in self.accepts and name not in known]
        if outside:
            raise Lacks(f"steps with changing numbers: {outside[0]} is in no group")

    def _group(self, numbers: Mapping[str, Any], optional: tuple[str, ...]) -> dict[str, Any]:
        """Numbers and switches by the optimizer's names; options set the rest."""
        try:
            numbers = self._neutral | dict(numbers) | dict(self.peer.choices)  # its rule may be checked with other ones
            group = to_group("check", self.row, numbers, dict.fromkeys(optional), self.peer)
        except ValueError as error:
            raise Lacks(str(error)) from None
        group |= {name: numbers[name] for name in ("beta1", "beta2") if name in numbers}
        left_alone = self.peer.only.keys() - self.peer.numbers.values()
        return {name: x for name, x in group.items() if name not in left_alone}

    def _entry(self, case: Case, i: int, numbers: dict[str, Any], optional: tuple[str, ...]) -> dict[str, Any]:
        """The state of a parameter, with the same types as a step leaves."""
        template = self._template(case.params[i].dtype, numbers, optional)
        # The other entries may tell the optimizer that states exist.
        entry = {name: x for name, x in template.entry.items() if _is_mark(x)}
        for ours, theirs in self.peer.states.items():
            x = case.lists()[ours][i]
            if x is None or (theirs not in template.entry and theirs == "momentum_buffer" and numbers.get("mu") == 0):
                continue
            if theirs not in template.entry:
                raise NotImplementedError(_lacking(ours, theirs, template.entry))
            if ours in self.row.scalars:
                entry[theirs] = _like(self.torch, template.entry[theirs], float(x.reshape(-1)[0]))
            else:
                without = x / x.dtype.type(numbers["lr"]) if ours in self.without_lr else x
                entry[theirs] = self.arrays.of(np.asarray(without, x.dtype))
        if self.step in template.entry:
            entry[self.step] = _like(self.torch, template.entry[self.step], case.count - 1)
        elif self.peer.counts and template.in_group is None and template.in_optimizer is None:
            raise NotImplementedError(f"no {self.step} in its states, groups or attributes: names={{'step': ...}}")
        return entry

    def _template(self, dtype: Any, numbers: dict[str, Any], optional: tuple[str, ...]) -> Template:
        """What a step leaves in the state of a parameter, and where the step count is."""
        key = dtype, optional, numbers.get("mu") == 0
        if key not in self._templates:
            run = TorchRun(self, [self.ones(dtype)], None, False, numbers, optional)
            group = run.optimizer.param_groups[0]
            before = {name: x for name, x in group.items() if _is_mark(x)}
            run.step([self.ones(dtype)])
            marks = {name: x for name, x in group.items() if _is_mark(x) and (name not in before or before[name] != x)}
            entry, in_group = dict(run.optimizer.state.get(run._params[0], {})), group.get(self.step)
            self._templates[key] = Template(entry, in_group, self._in_optimizer(run.optimizer), marks)
        return self._templates[key]

    def _in_optimizer(self, optimizer: Any) -> Any:
        """The step count in an attribute of the optimizer; ``None`` if there is none."""
        value = vars(optimizer).get(self.step)
        return value if is_number(value) or isinstance(value, self.torch.Tensor) else None

    def _gate(self, step: Mapping[str, Any], dtype: Any) -> dict[str, Any]:
        """The scale and flag that ``torch.amp.GradScaler`` passes to fused optimizers."""
        factor, flag = (None if x is None else float(x.reshape(-1)[0]) for x in map(step.get, GATE))
        if flag not in (None, 0, 1):
            raise Lacks("found_inf is 0 or 1 in PyTorch")
        scale = None if factor is None else float(np.divide(1.0, factor))
        held = None if scale is None else float(np.float32(scale))
        if dtype == np.float64 and held != scale:
            raise Lacks("grad_scale is fp32 in PyTorch")
        return {"found_inf": flag, "scale": scale}

    def _outcome(self, case: Case, run: TorchRun, rows: list[dict[str, Any]]) -> Outcome:
        optimizer, params = run.optimizer, run._params
        lists = case.lists()
        got: Outcome = {"params": [self.arrays.back(p) for p in params]}
        group_of = {id(p): group for group in optimizer.param_groups for p in group["params"]}
        for i, p in enumerate(params):
            entry, numbers = optimizer.state.get(p, {}), rows[min(i, len(rows) - 1)]
            places = entry, group_of[id(p)], {self.step: self._in_optimizer(optimizer)}
            steps = next((place[self.step] for place in places if self.step in place), None) if entry else 0
            for slot in case.routine.slots[2:-1]:
                known = lists[slot.name][i]
                if slot.name in self.peer.states and known is not None:
                    theirs = self.peer.states[slot.name]
                    if theirs == "momentum_buffer" and numbers.get("mu") == 0:
                        continue
                    value = self._read(slot.name, theirs, entry, known, case.grads[i] is None, numbers)
                elif self._follows(slot.name) and steps is not None:
                    real = known.dtype.type
                    value = scalar_after(slot.name, numbers, int(steps), real)
                else:
                    continue
                got.setdefault(slot.name, []).append(value)
        return got

    def _read(self, ours: str, theirs: str, entry: Mapping[str, Any], known: np.ndarray, unused: bool,
              numbers: Mapping[str, Any]) -> np.ndarray:
        """One state after the step. Before the first gradient there is none."""
        value = entry.get(theirs)
        if value is None:
            if unused:
                return known
            lacking = _lacking(ours, theirs, entry)
            lost = any(theirs in template.entry for template in self._templates.values())
            raise Wrong(lacking) if lost else NotImplementedError(lacking)
        if ours in self.row.scalars:
            return np.full(1, float(value), known.dtype)
        if not isinstance(value, self.torch.Tensor):
            raise Wrong(f"optimizer.state: {theirs}: expected a tensor, got {kind_of(value)}")
        array = self.arrays.back(value)
        return np.asarray(array * array.dtype.type(numbers["lr"])) if ours in self.without_lr else array


def _ours(name: str, value: Any) -> Any:
    """The value of an option as refopt's number or choice."""
    if name in SWITCHED:
        return next(choice for choice, switch in SWITCHED[name].items() if switch == bool(value))
    return 0.96**value if name == "decay_base" else value


def renamed(peer: Peer, names: Mapping[str, str]) -> Peer:
    """A row of the table with other names for some states and numbers."""
    states = {ours: names.get(ours, theirs) for ours, theirs in peer.states.items()}
    return peer._replace(states=states, numbers={x: names.get(x, theirs) for x, theirs in peer.numbers.items()})


def _lacking(ours: str, theirs: str, entry: Mapping[str, Any]) -> str:
    named = ", ".join(map(str, entry)) or "none"
    return f"optimizer.state: expected {theirs} for {ours}, or names={{{ours!r}: ...}}, got {named}"


def _is_mark(x: Any) -> bool:
    """Whether it is neither a number nor a tensor."""
    return x is None or isinstance(x, bool | str)


def _like(torch: Any, template: Any, value: float) -> Any:
    """A number of the same type as another."""
    if isinstance(template, torch.Tensor):
        return torch.full_like(template, value)
    return type(template)(value)


def _numbers(row: Routine, peer: Peer) -> dict[str, Any]:
    """Numbers and choices of a first step."""
    told = peer.numbers.keys() - {*ON_REQUEST}
    numbers: dict[str, Any] = {h.name: number(h) if h.name in told else h.default for h in row.hypers}
    numbers |= {ours: peer.only[x] for ours, x in peer.numbers.items() if x in peer.only}
    return numbers | choices_of(row) | dict(peer.choices)
