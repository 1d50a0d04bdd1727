"""Summing fp32 gradients over ranks in 16 bits, which sends half the bytes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from refopt.checks.arguments import chosen
from refopt.program.model import UNKNOWN, Op, Var
from refopt.program.ops.coalescing import LAYOUT
from refopt.program.ops.updates import routine_of
from refopt.program.passes import dependencies
from refopt.program.passes.coalesce import coalesce_op
from refopt.program.passes.dependencies import Move, title
from refopt.program.passes.gradients import params_of
from refopt.program.passes.result import Result, moved
from refopt.program.program import Program, expect_program

REDUCING = "all_reduce", "reduce", "reduce_scatter"


def narrow_sums(program: Program, dtype: str = "float16", average: str = "before") -> Result:
    """Cast fp32 gradients to 16 bits before their all-reduces, and back to fp32 afterwards.

    The gradients of one all-reduce are cast by one op, into a buffer if there are several: apply it after
    `fuse_all_reduce`, or to single gradients. They are cast back right before their first use, so that what updates and
    gradient checks read stays fp32. It changes bits (numerics, N10).

    Args:
        dtype: ``"float16"`` or ``"bfloat16"``.
        average: whether gradients are multiplied by 1 / W ``"before"`` they are cast, in fp32, so that a sum overflows
            fp16 only if a gradient does; or ``"after"`` they are summed, so that small ones lose fewer bits. Where a
            sum may overflow though no gradient does, a gradient check must follow that would skip the step.

    Source: Paddle's ``fp16_allreduce_optimizer.py``, which averages by the loss.
    """
    expect_program("narrow_sums", program)
    chosen("narrow_sums: dtype", dtype, ("float16", "bfloat16"))
    chosen("narrow_sums: average", average, ("before", "after"))
    grads, checked = program.cells(params_of(program)), _checked(program)
    scales = {op.reads: i for i, op in enumerate(program.main) if op.type == "scale" and op.role == "communicate"}
    moves: list[Move] = []
    reasons: list[str] = []
    new: list[Var] = []
    startup: list[Op] = []
    late: dict[int, list[Op]] = {}  # by place of the first op that needs them
    for i, op in enumerate(program.main):
        names = [cell for name in op.reads for cell in program.memory(name)] if op.type in REDUCING else []
        if not any(name in grads and program.vars[name].dtype == "float32" for name in names):
            continue
        members = [i, scales[op.reads]] if scales.get(op.reads, -1) > i else [i]
        if reason := _why_not(program, members, dtype, average, checked):
            reasons.append(f"{title(op)}: {reason}")
            continue
        narrow = tuple(f"{name}@{dtype.upper()}" for name in op.reads)
        new += [Var(y, program.vars[x].shape, dtype) for x, y in zip(op.reads, narrow, strict=True)]
        if len(narrow) > 1:
            new.append(Var(f"FusedNarrow_{narrow[0]}", UNKNOWN, dtype))
            startup.append(coalesce_op([*narrow], new[-1].name, **{key: op.attrs[key] for key in LAYOUT}))
        there, back = (
            op.replace(type="cast", inputs={"x": x}, outputs={"out": y}, attrs={})
            for x, y in ((op.reads, narrow), (narrow, op.reads))
        )
        averages = [program.main[k] for k in members[1:]]
        first, last = (averages, [back]) if average == "before" else ([], [back, *averages])
        ops = [*first, there, op.replace(inputs={"x": narrow}, outputs={"out": narrow})]
        moves.append((members, ops))
        reader = dependencies.first_after(program, max(members), op.reads)
        if reader is None or program.main[reader].type in REDUCING:
            ops += last
        else:
            late.setdefault(reader, []).extend(last)
    moves += [([reader], [*ops, program.main[reader]]) for reader, ops in late.items()]
    return moved(program, moves, reasons, "no all-reduce sums gradients in float32", new, startup)


def _checked(program: Program) -> dict[str, int]:
    """By memory, the place of a check that finds an inf or NaN there, if every update is then skipped."""
    updates = [op for op in program.main if routine_of(op) is not None]
    if not all("found_inf" in op.inputs for op in updates):
        return {}
    checks = [(i, op) for i, op in enumerate(program.main) if op.type == "check_gradients"]
    return {cell: i for i, op in checks for cell in program.cells(op.inputs["x"])}


def _why_not(program: Program, members: Sequence[int], dtype: str, average: str, checked: Mapping[str, int]) -> str:
    """Why a sum, and the average before it, stay as they are. Empty if they need not."""
    op, *averages = (program.main[i] for i in members)
    if op.type != "all_reduce":
        return "only all-reduces are narrowed: before shard; for shard_elements use amp_program(reduced='float16')"
    if "axis" in op.attrs:
        return f"it sums along the axis {op.attrs['axis']!r} of a mesh"
    if average == "before" and not averages:
        return "no average of the same gradients follows, which could come first"
    grown = op.attrs["ranks"] * (abs(averages[0].attrs["scale"]) if average == "before" else 1)
    caught = all(checked.get(cell, -1) > members[0] for cell in program.cells(op.reads))
    if dtype == "float16" and grown > 1 and not caught:
        return "it may overflow float16 where no gradient does, and no gradient check would skip the step"
    return dependencies.between(program, members)
