"""A plan: a routine bound to its arrays. Tables are built and uploaded once, a step is a launch."""

from collections.abc import Callable, Container, Mapping, Sequence
from typing import Any

import numpy as np

from refopt import checks, state
from refopt.catalog import Routine
from refopt.checks.arguments import chosen
from refopt.gpu.arrays import describer, locator
from refopt.gpu.exclusive import Exclusive, in_turn
from refopt.gpu.group import Group
from refopt.gpu.launches import Alternating, Launches
from refopt.gpu.runtime import machine_of
from refopt.gpu.transfer import Transfer


def complete(routine: Routine, hypers: dict[str, Any]) -> dict[str, Any]:
    """Hyperparameters, with 0 for those without a default."""
    return {hyper.name: 0.0 for hyper in routine.hypers if hyper.default is None} | hypers


class Numbered(Exclusive):
    """Tensors of a routine in groups, with hyperparameters that may change from step to step."""

    routine: Routine
    _groups: Sequence[Any]

    def _take(self, call: checks.Call, given: Container[str]) -> None:
        """Take the hyperparameters of a call; those without a default that are not ``given`` are missing."""
        self._rows = {hyper.name: hyper for hyper in self.routine.hypers}
        self._missing = {name for name, hyper in self._rows.items() if hyper.default is None and name not in given}
        self._hypers = {name: call.hypers[name] for name in self._rows}
        self._reals, self._count = call.reals(), len(call.slots["params"])

    def _set(self, hyper: dict[str, Any]) -> None:
        held = self._hypers
        changed: dict[str, Any] = {}
        for name, value in hyper.items():
            if name not in held:
                raise TypeError(f"{self.routine.merged_name}: {name}: expected one of {', '.join(held)}")
            if not _unchanged(value, held[name]) or name in self._missing:
                changed[name] = checks.check_hyper(self.routine, self._rows[name], value, self._count, self._reals)
        if not changed:
            return
        self._refuse_capture(next(iter(changed)))
        self._upload(changed)
        held.update(changed)
        if self._missing:
            self._missing -= changed.keys()

    def _upload(self, hypers: dict[str, Any]) -> None:
        for group in self._groups:
            for name, value in hypers.items():
                group.hypers.set(name, value, self._stream)

    def _before(self, hyper: dict[str, Any]) -> None:
        """Set the numbers that a step is called with; refuse one that lacks any."""
        if hyper:
            self._set(hyper)
        if self._missing:
            raise TypeError(f"{self.routine.merged_name}: {min(self._missing)}: expected a number, got none")


