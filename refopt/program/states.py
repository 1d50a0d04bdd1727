"""The state of a bound program between steps, by names of whole variables, however passes have cut or distributed them.

A checkpoint of a program on four ranks can be loaded by a program on two, or by one made by other passes: variables
are saved whole, each once, under their names in the program that the passes started from.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Collection, Mapping
from copy import deepcopy
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from refopt import cpu
from refopt.catalog import KNOWN, Routine
from refopt.checks import Array, host_array
from refopt.checks.arguments import is_number, mapped, number, shown, whole
from refopt.checks.dtypes import numpy_dtype
from refopt.cpu.lazy import lazy_row
from refopt.program.graph import Graph
from refopt.program.model import UNKNOWN, Part, Var
from refopt.program.ops.checks import Describer
from refopt.program.ops.context import Context
from refopt.program.ops.updates import SHARED, changeable, of_tensor, routine_of, update_types
from refopt.state import load

VERSION = 1
WHERE = "Bound.load: saved"
KEYS = "version", "steps", "numbers", "params", "states", "others"


class Piece(NamedTuple):
    """A run of elements of a whole variable that a program holds.

    Attributes:
        name: the program's variable with these elements.
        first: the index of the first one in the whole.
        size: how many there are.
    """

    name: str
    first: int
    size: int


class Whole(NamedTuple):
    """A variable that is saved.

    Attributes:
        shape, dtype: as without passes.
        pieces: the parts of it that a program holds.
        key: its path in a checkpoint: ``params``, ``states`` or ``others``, and further names.
        hypers: for a state, the numbers and choices of its update; for a parameter, all its arguments.
        routine: the routine that updates it.
    """

    shape: tuple[int, ...]
    dtype: str
    pieces: tuple[Piece, ...]
    key: tuple[str, ...]
    routine: str = ""
    hypers: Mapping[str, Any] = MappingProxyType({})


def wholes(graph: Graph, numbers: Mapping[str, Any] = MappingProxyType({})) -> dict[str, Whole]:
    """The parts that a program holds of each saved variable: parameters, states, other persistent results of a step.

    Copies of another variable, such as a parameter in 16 bits, are not saved, nor are variables that no op changes.
    ``numbers`` are those passed to steps.
    """
    cut = {name for op in graph.startup if op.type == "split" for name in op.writes}
    gone = {name for op in graph.startup if op.type == "delete" for name in op.reads}
    gone |= {name for op in graph.main if op.type == "concat" for name in op.reads} - cut
    updated, derived, found = _updated(graph, numbers), copies(graph), dict[str, Whole]()
    for name, var in graph.vars.items():
        lasting = var.persistable and (var.initial is None or graph.writers[name])
        if not lasting or var.shape == UNKNOWN or var.sparse or name in derived or name in gone:
            continue
        of, shape, first = _part(graph, name)
        kind = "params" if of in graph.vars and graph.vars[of].initial is None else "others"
        known = updated.get(name, Whole((), "", (), (kind, of)))
        old = found.get(of, known._replace(shape=shape, dtype=var.dtype))
        found[of] = old._replace(pieces=(*old.pieces, Piece(name, first, math.prod(var.shape))))
    return found


def _part(graph: Graph, name: str) -> Part:
    """The whole that a variable is part of, or the variable itself."""
    var = graph.vars[name]
    return var.part or Part(name, var.shape, 0)


def _updated(graph: Graph, numbers: Mapping[str, Any]) -> dict[str, Whole]:
    """For each variable of an update that is not a gradient, its entry in a checkpoint, by name."""
    far = {near: x for op in graph.main if op.type == "copy_in"
           for x, near in zip(op.inputs["x"], op.outputs["out"], strict=True)}
    derived, types, found = copies(graph), update_types(graph), dict[str, Whole]()
    for op in (op for op in graph.main if op.type in types):
        routine = routine_of(op)
        assert routine is not None
        new = {key: numbers[key] for key in changeable(op, routine) if key in numbers}
        now = op.replace(attrs={**op.attrs, **new}) if new else op
        columns = {slot: graph.views.get(names[0], names) if len(names) == 1 else names
                   for slot, names in op.inputs.items() if slot not in (*SHARED, "grads")}
        for k, param in enumerate(columns["params"]):
            copy = _part(graph, param).name
            own = _part(graph, derived.get(copy, copy)).name
            attrs = of_tensor(now, routine, k)
            if "master_params" not in columns or copy in derived:
                attrs.pop("norm_of", None)  # either is that of the parameter, and fold_casts changes it
            for slot, names in columns.items():
                name = far.get(names[k], names[k])
                if slot == "params" or own == _part(graph, name).name:
                    own_attrs = {**attrs, "count": op.attrs["count"]} if "count" in op.attrs else attrs
                    found[name] = Whole((), "", (), ("params", own), routine.name, own_attrs)
                else:
                    found[name] = Whole((), "", (), ("states", own, slot), routine.name, routine.parted(attrs)[0])
    return found


SETTINGS = "finish_check", "update_loss_scaling"  # types of ops that all ranks have, with the same attributes


def common(graph: Graph) -> dict[str, Any]:
    """What ranks that train the same parameters must have in common, by name of a variable or op, and argument.

    For a parameter, it is how its owners update it, and which ranks neither update nor receive it.
    """
    found = {(op.type, key): x for op in graph.main if op.type in SETTINGS for key, x in op.attrs.items()}
    for each in wholes(graph).values():
        kind, name, *slot = each.key
        if kind == "others":
            found[name, "initial"] = graph.vars[name].initial
        elif slot:
            found[name, slot[0]] = each.dtype
        elif each.routine or not graph.cells(piece.name for piece in each.pieces) & graph.writers.keys():
            found |= {(name, key): x for key, x in (("update", each.routine or "none"), *each.hypers.items())}
            for row in KNOWN[each.routine].slots if each.routine else ():
                found.setdefault((name, row.name), "none")
    return {": ".join(keys): _plain(x) for keys, x in found.items()}


def _plain(value: Any) -> float | str:
    """A number, or anything else as text."""
    return float(value) if is_number(value) else str(value)


def copies(graph: Graph) -> dict[str, str]:
    """Variables that startup casts from another one, and that remain copies of it: its name by theirs."""
    casts = (op for op in graph.startup if op.type == "cast")
    return {out: x for op in casts for x, out in zip(op.inputs["x"], op.outputs["out"], strict=True)}


def whole_of(bound: Context, name: str) -> np.ndarray:
    """A variable assembled from this rank's blocks."""
    own = wholes(bound.program).get(name)
    if own is None:
        raise ValueError(f"Bound.read: expected a dense variable of the program, got {name!r}")
    parts = [piece for _, piece in _cover([(0, own)])]
    if sum(piece.size for piece in parts) < math.prod(own.shape):
        got = f"got {name!r}, of which others have blocks; state_dict() has them all"
        raise ValueError(f"Bound.read: expected a variable that is on this rank as a whole, {got}")
    return np.concatenate([bound.read(piece.name).reshape(-1)[: piece.size] for piece in parts]).reshape(own.shape)


