"""Distributing a step that every rank does in full among the ranks that own its parameters."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from typing import Any

from refopt.program.model import Op
from refopt.program.ops.coalescing import LAYOUT
from refopt.program.ops.updates import MERGED, SHARED, is_flat, is_of_each, routine_of, update_types
from refopt.program.passes.dependencies import title
from refopt.program.passes.eligibility import STAGES
from refopt.program.passes.gradients import params_of
from refopt.program.program import Program

PAIRWISE = "scale", "cast", "sum", "scatter_add", "copy_in", "copy_out"  # each of x and its place in out separately


class Declined(Exception):
    """A step cannot be distributed to owners, for a reason."""


def owned(
    program: Program, owners: Mapping[str, int], degree: int, params: Mapping[str, str] | None = None,
    axis: str | None = None,
) -> list[Op]:
    """The ops of a step of all ranks in which only the owner of a parameter works on it.

    A gradient is reduced to the owner, which averages, checks and updates; `sent` lists what is then broadcast. Each
    rank checks its own gradients; whether one was inf or NaN, and the sums of squares for the norm, are added up over
    the ranks. A rank that owns nothing of a routine has an update of no tensors, so that it accepts the same numbers in
    a step as the others.

    Args:
        program: a step of ``degree`` ranks that sum their gradients.
        owners: by parameter, the rank that owns it; all ranks keep working on other parameters.
        degree: how many ranks there are.
        params: by name of a gradient, its parameter, if updates do not determine it.
        axis: the mesh axis of the ranks; the owner sums along other axes.

    Raises:
        Declined: one rank alone cannot do something.
    """
    return _Owners(program, owners, degree, params, axis).main()


def sent(program: Program, owners: Mapping[str, int]) -> list[tuple[str, int, str | None]]:
    """For each parameter, the variable that the model's passes read, its root and its layer, in update order."""
    read = {name for op in program.main if op.role in STAGES for name in op.reads}
    copies: dict[str, list[str]] = {}
    for op in program.main:
        if op.type == "cast" and op.role == "optimize":
            for x, out in zip(op.inputs["x"], op.outputs["out"], strict=True):
                copies.setdefault(x, []).append(out)
    layers = {name: op.layer for op in updates_of(program) for name in op.outputs["params"]}
    return [
        (name, owners[param], layer) for param, layer in layers.items() if param in owners
        for name in [x for x in dict.fromkeys((param, *copies.get(param, ()))) if x in read] or [param]
    ]


def updates_of(program: Program) -> list[Op]:
    """The ops of routines."""
    types = update_types(program)
    return [op for op in program.main if op.type in types]


def part_of(op: Op, places: Sequence[int], **changes: object) -> Op:
    """An op restricted to some of its tensors, in the order of ``places``."""
    count = len(next(names for slot, names in op.inputs.items() if slot in ("params", "x")))
    if list(places) == list(range(count)):
        return op.replace(**changes)
    routine = routine_of(op)
    several = {key for key, x in op.attrs.items() if key == "positions" or (routine and is_of_each(routine, key, x))}
    attrs = {key: tuple(x[k] for k in places) if key in several else x for key, x in op.attrs.items()}
    return op.with_names(
        lambda slot, names: names if slot in _WHOLE else [names[k] for k in places], attrs=attrs, **changes
    )


_WHOLE = frozenset([*SHARED, "ring", "odd"])  # slots for all tensors together


