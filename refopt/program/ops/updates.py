"""The ops of the catalogue's routines, on tensors or on flat buffers of them.

An op of a routine has the routine's slots, with one name in each, or with any number if its type begins with
``merged_``. What it changes is in both inputs and outputs; scalars that other ops advance are in its inputs alone.
The buffers of coalesced tensors may replace the tensors: the op is then flat, and treats each buffer as
one tensor. Of a buffer of scalars it reads the first, and copies its new value to all. ``grad_factor`` and
``found_inf`` are further inputs, of one element. Attributes are the routine's numbers and choices.

Parts of tensors have norms of the whole: ``norm_tiles`` sums their tiles, ranks add these up and join them, and the
update takes the sums of squares from one more input, ``sums``, at its ``positions``.

With an attribute ``count``, gradients are sparse, and only their rows updated (`refopt.cpu.lazy`).
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from typing import Any

import numpy as np

from refopt import checks
from refopt.catalog import KNOWN, Routine
from refopt.checks.arguments import is_whole
from refopt.checks.arrays import check_c_order
from refopt.checks.dtypes import GROUP, SIZES, arithmetic, stored_shape
from refopt.cpu.lazy import check_lazy, lazy_row
from refopt.program.backends import Placed
from refopt.program.graph import Graph
from refopt.program.model import UNKNOWN, Op, Var
from refopt.program.ops.checks import Describer, one, variables
from refopt.program.ops.context import Context
from refopt.program.ops.mixed_precision import tiles_of
from refopt.program.ops.registry import check_slots, op
from refopt.program.ops.runner import Runner, each

GATE = "grad_factor", "found_inf"
SHARED = *GATE, "sums"  # slots for all tensors together
PLACED = "routine", "positions", "count"  # attributes that are not the routine's
MERGED = "merged_"
_PLAIN = int, float, str, np.floating, np.integer  # attributes that can be compared at once


def routine_of(op: Op) -> Routine | None:
    """The routine of an op, if any."""
    return KNOWN.get(op.type.removeprefix(MERGED))


def norms_of(op: Op) -> int:
    """How many norms of each of its tensors an op takes."""
    routine = routine_of(op)
    return routine.norms if routine and op.inputs["params"] else 0


def update_types(graph: Graph) -> frozenset[str]:
    """The types of a step's ops that are routines."""
    return frozenset(kind for kind in {op.type for op in graph.main} if kind.removeprefix(MERGED) in KNOWN)


def of_tensor(op: Op, routine: Routine, k: int) -> dict[str, Any]:
    """The attributes of a routine's op that apply to one of its tensors."""
    return {key: value[k] if is_of_each(routine, key, value) else value for key, value in own_attrs(op).items()}


def is_of_each(routine: Routine, key: str, value: Any) -> bool:
    """Whether an attribute has one value for each tensor."""
    return key in routine.of_each and type(value) in (list, tuple)


def uncut(op: Op) -> str:
    """Why a tensor of an update cannot be cut; empty if its elements are independent."""
    if "count" in op.attrs:
        return "its gradient is a list of rows"
    if op.attrs.get("rounding") == "stochastic":
        return "stochastic rounding counts the elements of each tensor"
    routine = routine_of(op)
    return routine.whole if routine else ""


def coded(graph: Graph, op: Op) -> str:
    """Which state of an update is in 8 bits, and so in groups; empty if none is."""
    names = (name for name in op.reads if graph.vars[name].dtype == "uint8")
    return next((f"{name!r} is in 8 bits, in groups of {GROUP} elements of its tensor" for name in names), "")


def is_flat(graph: Graph, op: Op) -> bool:
    """Whether an op of a routine treats a buffer as one tensor."""
    return not graph.views.keys().isdisjoint(op.inputs.get("params", ()))


def advances(op: Op, routine: Routine) -> bool:
    """Whether an op of a routine itself advances its scalars."""
    return all(name in op.outputs for name in routine.scalars)


def changeable(op: Op, routine: Routine) -> frozenset[str]:
    """The numbers of a routine's op that steps may change: not the betas by which other ops advance its scalars."""
    fixed = set() if advances(op, routine) else {"beta1", "beta2"}
    return frozenset(hyper.name for hyper in routine.hypers) - fixed


