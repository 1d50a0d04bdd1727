"""A run of a PyTorch optimizer. A checkpoint is its ``state_dict``, saved and loaded by ``torch``."""

import io
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from refopt.checks.arguments import is_number, kind_of
from refopt.oracle.cases import scalar_after
from refopt.oracle.exact.cases import Case, Outcome
from refopt.oracle.memory import Placed
from refopt.oracle.subject import Lacks, Wrong
from refopt.oracle.subjects.shared import LibraryRun


class Template(NamedTuple):
    """What a step leaves: a parameter's state; the step count in its group, or as an attribute; marks.

    A mark is anything else that a step has changed in its group, such as ``setup``, which says that states exist.
    """

    entry: dict[str, Any]
    in_group: Any
    in_optimizer: Any
    marks: dict[str, Any]


class States:
    """Where an optimizer has the states of a routine and its step count, as far as its steps have shown.

    Attributes:
        templates: by dtype, optional states, and whether there is momentum.
    """

    def __init__(self, of: Any) -> None:
        self.of = of
        self.templates: dict[Any, Template] = {}

    def entry(self, case: Case, i: int, numbers: dict[str, Any], optional: tuple[str, ...]) -> dict[str, Any]:
        """The state of a parameter, with the same types as a step leaves."""
        template = self.template(case.params[i].dtype, numbers, optional)
        # The other entries may tell the optimizer that states exist.
        entry = {name: x for name, x in template.entry.items() if _is_mark(x)}
        for ours, theirs in self.of.peer.states.items():
            x = case.lists()[ours][i]
            if x is None or (theirs not in template.entry and theirs == "momentum_buffer" and numbers.get("mu") == 0):
                continue
            if theirs not in template.entry:
                raise NotImplementedError(self.lacking(ours, theirs, template.entry))
            if ours in self.of.row.scalars:
                entry[theirs] = self.like(template.entry[theirs], float(x.reshape(-1)[0]))
            else:
                without = x / x.dtype.type(numbers["lr"]) if ours in self.of.without_lr else x
                entry[theirs] = self.of.arrays.of(np.asarray(without, x.dtype))
        if self.of.counter in template.entry:
            entry[self.of.counter] = self.like(template.entry[self.of.counter], case.count - 1)
        elif self.of.peer.counts and template.in_group is None and template.in_optimizer is None:
            lacks = f"no {self.of.counter} in its states, groups or attributes"
            raise NotImplementedError(f"{lacks}: names={{'step': ...}}")
        return entry

    def template(self, dtype: Any, numbers: dict[str, Any], optional: tuple[str, ...]) -> Template:
        """What a step leaves in the state of a parameter, and where the step count is."""
        key = dtype, optional, numbers.get("mu") == 0
        if key not in self.templates:
            run = TorchRun(self.of, [self.of.ones(dtype)], None, False, numbers, optional)
            group = run.optimizer.param_groups[0]
            before = {name: x for name, x in group.items() if _is_mark(x)}
            run.step([self.of.ones(dtype)])
            marks = {name: x for name, x in group.items() if _is_mark(x) and (name not in before or before[name] != x)}
            entry, in_group = dict(run.optimizer.state.get(run._params[0], {})), group.get(self.of.counter)
            self.templates[key] = Template(entry, in_group, self.in_optimizer(run.optimizer), marks)
        return self.templates[key]

    def in_optimizer(self, optimizer: Any) -> Any:
        """The step count in an attribute of the optimizer; ``None`` if there is none."""
        value = vars(optimizer).get(self.of.counter)
        return value if is_number(value) or isinstance(value, self.of.torch.Tensor) else None

    def like(self, template: Any, value: float) -> Any:
        """A number of the same type as another."""
        if isinstance(template, self.of.torch.Tensor):
            return self.of.torch.full_like(template, value)
        return type(template)(value)

    def lacking(self, ours: str, theirs: str, entry: Mapping[str, Any]) -> str:
        named = ", ".join(map(str, entry)) or "none"
        return f"optimizer.state: expected {theirs} for {ours}, or names={{{ours!r}: ...}}, got {named}"