def saved(bound: Context, numbers: Mapping[str, Any]) -> dict[str, Any]:
    """See `refopt.program.Bound.state_dict`."""
    numbers = deepcopy(dict(numbers))
    state: dict[str, Any] = {"version": VERSION, "steps": bound.steps, "numbers": numbers}
    state |= {"params": {}, "states": {}, "others": {}}
    together = _together(bound)
    state |= {"rank": own} if (own := _rank(bound)) else {}
    for there in _everywhere(bound, together, numbers).values():
        one = _first_update(there)
        flat = np.empty(math.prod(one.shape), numpy_dtype(one.dtype))
        for root, piece in _cover(there):
            flat[piece.first : piece.first + piece.size] = _sent(bound, together, root, piece, one.dtype)
        kind, name, *slot = one.key
        if slot:
            slots = {row.name: [None] for row in KNOWN[one.routine].slots if row.name not in ("params", "grads")}
            new = {"routine": one.routine, "version": VERSION, "hypers": dict(one.hypers), "slots": slots}
            state[kind].setdefault(name, new)["slots"][slot[0]] = [flat.reshape(one.shape)]
        else:
            state[kind][name] = flat.reshape(one.shape)
    return state


Held = list[tuple[int, Whole]]  # ranks, and what they hold
Loaded = tuple[dict[str, np.ndarray], dict[str, Any], int]  # variables by name, numbers, steps