def check_update(graph: Graph, op: Op, routine: Routine, fit: set[Hashable] | None = None) -> None:
    """Raise if an op of a routine is invalid; the error names slot and index.

    ``fit`` has keys of valid updates, to which this one's is added: of thousands that differ only in names and shapes,
    only the first is checked in full.
    """
    alike = None if fit is None else _alike(graph, op, routine)
    if fit is None or alike not in fit:
        _check_routine(graph, op, routine)
    if fit is not None and alike is not None:
        fit.add(alike)


def _alike(graph: Graph, op: Op, routine: Routine) -> Hashable:
    """A key that updates of one tensor share if all or none of them are valid; ``None`` for other updates."""
    params = op.inputs.get("params", ())
    plain = not routine.matrix_arguments and all(isinstance(x, _PLAIN) for x in op.attrs.values())
    if len(params) != 1 or len({*op.reads}) != len(op.reads) or not plain or "count" in op.attrs:
        return None
    vars, shape = graph.vars, graph.vars[params[0]].shape
    own = {slot.name for slot in routine.slots if not slot.scalar}
    slots = []
    for slot, names in op.inputs.items():
        for name in names:
            var = vars[name]
            extents = var.shape if slot not in own else var.shape == stored_shape(var.dtype, shape)
            slots.append((slot, extents, var.dtype, var.sparse, name in graph.views))
    outputs = [(slot, names == op.inputs.get(slot)) for slot, names in op.outputs.items()]
    attrs = [(key, type(value), value) for key, value in op.attrs.items()]
    return op.type, shape == UNKNOWN, tuple(slots), tuple(outputs), tuple(attrs)


def _check_routine(graph: Graph, op: Op, routine: Routine) -> None:
    slots = tuple(f"{slot.name}?" if slot.optional else slot.name for slot in routine.slots)
    check_slots(op, (*slots, *(f"{slot}?" for slot in SHARED)), ("*",))
    count = len(op.inputs["params"])
    if count != 1 and not op.type.startswith(MERGED):
        raise ValueError(f"params: expected one variable, got {count}; {routine.merged_name} takes any number")
    _check_inputs(graph, op)
    _check_outputs(op, routine)
    vars = {slot: [graph.vars[name] for name in names] for slot, names in op.inputs.items() if slot not in SHARED}
    shared = {slot: graph.vars[op.inputs[slot][0]] for slot in GATE if slot in op.inputs}
    numbers, own = routine.parted(own_attrs(op))
    if "count" in op.attrs:
        _check_rows(graph, op, routine, vars, shared)
        return
    call = checks.check(routine, {name: None for name in routine.slot_names} | vars, numbers, Describer(), shared)
    if routine.matrix_arguments:
        routine.matrix_arguments(routine, call.arrays, call.hypers, **own)
    if "sums" in op.inputs:
        _check_places(graph, op, routine, "sums", op.inputs["sums"], [1] * count)


def _check_rows(graph: Graph, op: Op, routine: Routine, vars: dict[str, list[Var]], shared: dict[str, Any]) -> None:
    """Raise unless an update of rows is valid."""
    row, grads = lazy_row(routine.name, op.attrs["count"]), vars.pop("grads")
    for k, (var, param) in enumerate(zip(grads, vars["params"], strict=True)):
        if not var.sparse or var.shape != param.shape:
            raise TypeError(f"grads[{k}]: expected a sparse variable of shape {param.shape}, got {var}")
    if not advances(op, routine):
        raise ValueError(f"outputs: expected {', '.join(routine.scalars)}, since a lazy step advances them, got none")
    if (rounding := op.attrs.get("rounding", "nearest")) != "nearest":
        raise ValueError(f"rounding: expected nearest, since a lazy step has no other, got {rounding!r}")
    indices = [Var(f"{var.name}@INDICES", (1,), "int64") for var in grads]
    values = [Var(var.name, (1, *var.shape[1:]), var.dtype) for var in grads]
    slots = {slot.name: None for slot in row.slots} | vars
    check_lazy(row, slots, indices, values, _lazy_attrs(op), Describer(), shared)


