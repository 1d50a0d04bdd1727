"""Collectives of different owners in one call, so that links are used in both directions at once."""

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

    Broadcasts of a step are treated alike. The op replaces the last of its members, and averages of the reduced
    gradients come right after it; a root without a further call is left out, and a call that is the only one in its
    turn is kept. Apply it after `passes.fuse_reduces`, `refopt.program.passes.fuse_optimizer` and
    `refopt.program.passes.fuse_broadcasts`, which handle only single collectives.

    All ranks must find the same batches; if their other ops differ so much that they do not, `bind` raises.
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

    Passes of the model are treated separately, and so are reductions of each dtype: an owner alone casts its gradients
    between those in 16 bits and those in fp32.
    """
    stages: dict[tuple[int, str], dict[int, list[int]]] = {}
    numbers = dependencies.forward_passes(program)
    for i, op in enumerate(program.main):
        if op.type == kind:
            dtype = program.vars[op.inputs["x"][0]].dtype if kind == "reduce" else ""
            stages.setdefault((numbers[i], dtype), {}).setdefault(op.attrs["root"], []).append(i)
    turns = []
    for roots in stages.values():
        ordered = [roots[root] for root in sorted(roots)]
        for turn in range(max(map(len, ordered))):
            turns.append([places[turn] for places in ordered if turn < len(places)])
    return turns


def _averages(program: Program, places: list[int]) -> list[int]:
    """Places of the averages, and of the sums along other axes, that follow some reductions and lie between them."""
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
    """How ops differ apart from roots, and from layouts, which a single variable does not need; or empty."""
    wide = [op for op in ops if len(op.inputs["x"]) > 1]
    return _differing(ops, "root", *LAYOUT) or _differing(wide, "root")


def _differing(ops: list[Op], *aside: str) -> str:
    plain = [op.replace(attrs={key: value for key, value in op.attrs.items() if key not in aside}) for op in ops]
    return unlike(plain)
