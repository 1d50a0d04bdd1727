"""A plan: a routine bound to its arrays. Tables are built and uploaded once, a step is a launch."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np

from refopt import checks, state
from refopt.catalog import Routine
from refopt.checks import Array
from refopt.checks.arguments import chosen
from refopt.checks.dtypes import ITEM_SIZES, SIZES, arithmetic
from refopt.gpu import tables
from refopt.gpu.arrays import describer, device_of_lists
from refopt.gpu.exclusive import Exclusive, in_turn
from refopt.gpu.launches import Alternating, Launches
from refopt.gpu.runtime import Device, device
from refopt.gpu.transfer import Transfer


class Group:
    """The tensors of one dtype signature, with their tables on the device."""

    def __init__(
        self, machine: Device, routine: Routine, dtypes: tuple, members: list[int], arrays: dict,
        shared: dict[str, Array],
    ) -> None:  # fmt: skip
        self.machine, self.routine, self.dtypes, self.members = machine, routine, dtypes, members
        self.arrays: list[list[Array | None]] = [[arrays[name][i] for i in members] for name in routine.slot_names]
        self.real = arithmetic(dtypes[0])
        self.sizes = [param.size for param in self.arrays[0] if param]
        self._table = np.array([[a.address if a else 0 for a in row] for row in self.arrays], np.int64)
        self._units = self._units_of_access()
        self.aligned = self._aligned()
        self.chunk_tiles = 1 if routine.elementwise else tables.tiles_per_chunk(SIZES[dtypes[0]] + SIZES[dtypes[1]])
        host = tables.build(self.sizes, self.aligned, self.chunk_tiles, bool(routine.scalars))
        self.slots, self.chunk_count = host.slots, len(host.chunks)
        self._tensor_of_chunk = host.chunks[:, tables.TENSOR]
        self.addresses = machine.to_device(self._table)
        self._write = machine.writer(self.addresses)
        self.chunks = machine.to_device(host.chunks)
        self.nodes = machine.to_device(host.nodes)
        self.counters = machine.to_device(np.zeros(len(host.nodes), np.uint32))
        self.hypers = HyperBlock(machine, routine, self.real, members)
        self.gate = tuple(shared[name].address if name in shared else 0 for name in ("grad_factor", "found_inf"))
        self.factor_dtype = shared["grad_factor"].dtype if "grad_factor" in shared else "float32"

    def _units_of_access(self) -> np.ndarray:
        """By slot and tensor, the bytes that a thread accesses at a time: four elements, but at most 16 bytes."""
        rows = zip(self.routine.slots, self.arrays, strict=True)
        return np.array(
            [[min(16, 4 * ITEM_SIZES[a.dtype]) if a and not s.scalar else 1 for a in row] for s, row in rows]
        )

    def _aligned(self) -> list[bool]:
        """Whether all arrays of a tensor can be accessed so."""
        return (self._table % self._units == 0).all(0).tolist()

    def chunks_of_tensors(self) -> list[tuple[int, int]]:
        """First chunk and number of chunks of each tensor; those of one tensor lie side by side."""
        firsts = np.flatnonzero(np.diff(self._tensor_of_chunk, prepend=-1))
        return list(zip(firsts.tolist(), np.diff(firsts, append=self.chunk_count).tolist(), strict=True))

    def rebind(self, arrays: dict, slots: Iterable[str], stream: Any) -> bool:
        """Upload the addresses of other arrays in some slots; false if the chunk table holds for them no longer."""
        before = self._table.copy()
        places = [(self.routine.slot_names.index(slot), [arrays[slot][i] for i in self.members]) for slot in slots]
        for row, members in places:
            self._table[row] = [a.address if a else 0 for a in members]
        if self._aligned() != self.aligned:
            self._table = before
            return False
        for row, members in places:
            self.arrays[row] = members
            self._write(row * len(members), self._table[row], stream)
        return True

    def zeros(self, *shape: int) -> Any:
        """Scratch on the device, in the arithmetic type."""
        return self.machine.to_device(np.zeros(shape, self.real))


class HyperBlock:
    """The hyperparameters of a group, on the device, where a captured graph reads them anew.

    ``values`` (H, P) holds one number per hyperparameter and tensor.
    """

    def __init__(self, machine: Device, routine: Routine, real: type, members: list[int]) -> None:
        self.members = members
        count = len(members)
        self.values = machine.to_device(np.zeros((len(routine.hypers), count), real))
        self._write = machine.writer(self.values)
        self._first = {hyper.name: k * count for k, hyper in enumerate(routine.hypers)}
        self._fill = {name: machine.filler(self.values, first, count) for name, first in self._first.items()}

    def set(self, name: str, value: float | list[float], stream: Any) -> None:
        """Upload a hyperparameter, in stream order: one number, or a list with one per tensor of the model."""
        if isinstance(value, list):
            self._write(self._first[name], [value[i] for i in self.members], stream)
        else:
            self._fill[name](value, stream)


class Plan(Exclusive):
    """A merged routine bound to its arrays. Made by `refopt.gpu.plan`.

    The arrays are kept alive; their memory must stay where it is, or `rebind` must be told.

    Steps of one plan follow each other on its stream, also those of several threads: each call is made as a whole, and
    what ``step(lr=...)`` sets is in force in that step. Two plans on two streams are independent.

    Some routines carry over from step to step what they have written last: scalars such as the powers of beta, and in
    the form ``carried_norm`` the norms of the parameters. A plan does not see what others write. Whenever somebody else
    has written a parameter, a master or a scalar, be it another plan over the same arrays, `refresh` must be called
    before the next step; two plans that alternate need it before each step. It costs a small launch at most. States of
    tensors are read anew every time.

    A plan has no copies: ``copy.copy``, ``copy.deepcopy`` and ``pickle`` are refused.

    Attributes:
        launches: kernel launches of one step.
        bytes: bytes of the arrays that one step reads and writes, by the catalogue's formula.
    """

    def __init__(
        self, routine: Routine, launcher: Callable[..., Launches | Alternating], slots: dict[str, Any],
        hypers: dict[str, Any], form: str, stream: Any = 0, shared: dict[str, Any] | None = None,
    ) -> None:  # fmt: skip
        name = routine.merged_name
        self.routine, self.form = routine, chosen(f"{name}: form", form, routine.forms)
        self._launcher = launcher
        self._missing = {h.name for h in routine.hypers if h.default is None} - set(hypers)
        super().__init__(device(device_of_lists(*slots.values())))
        self._shared = {name: array for name, array in (shared or {}).items() if array is not None}
        self._keep = stream
        self.stream = self.device.stream(stream, f"{name}: stream")
        self._describe = describer(self.device.name)
        self._extents: dict[str, Any] = {}  # of the slots' arrays, as `checks.rebound` keeps them
        stand_ins = dict.fromkeys(self._missing, 0.0)
        self._call = checks.check(routine, slots, hypers | stand_ins, self._describe, self._shared)
        self._build()

    def _build(self) -> None:
        call = self._call
        members: dict[tuple, list[int]] = {}
        for i in call.active:
            spec = call.spec(i)
            if spec.size or self.routine.scalars:
                members.setdefault(spec.dtypes, []).append(i)
        choices = self._choices()
        self._groups = [Group(self.device, self.routine, d, m, call.arrays, call.shared) for d, m in members.items()]
        self._steps = [self._launcher(group, self.form, **choices) for group in self._groups]
        self._rows = {hyper.name: hyper for hyper in self.routine.hypers}
        self._hypers = {name: call.hypers[name] for name in self._rows}
        self._reals = call.reals()
        self._count = len(call.slots["params"])
        self._upload(self._hypers)
        self.refresh()
        self.specs = [call.spec(i) for i in call.active]
        self.launches = sum(step.launches for step in self._steps)
        self.bytes = self.routine.bytes(self.specs, self.form, **choices)

    @in_turn
    def step(self, **hyper: Any) -> None:
        """One optimizer step, in stream order. Hyperparameters given here are kept for the steps to come."""
        if hyper:
            self.set(**hyper)
        if self._missing:
            raise TypeError(f"{self.routine.merged_name}: {min(self._missing)}: expected a number, got none")
        for run in self._steps:
            run(self.stream)

    __call__ = step

    @in_turn
    def set(self, **hyper: Any) -> None:
        """Change hyperparameters, in stream order: of the next step, or of the next replay of a captured one."""
        held = self._hypers
        changed: dict[str, Any] = {}
        for name, value in hyper.items():
            if name not in held:
                raise TypeError(f"{self.routine.merged_name}: {name}: expected one of {', '.join(held)}")
            if not _unchanged(value, held[name]) or name in self._missing:
                changed[name] = checks.check_hyper(self.routine, self._rows[name], value, self._count, self._reals)
        if not changed:
            return
        self._refuse_capture(f"{self.routine.merged_name}: {next(iter(changed))}", self.stream)
        self._upload(changed)
        held.update(changed)
        self._missing -= changed.keys()

    def _upload(self, hypers: dict[str, Any]) -> None:
        for group in self._groups:
            for name, value in hypers.items():
                group.hypers.set(name, value, self.stream)

    @in_turn
    def rebind(self, **slots: Any) -> None:
        """Put other arrays of the same shapes, dtypes and alignment in place of a slot's.

        For frameworks that make new gradients every step. Which gradients are ``None`` may change, at the
        price of building the tables anew.
        """
        where = self.routine.merged_name
        for name, values in slots.items():
            if name not in self.routine.slot_names:
                raise TypeError(f"{where}: {name}: expected one of {', '.join(self.routine.slot_names)}")
            if isinstance(values, list | tuple) and len(values) != self._count:
                raise ValueError(f"{where}: {name}: expected {self._count} entries, as planned, got {len(values)}")
        call = checks.rebound(self._call, slots, self._describe, self._extents) or self._checked(slots)
        same_tables = call.active == self._call.active and self.routine.forms[self.form].merged
        self._call = call._replace(hypers=self._hypers | self._choices())
        if not (same_tables and all(group.rebind(call.arrays, slots, self.stream) for group in self._groups)):
            self._build()
        elif not {"params", "master_params", *self.routine.scalars}.isdisjoint(slots):
            self.refresh()

    def _checked(self, slots: dict[str, Any]) -> checks.Call:
        """The call with other arrays, checked as a whole."""
        self._extents.clear()
        call = checks.check(self.routine, self._call.slots | slots, self._call.hypers, self._describe, self._shared)
        for name in self.routine.slot_names:
            for i, (new, old) in enumerate(zip(call.arrays[name], self._call.arrays[name], strict=True)):
                expected, got = (f"{x.dtype} of shape {x.shape}" if x else "None" for x in (old, new))
                if got != expected and (name != "grads" or (new and old)):
                    where = f"{self.routine.merged_name}: {name}[{i}]"
                    raise ValueError(f"{where}: expected {expected}, as planned, got {got}")
        return call

    @in_turn
    def refresh(self) -> None:
        """Say that somebody else has written a parameter or a scalar: what the last step carried over is dropped."""
        for step in self._steps:
            step.forget(self.stream)

    @in_turn
    def state_dict(self) -> dict[str, Any]:
        """Host copies of what steps change beside the parameters, and the hyperparameters; see `refopt.state`."""
        numbers = {name: value for name, value in self._hypers.items() if name not in self._missing}
        return state.state_dict(self.routine.name, self._call.slots, numbers | self._choices(), memory=self._memory())

    @in_turn
    def load_state_dict(self, saved: Mapping[str, Any]) -> None:
        """Go on from a state dictionary: its arrays are copied into the plan's, in place, its numbers are set.

        The parameters have to be those of the step that it was saved after. Hyperparameters that it does not have
        stay as they are.

        Raises:
            ValueError, TypeError: naming the slot and the index: it is another routine's, or of other shapes, dtypes
                or choices than the plan's; nothing has been modified then.
        """
        choices = self._choices()
        kept = state.load(saved, self.routine.name, self._call.slots, choices=choices, memory=self._memory())
        self.set(**{name: value for name, value in kept.items() if name not in choices})
        self.refresh()

    def _memory(self) -> Transfer | None:
        """What reads and writes the arrays; nothing has to where there are none."""
        first = next((x for xs in self._call.slots.values() for x in xs or () if x is not None), None)
        return None if first is None else Transfer(first, self.stream, self.routine.merged_name)

    def _choices(self) -> dict[str, Any]:
        return {name: self._call.hypers[name] for name in self.routine.choices}


def _unchanged(value: Any, held: float | list[float]) -> bool:
    """Whether a hyperparameter is, in type as well, what is in force; cheap, and false wherever it is not plain."""
    if type(value) is list and type(held) is list:
        return len(value) == len(held) and all(type(x) is float and x == y for x, y in zip(value, held, strict=True))
    return type(value) is float and value == held
