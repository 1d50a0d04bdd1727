"""Which ops may be moved: reads and writes of ops, by memory."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection, Iterable, Mapping, Sequence

from refopt.program.model import Op
from refopt.program.program import Program

Move = tuple[Collection[int], Sequence[Op]]  # places of ops, and the ops that come instead, where the last of them was


def among(program: Program, ops: Sequence[Op]) -> str:
    """Why ops cannot be done at once, because one depends on another. Empty if they can."""
    readers: dict[str, Op] = {}
    writers: dict[str, Op] = {}
    for op in ops:
        reads, writes = program.cells(op.reads), program.cells(op.writes)
        for cell in sorted(reads | writes):
            if cell in writers:
                what = "changes" if cell in writes else "reads"
                return f"{title(op)} {what} {cell!r}, which {title(writers[cell])} changes"
        for cell in sorted(writes):
            if cell in readers:
                return f"{title(op)} changes {cell!r}, which {title(readers[cell])} reads"
        writers.update(dict.fromkeys(writes, op))
        readers.update(dict.fromkeys(reads, op))
    return ""


def between(program: Program, members: Collection[int]) -> str:
    """Why ops, by place, cannot be postponed to the last of them: an op in between depends on them. Or empty."""
    i = _first_between(program, members)
    if i is None:
        return ""
    op, before = program.main[i], sorted(k for k in members if k < i)
    reads, writes = (
        {cell: member for k in before for member in [program.main[k]] for cell in program.cells(getattr(member, side))}
        for side in ("reads", "writes")
    )
    for cell in sorted(program.cells(op.reads) | program.cells(op.writes)):
        if cell in writes:
            return f"{title(op)} in between needs {cell!r}, which {title(writes[cell])} changes"
    cell = min(program.cells(op.writes) & reads.keys())
    return f"{title(op)} in between changes {cell!r}, which {title(reads[cell])} reads"


def _first_between(program: Program, members: Collection[int]) -> int | None:
    """The place of the first other op between members that depends on members before it.

    Its cost depends on how often the members' memory is used, not on the number of ops in between.
    """
    inside, last = frozenset(members), max(members)
    read: dict[str, int] = {}  # by memory, the first member that reads it, or writes it
    written: dict[str, int] = {}
    for i in sorted(inside):
        for places, names in ((read, program.main[i].reads), (written, program.main[i].writes)):
            for cell in program.cells(names):
                places.setdefault(cell, i)
    best = last
    for firsts, sides in ((written, (0, 1)), (read, (1,))):
        for cell, first in firsts.items():
            for side in sides:
                best = min(best, _next(program.users[cell][side], first, best, inside))
    return None if best == last else best


def _next(places: Sequence[int], after: int, end: int, without: Collection[int]) -> int:
    """The first of ascending places after one that is not among some others; at most an end."""
    for k in range(bisect_right(places, after), len(places)):
        if places[k] >= end:
            break
        if places[k] not in without:
            return places[k]
    return end


def first_after(program: Program, place: int, names: Iterable[str]) -> int | None:
    """The place of the first op after a place that reads or writes some variables, if there is one."""
    end = len(program.main)
    sides = [side for cell in program.cells(names) for side in program.users.get(cell, ())]
    nearest = min((_next(side, place, end, ()) for side in sides), default=end)
    return None if nearest == end else nearest


def title(op: Op) -> str:
    """An op in words: its type and its first variable."""
    slot = next((slot for slot in ("params", "grads", "x", "out") if slot in op.outputs), None)
    names = op.outputs[slot] if slot else op.writes or op.reads
    return f"{op.type} of {names[0]!r}" if names else op.type


def rewritten(program: Program, moves: Iterable[Move]) -> tuple[Op, ...]:
    """The ops of ``main`` with some replaced."""
    gone: set[int] = set()
    come: dict[int, list[Op]] = {}
    for members, ops in moves:
        gone |= set(members)
        come.setdefault(max(members), []).extend(ops)
    main: list[Op] = []
    for i, op in enumerate(program.main):
        main += [] if i in gone else [op]
        main += come.get(i, [])
    return tuple(main)


def layer_of(ops: Iterable[Op]) -> str | None:
    """The layer of all ops, or ``None``."""
    layers = {op.layer for op in ops}
    return layers.pop() if len(layers) == 1 else None


ANY = object()  # axes


def singles(program: Program, kind: str, role: str | None = None, axis: object = ANY) -> dict[str, list[int]]:
    """By variable, places of the ops of a type on that variable alone, with a role and an axis, if given."""
    places: dict[str, list[int]] = {}
    for i, op in enumerate(program.main):
        if op.type != kind or len(op.inputs["x"]) != 1 or axis not in (ANY, op.attrs.get("axis")):
            continue
        if role in (None, op.role):
            places.setdefault(op.inputs["x"][0], []).append(i)
    return places


ALONE = "is reduced to one rank, or sent from one, and other ranks have no buffer for it"


def rooted(program: Program) -> set[str]:
    """Names of the variables of collectives with a root, which one rank alone gets or sends."""
    return {name for op in program.main if op.attrs.keys() & {"root", "roots"} for name in op.reads}


def sums_by_axis(program: Program, role: str | None = None) -> dict[object, dict[str, list[int]]]:
    """By axis, in the order of the sums, the all-reduces that `singles` finds."""
    axes = dict.fromkeys(op.attrs.get("axis") for op in program.main if op.type == "all_reduce")
    return {axis: singles(program, "all_reduce", role, axis) for axis in axes}


def rows_along(
    sums: Iterable[Mapping[str, Sequence[int]]], names: Sequence[str], after: Sequence[int]
) -> list[tuple[int, ...]]:
    """For each axis that has some, places of variables' last sums after a given place for each variable."""
    pairs, rows = list(zip(names, after, strict=True)), []
    for each in sums:
        row = tuple(each[name][-1] for name, place in pairs if name in each and each[name][-1] > place)
        rows += [row] if row else []
    return rows


def forward_passes(program: Program) -> list[int]:
    """By place, how many passes of the model have begun; all ranks agree on what lies between two of them."""
    numbers, number, within = [], 0, False
    for op in program.main:
        number += op.role == "forward" and not within
        within = op.role == "forward"
        numbers.append(number)
    return numbers