def _lazy_attrs(op: Op) -> dict[str, Any]:
    """The attributes of a lazy step, which rounds to nearest."""
    return {key: x for key, x in own_attrs(op).items() if key not in ("seed", "rounding")}


def own_attrs(op: Op) -> dict[str, Any]:
    """An update's attributes that are its routine's."""
    return {key: x for key, x in op.attrs.items() if key not in PLACED}


def _check_places(
    graph: Graph, op: Op, routine: Routine, slot: str, names: tuple[str, ...], counts: list[int]
) -> None:
    """Raise unless each tensor has a place for each norm in a slot, with room for a number of sums."""
    if not routine.norms:
        raise TypeError(f"{slot}: expected none, since {routine.name} takes no norms, got {', '.join(names)}")
    reals = {np.dtype(arithmetic(var.dtype)).name for var in variables(graph, op.inputs["params"])}
    (room,) = one(graph, names, slot, reals.pop() if len(reals) == 1 else "float32")
    positions, taken = op.attrs.get("positions"), set[int]()
    if type(positions) is not tuple or len(positions) != len(counts):
        raise ValueError(f"positions: expected places for each of {len(counts)} tensors, got {positions!r}")
    for k, (places, count) in enumerate(zip(positions, counts, strict=True)):
        if type(places) is not tuple or len(places) != routine.norms or not all(map(is_whole, places)):
            raise ValueError(f"positions[{k}]: expected a place for each of {routine.norms} norms, got {places!r}")
        for place in places:
            own = range(place, place + count)
            if not 0 <= place <= room - count or not taken.isdisjoint(own):
                raise ValueError(f"positions[{k}]: expected places from 0 to {room - count}, each once, got {place}")
            taken.update(own)


def _check_inputs(graph: Graph, op: Op) -> None:
    """Raise unless all are dense, and buffers if the op is flat."""
    flat = is_flat(graph, op)
    for slot, names in op.inputs.items():
        for k, name in enumerate(names):
            if graph.vars[name].sparse and (slot, "count" in op.attrs) != ("grads", True):
                raise TypeError(f"{slot}[{k}]: expected a dense variable, got {name!r}, which is sparse")
            if flat and graph.vars[name].dtype == "uint8":
                got = f"a state in 8 bits, {name!r}; the merged form takes it"
                raise TypeError(f"{slot}[{k}]: expected floats in a buffer, got {got}")
            if (name in graph.views) != flat and slot not in SHARED:
                expected, got = ("a buffer", "a tensor") if flat else ("a tensor", "a buffer")
                raise ValueError(f"{slot}[{k}]: expected {expected}, as params has, got {got}, {name!r}")


def _check_outputs(op: Op, routine: Routine) -> None:
    """Raise unless they are what the routine changes."""
    written = {slot.name for slot in routine.slots if slot.written and slot.name in op.inputs}
    if not advances(op, routine):
        written -= set(routine.scalars)
    if dict(op.outputs) != {slot: names for slot, names in op.inputs.items() if slot in written}:
        expected = ", ".join(sorted(written))
        raise ValueError(f"outputs: expected {expected}, as in the inputs, got {', '.join(op.outputs) or 'none'}")


