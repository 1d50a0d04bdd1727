"""One all-reduce for a group of gradients that lie side by side."""

from __future__ import annotations

from collections.abc import Iterator

from refopt.program import Op, Program
from refopt.program.kinds import LAYOUT
from refopt.program.passes import dependencies
from refopt.program.passes.attributes import unlike, unlike_averages
from refopt.program.passes.result import Result
from refopt.program.program import expect_program


def fuse_all_reduce(program: Program) -> Result:
    """Replace the all-reduces of each group of gradients by one, and the multiplications by 1 / W after them by one.

    Groups are those that `coalesce_gradients` has put into buffers. The op that is left reduces the range from the
    first gradient to the padding of the last, which is zero and is reduced, too; it stands where the last of the group
    stood. That the gradients lie side by side is made sure at startup, by their addresses.

    Source: Paddle's ``fuse_all_reduce_op_pass`` of PR 15921, first in PR 15497. It never averages: its gradients come
    from a loss that has been scaled.
    """
    expect_program("fuse_all_reduce", program)
    moves, reasons = [], []
    if not program.views:
        reasons.append("no gradients have been put into buffers; coalesce_gradients does that")
    reduces = {op.inputs["x"][0]: i for i, op in enumerate(program.main) if _single(op, "all_reduce")}
    scales: dict[str, list[int]] = {}
    for i, op in enumerate(program.main):
        if _single(op, "scale"):
            scales.setdefault(op.inputs["x"][0], []).append(i)
    for layout, names in _groups(program):
        indices = [reduces[name] for name in names if name in reduces]
        if len(names) < 2 or not indices:
            continue
        group = f"group from {names[0]!r} to {names[-1]!r}"
        missing = [name for name in names if name not in reduces]
        if missing:
            reasons.append(f"{group}: {missing[0]!r} has no all_reduce of its own")
            continue
        after = [[i for i in scales.get(name, ()) if i > reduces[name]] for name in names]
        ops = [program.main[i] for i in indices]
        reason = unlike(ops) or unlike_averages(program, after, "sum") or dependencies.among(program, ops)
        members = [*indices, *(places[0] for places in after if places)]
        reason = reason or dependencies.between(program, members)
        if reason:
            reasons.append(f"{group}: {reason}")
            continue
        first = program.main[indices[0]]
        layer = dependencies.common(program.main[i].layer for i in indices)
        slots = {"inputs": {"x": names}, "outputs": {"out": names}, "layer": layer}
        fused = [first.replace(**slots, attrs={**first.attrs, **layout})]
        if after[0]:
            fused.append(program.main[after[0][0]].replace(**slots))
        moves.append((members, fused))
    if not moves:
        return Result(program, False, (*reasons, "no group of two gradients or more is reduced one by one"))
    return Result(program.replace(main=dependencies.rewritten(program, moves)), True, tuple(reasons))


def _single(op: Op, kind: str) -> bool:
    return op.type == kind and len(op.inputs["x"]) == 1 and op.role == "communicate"


def _groups(program: Program) -> Iterator[tuple[dict, tuple[str, ...]]]:
    """Layout and gradients of every group, in memory order."""
    for op in program.startup:
        if op.type == "coalesce_tensor" and "groups" in op.attrs:
            layout, names = {name: op.attrs[name] for name in LAYOUT}, op.outputs["output"]
            first = 0
            for count in op.attrs["groups"]:
                yield layout, names[first : first + count]
                first += count