class Plan(Numbered):
    """A merged routine bound to its arrays. Made by `refopt.gpu.plan`.

    The plan keeps the arrays alive; their memory must not move, unless `rebind` is called.

    Steps of one plan follow each other on its stream, even from several threads: each call runs as a whole, and the
    numbers of ``step(lr=...)`` apply to that step. Two plans on two streams are independent.

    Some routines carry values that they have written over to the next step: scalars such as the powers of beta, and in
    the form ``carried_norm`` the norms of the parameters. A plan does not notice other writes. After anything else,
    such as another plan over the same arrays, has written a parameter, a master or a scalar, call `refresh` before the
    next step; two plans that alternate need it before each step. It costs at most a small launch. Every step reads the
    tensors' states again.

    A plan cannot be copied: ``copy.copy``, ``copy.deepcopy`` and ``pickle`` are refused.

    Attributes:
        launches: kernel launches of one step.
        bytes: bytes of the arrays that one step reads and writes, by the catalogue's formula.
    """

    def __init__(
        self, routine: Routine, launcher: Callable[..., Launches | Alternating], slots: dict[str, Any],
        hypers: dict[str, Any], form: str, stream: Any = 0, shared: dict[str, Any] | None = None,
    ) -> None:
        name = routine.merged_name
        self.routine, self.form = routine, chosen(f"{name}: form", form, routine.forms)
        self._launcher = launcher
        super().__init__(machine_of(*slots.values()), stream, name)
        self._shared = {name: array for name, array in (shared or {}).items() if array is not None}
        self._describe = describer(self.device.name, self.device.index)
        self._begin(slots, hypers)

    def __repr__(self) -> str:
        """The routine and its tensors, the cost of a step, and the device."""
        tensors, elements = len(self.specs), sum(spec.size for spec in self.specs)
        of = f"{self.routine.name}, form {self.form}: tensors {tensors}, elements {elements:,}"
        step = f"per step launches {self.launches}, bytes {self.bytes:,}"
        return f"<Plan of {of}; {step}; device {self.device.name}: {self.device.properties}>"

    @in_turn
    def _begin(self, slots: dict[str, Any], hypers: dict[str, Any]) -> None:
        """Check the call and build the tables."""
        routine = self.routine
        self._call = call = checks.check(routine, slots, complete(routine, hypers), self._describe, self._shared)
        self._take(call, hypers)
        self._written = [slot.name for slot in routine.slots if slot.written]
        self._bound = self._bound_to(call)
        self._choices = {name: call.hypers[name] for name in routine.choices}
        self._carried_from = {"params", "master_params", *routine.scalars}
        self._build()

    def _build(self) -> None:
        call = self._settled()
        members: dict[tuple, list[int]] = {}
        for i in call.active:
            spec = call.spec(i)
            if spec.size or self.routine.scalars:
                members.setdefault(spec.dtypes, []).append(i)
        self._groups = [Group(self.device, self.routine, d, m, call.arrays, call.shared) for d, m in members.items()]
        self._steps = [self._launcher(group, self.form, **self._choices) for group in self._groups]
        self._replayed = False  # whether the replay of a graph writes addresses to the tables
        self._upload(self._hypers)
        self.refresh()
        self.specs = [call.spec(i) for i in call.active]
        self.launches = sum(step.launches for step in self._steps)
        self.bytes = self.routine.bytes(self.specs, self.form, **self._choices)

    @in_turn
    def step(self, **hyper: Any) -> None:
        """One optimizer step, in stream order. Hyperparameters given here also apply to later steps."""
        self._before(hyper)
        stream = self._stream
        if self._replayed:
            for group in self._groups:
                group.table.put_again(stream)
        for run in self._steps:
            run(stream)

    __call__ = step

    @in_turn
    def set(self, **hyper: Any) -> None:
        """Change hyperparameters, in stream order, for the next step or the next replay of a captured one."""
        self._set(hyper)

    @in_turn
    def rebind(self, **slots: Any) -> None:
        """Replace the arrays of slots by others of the same shapes, dtypes and alignment.

        For frameworks that make new gradients every step. Which gradients are ``None`` may change, at the
        cost of rebuilding the tables.
        """
        where = self.routine.merged_name
        for name, values in slots.items():
            if name not in self.routine.slot_names:
                raise TypeError(f"{where}: {name}: expected one of {', '.join(self.routine.slot_names)}")
            if isinstance(values, list | tuple) and len(values) != self._count:
                raise ValueError(f"{where}: {name}: expected {self._count} entries, as planned, got {len(values)}")
        moved = self._bound.located(slots)
        if moved is not None:
            values = {name: list(given) for name, given in slots.items()}
            self._exchange(self._call, self._bound, moved, values)
        else:
            self._exchange_checked(slots)

    @in_turn
    def move(self, slot: str, addresses: Sequence[int] | np.ndarray, arrays: Sequence[Any] | None = None) -> None:
        """`rebind` for callers who know that the arrays of a slot are as planned, except for their addresses.

        Only addresses are checked. The caller guarantees that the arrays have the planned shapes, dtypes and axis
        orders, are on the same device, and that no array that is written shares memory with another.

        Args:
            slot: the name of the slot.
            addresses: P integers, 0 if there is no array. The address of an array without elements is ignored.
            arrays: the arrays there, kept alive from now on. They can be omitted for the gradients, which the caller
                then keeps alive; gradients that return are assumed to have the parameter's dtype, and those without
                elements to be given or ``None`` as before.

        Raises:
            TypeError, ValueError: the message names the index; nothing has been modified then.
        """
        bound, where = self._bound, f"{self.routine.merged_name}: move"
        places, values, come_or_gone, shifted = bound.moved(where, slot, addresses, arrays)
        if come_or_gone:
            self._exchange_checked({slot: values})
        elif shifted or places.tobytes() != bound.addresses[slot].tobytes():
            self._exchange(self._call, bound, {slot: places}, {slot: values}, aligned=shifted)
        else:
            bound.exchange(slot, values, places)

    def _bound_to(self, call: checks.Call) -> checks.Bound:
        name, shared = self.routine.merged_name, call.shared.values()
        return checks.Bound(name, call.slots, call.arrays, locator(self._describe), self._written, shared)

    def _settled(self) -> checks.Call:
        """The call with its current arrays."""
        self._bound.settle()
        return self._call

    def _exchange_checked(self, slots: dict[str, Any]) -> None:
        """Exchange arrays after a full check; some gradients may have appeared or disappeared."""
        call = self._checked(slots)
        bound = self._bound_to(call)
        self._exchange(call, bound, {name: bound.addresses[name] for name in slots}, {})

    def _exchange(
        self, call: checks.Call, bound: checks.Bound, moved: dict[str, np.ndarray], values: dict[str, list | None],
        aligned: bool = False,
    ) -> None:
        """Exchange arrays for others at new addresses, in the existing tables if possible.

        ``bound`` does not have ``values`` yet. ``aligned`` says that the arrays are aligned as before.
        """
        rows, captured = None, self.device.capturing(self._stream)
        if (call is self._call or call.active == self._call.active) and self.routine.forms[self.form].merged:
            rows = [group.rows_of(moved) for group in self._groups]
            pairs = zip(self._groups, rows, strict=True)
            if not (aligned or all(group.table.keeps_alignment(own) for group, own in pairs)):
                rows = None
        if rows is None and captured:
            expected = "expected gradients present and aligned as in the previous step during a capture"
            raise RuntimeError(f"{self.routine.merged_name}: {expected}, got some that need new tables")
        self._call, self._bound = call, bound
        for slot, arrays in values.items():
            bound.exchange(slot, arrays, moved[slot])
        if rows is None:
            self._build()
            return
        self._replayed = self._replayed or captured
        for group, own in zip(self._groups, rows, strict=True):
            group.table.put(own, self._stream)
        if not self._carried_from.isdisjoint(moved):
            self.refresh()

    def _checked(self, slots: dict[str, Any]) -> checks.Call:
        """The call with other arrays, fully checked."""
        held = self._settled()
        hypers = self._hypers | self._choices
        call = checks.check(self.routine, held.slots | slots, hypers, self._describe, self._shared)
        for name in self.routine.slot_names:
            for i, (new, old) in enumerate(zip(call.arrays[name], held.arrays[name], strict=True)):
                expected, got = (f"{x.dtype} of shape {x.shape}" if x else "None" for x in (old, new))
                if got != expected and (name != "grads" or (new and old)):
                    where = f"{self.routine.merged_name}: {name}[{i}]"
                    raise ValueError(f"{where}: expected {expected}, as planned, got {got}")
        return call

    @in_turn
    def refresh(self) -> None:
        """Drop what the last step carried over, because something else has written a parameter, master or scalar."""
        for step in self._steps:
            step.forget(self._stream)

    @in_turn
    def state_dict(self) -> dict[str, Any]:
        """Host copies of all that steps change except the parameters, and the hyperparameters; see `refopt.state`."""
        numbers = {name: value for name, value in self._hypers.items() if name not in self._missing}
        slots, memory = self._settled().slots, self._memory()
        return state.state_dict(self.routine.name, slots, numbers | self._choices, memory=memory)

    @in_turn
    def load_state_dict(self, saved: Mapping[str, Any]) -> None:
        """Resume from a state dictionary: copy its arrays into the plan's, in place, and set its numbers.

        The parameters must be those after the step at which it was saved. Hyperparameters that it lacks stay unchanged.

        Raises:
            ValueError, TypeError: it belongs to another routine, or its shapes, dtypes or choices differ from the
                plan's; the message names slot and index, and nothing has been modified then.
        """
        slots, choices = self._settled().slots, self._choices
        kept = state.load(saved, self.routine.name, slots, choices=choices, memory=self._memory())
        self._set({name: value for name, value in kept.items() if name not in choices})
        self.refresh()

    def _memory(self) -> Transfer | None:
        """The transfer that reads and writes the arrays; ``None`` if there are no arrays."""
        first = next((x for xs in self._settled().slots.values() for x in xs or () if x is not None), None)
        return None if first is None else Transfer(first, self._stream, self.routine.merged_name)


def _unchanged(value: Any, held: float | list[float]) -> bool:
    """Whether a hyperparameter equals the current one, in type as well; cheap, and false for anything not plain."""
    if type(value) is list and type(held) is list:
        return {*map(type, value)} <= {float} and value == held
    return type(value) is float and value == held