class Update(Runner):
    """An op of a routine, bound to its arrays by a plan."""

    def __init__(self, context: Context, op: Op, routine: Routine) -> None:
        self._context, self._op, self._routine = context, op, routine
        dtypes = {context.program.vars[name].dtype for name in op.inputs["params"]}
        # An update without tensors refuses what other ranks refuse, whose tensors have the dtypes of the program's.
        self._dtypes = dtypes or {var.dtype for var in context.program.vars.values() if var.dtype in SIZES}
        self._count = len(op.inputs["params"])
        own = advances(op, routine)
        self.numbers = changeable(op, routine)
        for name in op.inputs["params"] if coded(context.program, op) else ():  # codes do not tell another order
            where = f"{op.type}: {name!r}, whose states are in 8 bits"
            check_c_order(where, context.backend.describe(context.arrays[name], where))
        given = {slot: names for slot, names in op.inputs.items() if slot != "grads" or "count" not in op.attrs}
        slots = {slot: [context.arrays[name] for name in names] for slot, names in given.items()}
        shared = {slot: slots.pop(slot)[0] for slot in (*SHARED, "tiles") if slot in slots}
        super().__init__(each(self._calls(slots, shared, own, is_flat(context.program, op))))

    def _calls(self, slots: dict[str, list], shared: dict[str, Any], own: bool, flat: bool) -> list[Callable]:
        """The step, with the calls that must precede and follow it."""
        if "count" in self._op.attrs:
            required = [slot.name for slot in self._routine.slots if not slot.optional and slot.name != "grads"]
            params, *states = map(slots.pop, required)
            attrs = {"count": self._op.attrs["count"], **_lazy_attrs(self._op)}
            self._step = self._context.backend.lazy(self._routine.name, params, states, {**attrs, **slots, **shared})
            return [self._take_rows, self._step]
        if flat:
            self._take_first(slots)
            self._check_layouts()
        before, after = [], []
        if not own:
            before.append(self._keep(slots))
        elif flat and self._routine.scalars:
            after.append(self._spread(slots))
        sums = self._placed(shared.pop("sums")) if "sums" in shared else None
        self._step = self._context.backend.step(self._routine, slots, shared, own_attrs(self._op), sums)
        if not own or self._shares_scalars():  # the values that a step has cached are out of date
            before.append(self._step.refresh)
        return [*before, self._step, *after]

    def _take_rows(self) -> None:
        """Take the gradients of a step."""
        self._step.rebind(*zip(*(self._context.rows[name] for name in self._op.inputs["grads"]), strict=True))

    def _placed(self, array: Any) -> Placed:
        """Where the sums of the op's tensors are."""
        return Placed(array, np.array(self._op.attrs["positions"], np.int64).reshape(-1, self._routine.norms))

    def _take_first(self, slots: dict[str, list]) -> None:
        """Give the routine the first of a buffer's scalars, which are equal."""
        for name in self._routine.scalars:
            self._check_equal(self._op.inputs[name][0])
            slots[name] = [self._context.backend.part(slots[name][0], 0, 1)]

    def check(self, name: str, value: Any) -> None:
        row = next(hyper for hyper in self._routine.hypers if hyper.name == name)
        checks.check_hyper(self._routine, row, value, self._count, {arithmetic(dtype) for dtype in self._dtypes})
        if row.whole and self._routine.matrix_arguments:  # there may be one triple per iteration
            changed = self._op.replace(attrs={**self._op.attrs, name: value})
            _check_routine(self._context.program, changed, self._routine)

    def set(self, numbers: Mapping[str, Any]) -> None:
        if "count" in self._op.attrs:
            numbers = {name: x for name, x in numbers.items() if name != "seed"}
        if numbers:
            self._step.set(**numbers)

    def _shares_scalars(self) -> bool:
        """Whether another op of the step also changes a scalar of this one."""
        program = self._context.program
        own = (name for slot in self._routine.scalars for name in self._op.inputs[slot])
        return any(program.writers[cell] > 1 for name in own for cell in program.memory(name))

    def _keep(self, slots: dict[str, list]) -> Any:
        """Give the routine copies of the scalars, which it may advance; the originals stay."""
        backend, vars = self._context.backend, self._context.program.vars
        sources, copies = [], []
        for name in self._routine.scalars:
            sources += slots[name]
            slots[name] = [backend.full((1,), vars[var].dtype, 0.0) for var in self._op.inputs[name]]
            copies += slots[name]
        return backend.cast(sources, copies)

    def _spread(self, slots: dict[str, list]) -> Any:
        """Copy the first scalar of a buffer to all others."""
        sources, targets = [], []
        for name in self._routine.scalars:
            others = self._context.program.views[self._op.inputs[name][0]][1:]
            sources += slots[name] * len(others)
            targets += [self._context.arrays[view] for view in others]
        return self._context.backend.cast(sources, targets)

    def _check_equal(self, buffer: str) -> None:
        """Raise unless the scalars of a buffer's tensors are equal, so that one serves all."""
        first, *others = self._context.program.views[buffer]
        expected = self._context.read(first)
        for name in others:
            value = self._context.read(name)
            if value.tobytes() != expected.tobytes():
                raise ValueError(
                    f"{self._op.type}: {name!r}: expected {expected.item()!r}, as {first!r} has, since a flat step has "
                    f"one scalar for all its tensors, got {value.item()!r}; the merged form has one for each"
                )

    def _check_layouts(self) -> None:
        """Raise unless element k of each buffer belongs to the same tensor."""
        slots = {slot: names[0] for slot, names in self._op.inputs.items() if slot not in SHARED}
        places = {slot: self._places(slot, buffer) for slot, buffer in slots.items()}
        for slot, place in places.items():
            if place != places["params"] and slot not in self._routine.scalars:
                raise ValueError(
                    f"{self._op.type}: {slot}: expected tensors where those of params lie in their buffer, "
                    f"{places['params']}, got {place}"
                )

    def _places(self, slot: str, buffer: str) -> list[tuple[int, int]]:
        """The offset and the size of each tensor in a buffer, in elements."""
        backend, arrays = self._context.backend, self._context.arrays
        views = self._context.program.views[buffer]
        whole, item = backend.describe(arrays[buffer], slot), arrays[buffer].dtype.itemsize
        described = (backend.describe(arrays[view], slot) for view in views)
        places = [((x.address - whole.address) // item, x.size) for x in described]
        for view, (first, _) in zip(views, places, strict=True):
            if not 0 <= first < whole.size:
                raise ValueError(f"{self._op.type}: {slot}: expected {view!r} in its buffer, got it elsewhere")
        return places


def _check_norm_tiles(graph: Graph, op: Op) -> None:
    routine = KNOWN.get(str(op.attrs.get("routine")))
    if routine is None or not routine.norms:
        expected = ", ".join(name for name, each in KNOWN.items() if each.norms)
        raise ValueError(f"routine: expected one of {expected}, got {op.attrs.get('routine')!r}")
    inputs = {slot: names for slot, names in op.inputs.items() if slot != "tiles"}
    states = {slot: names for slot, names in inputs.items() if slot in routine.states}
    if op.outputs != {"tiles": op.outputs["tiles"], **states}:
        raise ValueError(f"outputs: expected tiles and the states, got {', '.join(op.outputs)}")
    if op.inputs.get("tiles", op.outputs["tiles"]) != op.outputs["tiles"]:
        raise ValueError("tiles: expected the same variable in inputs and outputs, since some of it stays")
    written = {slot.name for slot in routine.slots if slot.written}
    outputs = {slot: names for slot, names in inputs.items() if slot in written}
    _check_routine(graph, op.replace(type=MERGED + routine.name, inputs=inputs, outputs=outputs), routine)
    counts = [tiles_of(var.shape) for var in variables(graph, op.inputs["params"])]
    _check_places(graph, op, routine, "tiles", op.outputs["tiles"], counts)


@op("norm_tiles", "params tiles? *", "tiles *", check=_check_norm_tiles)
def norm_tiles(context: Context, op: Op) -> Runner:
    """`tiles` receives the sums of squares of tiles that an update of `routine` needs; `params` may be empty.

    Those of each tensor and norm begin at its place in `positions`; the rest is +0, or stays if `tiles` is also an
    input. The tensors are parts that begin at a tile. A device also stores the new states that the norms depend on; so
    only the update with the joined sums, on the same tensors, completes a step.
    """
    return _NormTiles(context, op, KNOWN[op.attrs["routine"]])


class _NormTiles(Update):
    """A ``norm_tiles`` bound to its arrays."""

    def _calls(self, slots: dict[str, list], shared: dict[str, Any], own: bool, flat: bool) -> list[Callable]:
        backend, (name,) = self._context.backend, self._op.outputs["tiles"]
        tiles, var, calls = self._context.arrays[name], self._context.program.vars[name], list[Callable]()
        if shared.pop("tiles", None) is None:
            calls.append(backend.cast([backend.full(var.shape, var.dtype, 0.0)], [tiles]))
        if self._count:
            placed = self._placed(tiles)
            self._step = backend.tiles(self._routine, slots, shared, own_attrs(self._op), placed)
            calls.append(self._step)
        return calls

    def set(self, numbers: Mapping[str, Any]) -> None:
        if self._count:
            super().set(numbers)