def check(bound: Context, state: Any, check_numbers: Callable[[dict[str, Any]], None]) -> Loaded:
    """The variables, numbers and steps of a checkpoint; raises on all ranks if one refuses its checkpoint."""
    together = _together(bound)
    everywhere = _everywhere(bound, together)
    try:
        loaded, refusal = _checked(bound, everywhere, state, check_numbers), None
    except (TypeError, ValueError) as error:
        loaded, refusal = None, error
    same = loaded and (loaded if together else ({}, *loaded[1:]))  # what must be the same on all ranks
    told = _gathered(bound.comm, [str(refusal or ""), loaded and loaded[2], same and _digest(same)])
    if loaded is None:
        assert refusal is not None
        raise refusal
    for rank, (text, *_) in enumerate(told):
        if text:
            raise ValueError(f"{WHERE}: refused by rank {rank}: {text}")
    for rank, (_, steps, digest) in enumerate(told):
        if steps != told[0][1]:
            raise ValueError(f"{WHERE}: 'steps': expected {told[0][1]}, as rank 0 has, got {steps} on rank {rank}")
        if digest != told[0][2]:
            raise ValueError(f"{WHERE}: expected what rank 0 has on all ranks, got another on rank {rank}")
    return loaded


def _digest(loaded: Loaded) -> str:
    """A digest that differs between different checkpoints."""
    arrays, numbers, steps = loaded
    digest = hashlib.sha256(repr([sorted(numbers.items()), steps]).encode())
    for name in sorted(arrays):
        digest.update(np.ascontiguousarray(arrays[name]).tobytes())
    return digest.hexdigest()


def _checked(
    bound: Context, everywhere: Mapping[str, Held], state: Any, check_numbers: Callable[[dict[str, Any]], None]
) -> Loaded:
    where, taken = WHERE, _Taken()
    entries = mapped(where, state, (*KEYS, "rank"), KEYS)
    if (own := _rank(bound)) and (came := entries.get("rank", own)) != own:
        raise ValueError(f"{where}: 'rank': expected {own}, this rank and their number, got {shown(came)}")
    if whole(f"{where}: version", entries["version"]) != VERSION:
        raise ValueError(f"{where}: version: expected {VERSION}, got {shown(entries['version'])}")
    of: dict[str, dict[str, Var]] = {"params": {}, "others": {}}
    updates: dict[str, tuple[Whole, dict[str, Any]]] = {}
    for name, held in everywhere.items():
        expected = _first_update(held)
        (kind, param, *slot), var = expected.key, Var(name, expected.shape, expected.dtype)
        if slot:
            updates.setdefault(param, (expected, {}))[1][slot[0]] = [var]
        else:
            of[kind][param] = var
    for kind, vars in of.items():
        for name, value in _named(f"{where}: {kind!r}", entries[kind], vars).items():
            taken.take(f"{where}: {kind!r}: {name!r}", value, vars[name])
    states = _named(f"{where}: 'states'", entries["states"], updates)
    for param, (expected, slots) in updates.items():
        choices = {key: x for key, x in expected.hypers.items() if key in KNOWN[expected.routine].choices}
        slots["params"] = [of["params"][param]]
        try:
            load(states[param], _by_row(KNOWN[expected.routine], slots), slots, choices=choices, memory=taken)
        except (TypeError, ValueError) as error:
            raise type(error)(f"{where}: 'states': {param!r}: {error}") from None
    _check_scaling(f"{where}: 'others'", bound.program, taken.arrays)
    numbers = mapped(f"{where}: 'numbers'", entries["numbers"])
    check_numbers(numbers)
    return taken.arrays, numbers, whole(f"{where}: 'steps'", entries["steps"], 0)


def _by_row(routine: Routine, slots: Mapping[str, Any]) -> Routine:
    """The routine, with scalars of rows if there are several."""
    by_row = any(slots[name][0].shape != (1,) for name in routine.scalars)
    return routine._replace(slots=lazy_row(routine.name, "row").slots) if by_row else routine


def _named(where: str, value: Any, names: Collection[str]) -> dict[str, Any]:
    """The entries of a part of a checkpoint; raises unless it has those of the program's variables."""
    entries = mapped(where, value)
    if missing := [name for name in names if name not in entries]:
        raise ValueError(f"{where}: {missing[0]!r}: expected an entry, got none")
    if others := [name for name in entries if name not in names]:
        raise ValueError(f"{where}: expected variables of the program, got {others[0]!r}")
    return entries


class _Taken(Describer):
    """The memory that `refopt.state.load` loads a checkpoint into: what is checked before anything is modified.

    Attributes:
        arrays: what has been loaded, by name of a variable.
    """

    describe = Describer.__call__

    def __init__(self) -> None:
        super().__init__()
        self.arrays: dict[str, np.ndarray] = {}

    def take(self, where: str, value: Any, var: Var) -> None:
        """An array for a variable; raises if it has another shape or dtype."""
        array = host_array(value, where)
        if (array.shape, array.dtype) != (var.shape, var.dtype):
            expected, got = (f"{x.dtype} of shape {x.shape}" for x in (var, array))
            raise ValueError(f"{where}: expected {expected}, got {got}")
        self.arrays[var.name] = value

    def read(self, value: Var, array: Array) -> np.ndarray:
        return self.arrays[value.name]

    def write(self, value: Var, array: Array, host: np.ndarray) -> None:
        self.arrays[value.name] = host

    def finish(self) -> None:
        """Nothing is pending."""