class TorchRun(LibraryRun):
    """A run; ``told`` are further arguments of `torch.TorchOptimizer.built`."""

    def __init__(self, of: Any, params: Sequence[Any], saved: Any = None, apart: bool = False, *told: Any) -> None:
        if not params:
            raise Lacks("an empty list of parameters")
        super().__init__(of, params)
        self.torch = of.torch
        self._params = [of.parameter(x) for x in self._params]
        try:
            self.optimizer = of.built([{"params": [p]} for p in self._params] if apart else list(self._params), *told)
        except (TypeError, NotImplementedError) as error:
            if apart and not isinstance(of.make, type):  # a function may make groups itself
                raise Lacks("takes no groups") from error
            raise
        if callable(train := getattr(self.optimizer, "train", None)):
            train()  # some, such as schedule-free ones, need this before a step
        if saved is not None:
            of_file = isinstance(saved, bytes)
            loaded = self.torch.load(io.BytesIO(saved), weights_only=False) if of_file else saved
            self.optimizer.load_state_dict(loaded)

    def add(self, params: Sequence[Placed]) -> None:
        wholes, parts = self._lists(params)
        added = [self.of.parameter(part) for part in parts]
        self.optimizer.add_param_group({"params": added})
        self._params += added
        self._wholes += wholes
        self._grads = []

    def step(
        self, grads: Sequence[Any], found_inf: float | None = None, refill: bool = False, scale: float | None = None
    ) -> None:
        """``scale`` divides gradients, for optimizers that do this themselves."""
        if refill and self._grads:
            self.optimizer.zero_grad(set_to_none=False)
            for p, g in zip(self._params, grads, strict=True):
                if g is not None:
                    p.grad.copy_(self.of.arrays.of(g.view().copy()))
        else:
            for p, g in zip(self._params, self._given(grads), strict=True):
                p.grad = g
        gate = {} if found_inf is None else {"found_inf": found_inf}
        if (gate and not self.of.named) or scale is not None:
            gate["grad_scale"] = 1.0 if scale is None else scale
        named = {
            name: self.torch.full((), x, dtype=self.torch.float32, device=self.of.arrays.device)
            for name, x in gate.items()
        }
        told = {} if self.of.named else named
        for name, x in told.items():
            setattr(self.optimizer, name, x)
        named = named if self.of.named else {}
        if self.of.needs_closure:
            named["closure"] = lambda: self.torch.zeros(())  # the gradients are set already
        try:
            self.optimizer.step(**named)
        finally:
            for name in told:
                delattr(self.optimizer, name)

    def closed(self, grads: Sequence[Any]) -> None:
        """A step whose closure computes the gradients."""
        if not self.of.takes_closure:
            raise Lacks("takes no closure")
        parts, loss = self._given(grads), self.torch.full((), 1.5)

        def closure() -> Any:
            if not self.torch.is_grad_enabled():
                raise Wrong("step: expected to call the closure with gradients enabled, got them disabled")
            for p, g in zip(self._params, parts, strict=True):
                p.grad = g
            return loss

        if (got := self.optimizer.step(closure)) is not None and float(got) != float(loss):
            raise Wrong(f"step: expected the loss that the closure returns, {float(loss)}, got {got!r}")

    def states(self) -> list[dict[str, np.ndarray]]:
        return [self._entry(self.optimizer.state.get(p, {})) for p in self._params]

    def _entry(self, entry: Mapping[str, Any]) -> dict[str, np.ndarray]:
        seen = {}
        for name, x in entry.items():
            if isinstance(x, bool | int | float):
                seen[str(name)] = np.asarray(x)
            elif isinstance(x, self.torch.Tensor) and hasattr(x, "__tensor_flatten__"):  # codes and their scales
                parts = {f"{name}.{part}": getattr(x, part) for part in x.__tensor_flatten__()[0]}
                seen |= self._entry(parts)
            elif isinstance(x, self.torch.Tensor):
                try:
                    seen[str(name)] = self._copy(x)
                except (TypeError, RuntimeError):  # a dtype that NumPy lacks
                    if type(x) is self.torch.Tensor and not x.is_sparse:
                        seen[str(name)] = self._copy(x.detach().contiguous().view(self.torch.uint8))
        return seen

    def slow(self, group: int | None = None) -> None:
        groups = self.optimizer.param_groups
        for one in groups if group is None else [groups[group]]:
            if "lr" not in one:
                raise Lacks("has no lr in its groups")
            one["lr"] = one["lr"] / 2

    def state_dict(self) -> Any:
        return self.optimizer.state_dict()

    def save(self) -> bytes:
        file = io.BytesIO()
        self.torch.save(self.state_dict(), file)
        return file.getvalue()

    def fill(self, case: Case, rows: Sequence[dict[str, Any]], optional: tuple[str, ...]) -> None:
        """Put a case's states and step count where a step leaves them."""
        of = self.of
        for i, p in enumerate(self._params):
            self.optimizer.state[p] = of.states.entry(case, i, rows[min(i, len(rows) - 1)], optional)
        template = of.states.template(case.params[0].dtype, rows[0], optional)
        for group in self.optimizer.param_groups:
            group.update(template.marks)
            if template.in_group is not None:
                group[of.counter] = of.states.like(template.in_group, case.count - 1)
        if template.in_optimizer is not None:
            setattr(self.optimizer, of.counter, of.states.like(template.in_optimizer, case.count - 1))

    def put_masters(self, masters: Sequence[Any]) -> None:
        """Put a case's masters beside the states, which the first step makes if there are none."""
        for p, x in zip(self._params, masters, strict=True):
            if x is not None:
                self.optimizer.state[p] = {**self.optimizer.state.get(p, {}), self.of.master: self.of.arrays.of(x)}

    def results(self, case: Case, rows: Sequence[dict[str, Any]]) -> Outcome:
        """The slots of a case after the steps, as far as the optimizer has them."""
        of, lists, counted = self.of, case.lists(), case.count - 1 + len(case.steps)
        got: Outcome = {"params": [of.arrays.back(p) for p in self._params]}
        if case.slots["master_params"] is not None:
            masters = [self.optimizer.state.get(p, {}).get(of.master) for p in self._params]
            got["master_params"] = [None if x is None else of.arrays.back(x) for x in masters]
        group_of = {id(p): group for group in self.optimizer.param_groups for p in group["params"]}
        for i, p in enumerate(self._params):
            entry, numbers = self.optimizer.state.get(p, {}), rows[min(i, len(rows) - 1)]
            places = entry, group_of[id(p)], {of.counter: of.states.in_optimizer(self.optimizer)}
            steps = next((place[of.counter] for place in places if of.counter in place), None) if entry else 0
            if getattr(steps, "dtype", None) == self.torch.float32 and steps == np.float32(counted):
                steps = counted  # PyTorch's dtype of counts has no odd number beyond 2**24
            for slot in () if of.coded else case.routine.slots[2:-1]:
                known, theirs = lists[slot.name][i], of.peer.states.get(slot.name)
                if theirs is not None and known is not None:
                    if theirs != "momentum_buffer" or numbers.get("mu") != 0:
                        value = self._read(slot.name, theirs, entry, known, case.grads[i] is None, numbers)
                        got.setdefault(slot.name, []).append(value)
                elif of.follows(slot.name) and steps is not None:
                    value = scalar_after(slot.name, numbers, int(steps), known.dtype.type)
                    got.setdefault(slot.name, []).append(value)
        return got

    def _read(self, ours: str, theirs: str, entry: Mapping[str, Any], known: np.ndarray, unused: bool,
              numbers: Mapping[str, Any]) -> np.ndarray:
        """One state after the step. Before the first gradient there is none."""
        of, value = self.of, entry.get(theirs)
        if value is None:
            if unused:
                return known
            lacking = of.states.lacking(ours, theirs, entry)
            lost = any(theirs in template.entry for template in of.states.templates.values())
            raise Wrong(lacking) if lost else NotImplementedError(lacking)
        if ours in of.row.scalars:
            return np.full(1, float(value), known.dtype)
        if not isinstance(value, self.torch.Tensor):
            raise Wrong(f"optimizer.state: {theirs}: expected a tensor, got {kind_of(value)}")
        array = of.arrays.back(value)
        return np.asarray(array * array.dtype.type(numbers["lr"])) if ours in of.without_lr else array


def _is_mark(x: Any) -> bool:
    """Whether it is neither a number nor a tensor."""
    return x is None or isinstance(x, bool | str)
