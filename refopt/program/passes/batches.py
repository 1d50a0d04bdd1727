"""Collectives of different owners at once, so that links carry in both directions what otherwise comes in turn."""

from __future__ import annotations

from bisect import bisect_left

from refopt.program.model import Op
from refopt.program.ops.coalescing import LAYOUT
from refopt.program.ops.collectives import BATCHED, batch_of
from refopt.program.passes import dependencies
from refopt.program.passes.attributes import unlike
from refopt.program.passes.result import Result, moved
from refopt.program.program import Program, expect_program


def batch_owners(program: Program) -> Result:
    """Replace the first reduction to each root by one op that makes them all at once, the second to each, and so on.

    The broadcasts of a step likewise. The op stands where the last of its members stood, and averages of what has been
    reduced in between come right after it; a root that has no further call is not in it, and a call that is the only
    one of its turn stays as it is. Comes after `passes.fuse_reduces`, `refopt.program.passes.fuse_optimizer` and
    `refopt.program.passes.fuse_broadcasts`, which know single collectives only.

    All ranks must find the same batches; if what ranks do in between differs so much that they do not, `bind` says so.
    """
    expect_program("batch_owners", program)
    reasons: list[str] = []
    moves = []
    for kind in BATCHED:
        for turn, places in enumerate(_turns(program, kind)):
            if len(places) < 2:
                continue
            ops, averages = [program.main[i] for i in places], _averages(program, places)
            members = [*places, *averages]
            reason = _unlike(ops) or dependencies.among(program, ops) or dependencies.between(program, members)
            if reason:
                reasons.append(f"{kind} {turn} of each root: {reason}")
                continue
            layer = dependencies.layer_of(ops)
            moves.append((members, [batch_of(ops).replace(layer=layer), *(program.main[i] for i in averages)]))
    return moved(program, moves, reasons, "no two roots have a collective each that can be one op")


def _turns(program: Program, kind: str) -> list[list[int]]:
    """Places in ``main`` of the first collective of each root, of the second of each, and so on; by number of root.

    For each pass of the model apart.
    """
    passes: dict[int, dict[int, list[int]]] = {}
    numbers = dependencies.forward_passes(program)
    for i, op in enumerate(program.main):
        if op.type == kind:
            passes.setdefault(numbers[i], {}).setdefault(op.attrs["root"], []).append(i)
    turns = []
    for roots in passes.values():
        ordered = [roots[root] for root in sorted(roots)]
        for turn in range(max(map(len, ordered))):
            turns.append([places[turn] for places in ordered if turn < len(places)])
    return turns


def _averages(program: Program, places: list[int]) -> list[int]:
    """Places of the averages, and of the sums along other axes, between some reductions, after those that they are of.
    """
    reduced = {i: program.cells(program.main[i].writes) for i in places}
    about: dict[int, int] = {}  # by place of such an op, the last of those reductions
    for place, cells in reduced.items():
        for cell in cells:
            writes = program.users[cell][1]
            for i in writes[bisect_left(writes, min(places)) : bisect_left(writes, max(places))]:
                op = program.main[i]
                if op.type in ("scale", "all_reduce") and op.role == "communicate":
                    about[i] = max(place, about.get(i, place))
    return sorted(i for i, place in about.items() if place < i)


def _unlike(ops: list[Op]) -> str:
    """In what ops differ beside their roots, and layouts that a single variable has no use for; empty if in nothing."""
    wide = [op for op in ops if len(op.inputs["x"]) > 1]
    return _differing(ops, "root", *LAYOUT) or _differing(wide, "root")


def _differing(ops: list[Op], *aside: str) -> str:
    plain = [op.replace(attrs={key: value for key, value in op.attrs.items() if key not in aside}) for op in ops]
    return unlike(plain)