def _check_scaling(where: str, graph: Graph, arrays: Mapping[str, np.ndarray]) -> None:
    """Raise if a loss scale or a count of steps cannot result from a step."""
    for op in graph.main:
        for slot, (name,) in op.outputs.items() if op.type == "update_loss_scaling" else ():
            for value in arrays[name].tolist() if name in arrays else ():
                if slot == "loss_scale":
                    number(f"{where}: {name!r}", value, above=0, finite=True)
                else:
                    whole(f"{where}: {name!r}", value, 0)


def write(bound: Context, vars: Mapping[str, np.ndarray]) -> None:
    """Overwrite a program's parts of whole variables, and the copies of these."""
    graph = bound.program
    for name, own in wholes(graph).items():
        flat = np.ascontiguousarray(vars[name]).reshape(-1)
        for piece in own.pieces:
            part = flat[piece.first : piece.first + piece.size]
            bound.backend.write(bound.arrays[piece.name], part.reshape(graph.vars[piece.name].shape))
    for copy, source in copies(graph).items():
        var = graph.vars[copy]
        rounded = np.empty(var.shape, numpy_dtype(var.dtype))
        cpu.merged_cast([np.ascontiguousarray(vars[source]).reshape(var.shape)], [rounded])
        bound.backend.write(bound.arrays[copy], rounded)


def _everywhere(bound: Context, comm: Any, numbers: Mapping[str, Any] = MappingProxyType({})) -> dict[str, Held]:
    """By name of a whole variable, the ranks that hold parts of it, and which; the same on all ranks of ``comm``."""
    there: dict[str, Held] = {}
    own = {name: each._replace(hypers=dict(each.hypers)) for name, each in wholes(bound.program, numbers).items()}
    for rank, theirs in enumerate(_gathered(comm, own)):
        for name, (shape, dtype, pieces, key, routine, hypers) in theirs.items():
            one = Whole(tuple(shape), dtype, tuple(Piece(*x) for x in pieces), tuple(key), routine, hypers)
            there.setdefault(name, []).append((rank, one))
    return there


def _together(bound: Context) -> Any:
    """The communicator of ranks that have one checkpoint; ``None`` if this rank has its own, since it trains alone."""
    return None if any("every" in op.attrs for op in bound.program.main) else bound.comm


def _rank(bound: Context) -> list[int]:
    """This rank and how many there are, if it trains alone; empty otherwise."""
    return [] if _together(bound) is bound.comm else [bound.comm.rank, bound.comm.size]


def _gathered(comm: Any, value: Any) -> list[Any]:
    """A value of each rank, as JSON represents it, in rank order."""
    text = json.dumps(value, default=_plain).encode()
    return [json.loads(each) for each in ([text] if comm is None else comm.gather_bytes(text))]


def _first_update(held: Held) -> Whole:
    """What the first rank holds that updates it, or else the first."""
    return next((each for _, each in held if each.routine), held[0][1])


def _cover(there: Held) -> list[tuple[int, Piece]]:
    """The ranks and pieces that make up a whole variable, each element once."""
    chosen: list[tuple[int, Piece]] = []
    end = 0
    pieces = ((rank, piece) for rank, each in there for piece in each.pieces)
    for rank, piece in sorted(pieces, key=lambda x: (x[1].first, -x[1].size, x[0])):
        if piece.first == end and piece.size:
            chosen.append((rank, piece))
            end += piece.size
    return chosen


def _sent(bound: Context, comm: Any, root: int, piece: Piece, dtype: str) -> np.ndarray:
    """A piece that one rank holds, sent to all ranks of ``comm``."""
    if comm is None or comm.rank == root:
        value = np.ascontiguousarray(bound.read(piece.name)).reshape(-1)[: piece.size]
    else:
        value = np.empty(piece.size, numpy_dtype(dtype))
    if comm is None:
        return value
    array = bound.backend.upload(value.view(np.uint8))  # of no dtype that a communicator lacks, such as uint16
    comm.broadcast(array, root)
    return bound.backend.read(array).view(value.dtype)
