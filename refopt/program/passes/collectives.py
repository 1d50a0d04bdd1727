"""Fusing collectives: all-reduces of a group, reductions to an owner, and broadcasts from one.

Each pass works on collectives of one variable each. It declines if they differ, if one depends on another, or if an op
in between needs what they change; otherwise it replaces them by one op, over a range of a buffer, in the last one's
place. Multiplications by 1 / W after reductions are fused in the same way.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any

from refopt.program.model import UNKNOWN, Op, Var
from refopt.program.ops.coalescing import LAYOUT
from refopt.program.passes import dependencies
from refopt.program.passes.attributes import unlike, unlike_averages
from refopt.program.passes.coalesce import coalesce_op
from refopt.program.passes.dependencies import Move
from refopt.program.passes.grouping import check_limit, fuse_size
from refopt.program.passes.result import Result, moved
from refopt.program.program import Program, expect_program

BUFFERS = {"reduce": "FusedGrad_{}", "broadcast": "FusedBroadcast_{}"}
UNEVEN = "only some are also summed along another axis"


def fuse_all_reduce(program: Program) -> Result:
    """Replace the all-reduces of each group of gradients by one, and the multiplications by 1 / W after them by one.

    Groups are those that `coalesce_gradients` has put into buffers. The fused op reduces the range from the first
    gradient to the padding of the last, which is zero and is reduced, too; it takes the place of the group's last op.
    Startup checks by their addresses that the gradients are contiguous.

    Source: Paddle's ``fuse_all_reduce_op_pass`` of PR 15921, first in PR 15497. It never averages: its gradients come
    from a loss that has been scaled.
    """
    expect_program("fuse_all_reduce", program)
    moves: list[Move] = []
    reasons = [] if program.views else ["no gradients are in buffers; apply coalesce_gradients first"]
    sums = dependencies.sums_by_axis(program, "communicate").values()
    scales = dependencies.singles(program, "scale", "communicate")
    for layout, names in _groups(program):
        rows = dependencies.rows_along(sums, names, [-1] * len(names))
        if len(names) < 2 or not rows:
            continue
        averages, reason = checked(program, rows[0], scales, "sum", chain(*rows[1:]))
        if len(rows[0]) < len(names):
            summed = {program.main[i].inputs["x"][0] for i in rows[0]}
            reason = f"{next(name for name in names if name not in summed)!r} has no all_reduce of its own"
        elif any(len(row) < len(names) for row in rows):
            reason = UNEVEN
        if reason:
            reasons.append(f"group from {names[0]!r} to {names[-1]!r}: {reason}")
            continue
        moves.append(([*chain(*rows), *averages], _reduced(program, rows, averages, layout)))
    return moved(program, moves, reasons, "no group has two or more gradients that are reduced separately")


def _reduced(
    program: Program, rows: Sequence[Sequence[int]], averages: list[int], layout: Mapping[str, Any]
) -> list[Op]:
    """One reduction for a group along each axis, and one multiplication, if there are any."""
    layer = dependencies.layer_of(program.main[i] for i in (*chain(*rows), *averages))
    fused = [*(_one(program, row, layout) for row in rows), *([_one(program, averages, {})] if averages else [])]
    return [op.replace(layer=layer) for op in fused]


def fuse_reduces(program: Program, limit: float = 32.0) -> Result:
    """Fuse the reductions of a step for each run of gradients of one owner and dtype, and likewise the averages.

    The gradients of a run become views of a buffer at startup, equally on all ranks; the fused op reduces their range,
    padding included, in the place of the run's last op. The multiplications by 1 / W after them, even of a single
    gradient, become ops of the optimizer's stage and move as late as possible: right before the first use of the
    averages. So, on streams, neither the next reduction nor the backward pass waits for them.

    All ranks must find the same runs; if their other ops differ so much that they do not, `bind` raises.

    Args:
        program: the program of a rank, as `refopt.program.passes.shard` makes it; it stays as it is.
        limit: the largest size of a run, in megabytes of 2**20 bytes; see `refopt.program.passes.grouping.fuse_size`.

    Source: Paddle's ``FuseHelper`` in ``sharding/utils.py``, and `passes.fuse_all_reduce` for the averages.
    """
    expect_program("fuse_reduces", program)
    check_limit("fuse_reduces: limit", limit)
    nothing = "no owner is sent two consecutive gradients of one dtype that fit together"
    return _fuse_runs(program, "reduce", limit, nothing)


def fuse_broadcasts(program: Program, limit: float = 32.0) -> Result:
    """Replace the broadcasts of a step by one for each run of variables of one owner and dtype.

    The variables of a run are moved into a buffer at startup, equally on all ranks. Apply it after
    `passes.optimize_cast`, when the dtypes are those that are sent. All ranks must find the same runs: an owner leaves
    variables alone that it already has in a buffer of its own, but the others do not; `bind` then raises.

    Args:
        limit: megabytes of 2**20 bytes that a run may have; see `refopt.program.passes.grouping.fuse_size`.

    Source: Paddle's ``FuseHelper`` in ``sharding/utils.py``, as the optimizer sharding of PR 35878 uses it.
    """
    expect_program("fuse_broadcasts", program)
    check_limit("fuse_broadcasts: limit", limit)
    nothing = "no owner sends two consecutive variables of one dtype that fit together"
    return _fuse_runs(program, "broadcast", limit, nothing)


def _fuse_runs(program: Program, kind: str, limit: float, nothing: str) -> Result:
    """Make one collective of each run, and postpone averages."""
    reasons: list[str] = []
    moves: list[Move] = []
    late: dict[int, tuple[list[int], list[Op]]] = {}  # by place of the first op that needs them
    startup: list[Op] = []
    scales = dependencies.singles(program, "scale", "communicate") if kind == "reduce" else {}
    sums = dependencies.sums_by_axis(program, "communicate").values() if kind == "reduce" else ()
    for places in _runs(program, kind, limit, reasons):
        names = [program.main[i].inputs["x"][0] for i in places]
        rows = dependencies.rows_along(sums, names, places)  # along the other axes of a mesh
        further = [*chain(*rows)]
        averages, reason = checked(program, places, scales, kind, further)
        if reason or any(len(row) < len(places) for row in rows):
            reasons.append(f"{'to' if kind == 'reduce' else 'from'} {_about(program, places)}: {reason or UNEVEN}")
            continue
        layout: dict[str, Any] = {}
        if len(places) > 1:
            coalesce = coalesce_op(names, BUFFERS[kind].format(names[0]), copy_data=_kept(program, kind, names))
            layout = {key: coalesce.attrs[key] for key in LAYOUT}
            moves.append((places, [_one(program, places, layout)]))
            startup.append(coalesce)
        after = [_one(program, row, layout) for row in rows] + ([_one(program, averages, {})] if averages else [])
        reader = dependencies.first_after(program, max([*places, *further, *averages]), names) if after else None
        if reader is not None:
            gone, come = late.setdefault(reader, ([], []))
            gone += [*further, *averages]
            come += [op.replace(role="optimize") if op.type == "scale" else op for op in after]
        elif len(places) > 1 and after:
            moves.append(([*further, *averages], after))
    moves += [([*gone, reader], [*come, program.main[reader]]) for reader, (gone, come) in late.items()]
    return moved(program, moves, reasons, nothing, [_buffer(program, kind, op) for op in startup], startup)


def _kept(program: Program, kind: str, names: Sequence[str]) -> bool:
    """Whether variables keep their contents when they are moved into a buffer."""
    return kind == "broadcast" or any(program.vars[name].persistable for name in names)


def _buffer(program: Program, kind: str, op: Op) -> Var:
    """The buffer that a startup op makes."""
    first = program.vars[op.inputs["input"][0]]
    return Var(op.outputs["fused_output"][0], UNKNOWN, first.dtype, kind == "broadcast" or first.persistable)


def checked(
    program: Program, places: Sequence[int], scales: Mapping[str, list[int]], kind: str, others: Iterable[int] = ()
) -> tuple[list[int], str]:
    """Places of the averages after some collectives, and why these cannot be fused. Empty if they can.

    Ops ``others`` may be in between; they are moved with them.
    """
    ops = [program.main[i] for i in places]
    after = [[i for i in scales.get(op.inputs["x"][0], ()) if i > k] for k, op in zip(places, ops, strict=True)]
    averages = [each[0] for each in after if each]
    reason = unlike(ops) or unlike_averages(program, after, kind) or dependencies.among(program, ops)
    return averages, reason or dependencies.between(program, [*places, *others, *averages])


def _one(program: Program, places: Sequence[int], layout: Mapping[str, Any]) -> Op:
    """One op instead of several, with a layout of its variables."""
    ops = [program.main[i] for i in places]
    names, attrs = [op.inputs["x"][0] for op in ops], {**ops[0].attrs, **layout}
    return ops[0].with_names(lambda *_: names, attrs=attrs, layer=dependencies.layer_of(ops))


def _about(program: Program, places: list[int]) -> str:
    """A run in words."""
    first, last = (program.main[i].inputs["x"][0] for i in (places[0], places[-1]))
    return f"rank {program.main[places[0]].attrs['root']}, {first!r} to {last!r}"


def _groups(program: Program) -> Iterator[tuple[dict[str, Any], tuple[str, ...]]]:
    """Layout and gradients of every group, in memory order."""
    for op in program.startup:
        if op.type == "coalesce_tensor" and "groups" in op.attrs:
            layout, names = {name: op.attrs[name] for name in LAYOUT}, op.outputs["output"]
            first = 0
            for count in op.attrs["groups"]:
                yield layout, names[first : first + count]
                first += count


def _runs(program: Program, kind: str, limit: float, reasons: list[str]) -> list[list[int]]:
    """Places in ``main`` of the collectives of a type, root by root, in runs of one dtype and limited size.

    A collective of several variables ends the run before it, so that a second application of the pass changes nothing.
    One whose variable is empty, or already in a buffer, is in no run; the reason is added to reasons.
    """
    roots: dict[tuple[int, int], list[list[int]]] = {}
    numbers = dependencies.forward_passes(program)  # only owners use sums between two of them
    for i, op in enumerate(program.main):
        if op.type != kind:
            continue
        stretches = roots.setdefault((op.attrs["root"], numbers[i]), [[]])
        name = op.inputs["x"][0]
        if len(op.inputs["x"]) > 1:
            stretches.append([])
        elif name in program.buffer_of:
            reasons.append(f"{name!r} is already in a buffer, {program.buffer_of[name]!r}")
        elif math.prod(program.vars[name].shape) == 0:
            reasons.append(f"{name!r} has no elements")
        else:
            stretches[-1].append(i)
    buckets = []
    for places in (places for stretches in roots.values() for places in stretches):
        vars = [program.vars[program.main[i].inputs["x"][0]] for i in places]
        names, shapes, dtypes = ([getattr(var, key) for var in vars] for key in ("name", "shape", "dtype"))
        buckets += [[places[k] for k in group] for group in fuse_size(names, shapes, dtypes, limit=limit).groups]
    return buckets