class _Owners:
    """Goes through the ops of a step in order, and tracks what only one rank has."""

    def __init__(
        self, program: Program, owners: Mapping[str, int], degree: int, params: Mapping[str, str] | None,
        axis: str | None,
    ) -> None:
        self._program, self._owners, self._degree, self._axis = program, owners, degree, axis
        self._updates = updates_of(program)
        self._params = params_of(program) if params is None else params
        self._home: dict[str, int] = {}  # of states and parameters from the start, of gradients once they are reduced
        self._reduced: set[str] = set()
        for op in self._updates:
            self._settle(op)
        for _ in range(2):  # copies come before and after updates, of states that updates know by other names
            for op in program.main:
                if op.role == "optimize" and op.type in PAIRWISE:
                    self._spread(op)

    def main(self) -> list[Op]:
        main = [each for op in self._program.main for each in self._given(op)]
        return main + of_nothing([op for op in main if routine_of(op) is not None], self._degree)

    def _settle(self, op: Op) -> None:
        """Assign an update's variables, except gradients, to the owners of its parameters."""
        if is_flat(self._program, op):
            raise Declined(f"{title(op)} updates a buffer of several parameters; apply fuse_optimizer afterwards")
        for slot, names in op.inputs.items():
            for param, name in zip(op.inputs["params"], names, strict=True) if slot not in (*SHARED, "grads") else ():
                self._put(name, self._owners.get(param), op)

    def _spread(self, op: Op) -> None:
        for x, out in zip(op.inputs["x"], op.outputs["out"], strict=True):
            home = self._home.get(x, self._home.get(out))
            self._put(x, home, op)
            self._put(out, home, op)

    def _put(self, name: str, home: int | None, op: Op) -> None:
        if home is not None and self._home.setdefault(name, home) != home:
            raise Declined(f"{title(op)}: {name!r} is on rank {self._home[name]}, and would also be on rank {home}")

    def _given(self, op: Op) -> Iterable[Op]:
        """The ops that replace an op."""
        if op.type == "all_reduce" and op.attrs.get("axis") == self._axis:
            return self._reduce(op)
        if op.type == "check_gradients":
            return self._check(op)
        if routine_of(op) is not None:
            return self._update(op)
        if op.type == "scatter_add" and op.role not in STAGES:
            for name in op.outputs["out"]:
                self._arrive(name)
        if op.role in STAGES and self._reduced.isdisjoint(op.reads):
            return [op]
        if op.type in (*PAIRWISE, "all_reduce"):
            return self._pairs(op)
        return [op.replace(device=self._one_home(op))]

    def _reduce(self, op: Op) -> list[Op]:
        """Reductions to each owner, for gradients that are reduced together."""
        ops = []
        for root, run in groupby(op.inputs["x"], key=lambda name: self._owners.get(self._params.get(name, ""))):
            names = tuple(run)
            attrs = {key: value for key, value in op.attrs.items() if len(names) > 1 or key not in LAYOUT}
            each = op.with_names(lambda *_, names=names: names, attrs=attrs)
            ops.append(each if root is None else each.replace(type="reduce", attrs={**attrs, "root": root}))
            for name in names:
                self._arrive(name)
        return ops

    def _arrive(self, name: str) -> None:
        """Record that a gradient is reduced, to the owner of its parameter if there is one."""
        home = self._owners.get(self._params.get(name, ""))
        if home is not None:
            self._home[name] = home
            self._reduced.add(name)

    def _check(self, op: Op) -> list[Op]:
        """The check of what each rank has, and the sums over the ranks."""
        homes = [self._home.get(name, 0) for name in op.inputs["x"]]
        if not self._home.keys() & op.reads:
            return [op]
        return _by_home(op, homes, range(self._degree)) + added_up(self._program, op, self._degree, self._axis)

    def _update(self, op: Op) -> list[Op]:
        """The update of each rank."""
        homes = [self._owners.get(name) for name in op.outputs["params"]]
        for home, grad in zip(homes, op.inputs["grads"], strict=True):
            if home is not None and self._home.get(grad) != home:
                raise Declined(f"{title(op)}: {grad!r} is not reduced over the ranks")
        return _by_home(op, homes, dict.fromkeys(homes))

    def _pairs(self, op: Op) -> list[Op]:
        homes = [
            self._home.get(x, self._home.get(out)) for x, out in zip(op.inputs["x"], op.outputs["out"], strict=True)
        ]
        for home, x, out in zip(homes, op.inputs["x"], op.outputs["out"], strict=True):
            if home is not None:
                self._home[x] = self._home[out] = home
                self._reduced |= {x, out} & self._params.keys()
        return _by_home(op, homes, dict.fromkeys(homes))

    def _one_home(self, op: Op) -> int | None:
        """The only rank that has an op's variables; ``None`` for all ranks."""
        homes = {name: self._home[name] for name in (*op.reads, *op.writes) if name in self._home}
        first = next(iter(homes), "")
        for name, home in homes.items():
            if home != homes[first]:
                raise Declined(f"{title(op)}: {first!r} is on rank {homes[first]}, and {name!r} on rank {home}")
        return homes.get(first)


def _by_home(op: Op, homes: Sequence[int | None], wanted: Iterable[int | None]) -> list[Op]:
    """An op's parts on some ranks, each with the tensors that belong there."""
    return [part_of(op, [k for k, each in enumerate(homes) if each == home], device=home) for home in wanted]


def along(degree: int, axis: str | None) -> dict[str, Any]:
    """The attributes of a collective of ``degree`` ranks, along an axis if there is one."""
    return {"ranks": degree} if axis is None else {"ranks": degree, "axis": axis}


def added_up(program: Program, check: Op, degree: int, axis: str | None = None) -> list[Op]:
    """The sums over ranks of the results of gradient checks; of squares only if a norm needs them."""
    ends = (each for each in program.main if each.type == "finish_check")
    norms = {name for each in ends for name in each.inputs.get("sums", ())}
    over = [check.outputs["odd"], *([check.outputs["sums"]] if norms & {*check.outputs["sums"]} else [])]
    return [Op("all_reduce", {"x": x}, {"out": x}, along(degree, axis), "communicate") for x in over]


def nothing_of(op: Op, device: int | None = None) -> Op:
    """An update of no tensors that accepts the same numbers as an update."""
    return part_of(op, (), type=MERGED + op.type.removeprefix(MERGED), layer=None, device=device)


def of_nothing(updates: Sequence[Op], degree: int) -> list[Op]:
    """Updates of no tensors, of each type for each rank without one, so that all ranks accept the same numbers."""
    ranks: dict[str, set[int | None]] = {}
    for op in updates:
        ranks.setdefault(op.type, set()).add(op.device)
    first = {op.type: op for op in reversed(updates) if routine_of(op) is not None}
    return [
        nothing_of(op, rank)
        for op in first.values() if None not in ranks[op.type] for rank in range(degree) if rank not in ranks[op.type]
    ]
