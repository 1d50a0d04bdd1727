"""One reduction for the gradients that go to one owner, are of one dtype and fit together."""

from __future__ import annotations

from refopt.program import UNKNOWN, Op, Program, Var
from refopt.program.kinds import LAYOUT
from refopt.program.passes import Result, dependencies
from refopt.program.passes.attributes import unlike, unlike_averages
from refopt.program.passes.coalesce import coalesce_op
from refopt.program.passes.grouping import check_limit
from refopt.program.program import expect_program
from refopt.program.sharding.runs import about, one_of, runs


def fuse_reduces(program: Program, limit: float = 32.0) -> Result:
    """Replace the reductions of a step by one for each run of gradients of one owner and dtype, and so the averages.

    The gradients of a run become views of a buffer at startup, on all ranks alike; the op that is left reduces the
    range that they lie in, padding included, where the last of the run stood. The multiplications by 1 / W after them,
    of a single gradient, too, become ops of the optimizer's stage, and come as late as they can: right before what
    first needs the averages. So, on streams, the next reduction waits for none of them, and neither does the backward
    pass.

    All ranks must find the same runs; if what ranks do in between differs so much that they do not, `bind` says so.

    Args:
        program: the program of a rank, as `refopt.program.sharding.shard` makes it; it stays as it is.
        limit: megabytes of 2**20 bytes that a run may have; see `refopt.program.passes.grouping.fuse_size`.

    Source: Paddle's ``FuseHelper`` in ``sharding/utils.py``, and `passes.fuse_all_reduce` for the averages.
    """
    expect_program("fuse_reduces", program)
    check_limit("fuse_reduces: limit", limit)
    scales: dict[str, list[int]] = {}
    for i, op in enumerate(program.main):
        if op.type == "scale" and op.role == "communicate" and len(op.inputs["x"]) == 1:
            scales.setdefault(op.inputs["x"][0], []).append(i)
    moves: list[tuple[list[int], list[Op]]] = []
    late: dict[int, tuple[list[int], list[Op]]] = {}
    reasons: list[str] = []
    buffers, startup = [], []
    for places in runs(program, "reduce", limit, reasons):
        ops = [program.main[i] for i in places]
        names = [op.inputs["x"][0] for op in ops]
        after = [[i for i in scales.get(name, ()) if i > place] for name, place in zip(names, places, strict=True)]
        averages = [each[0] for each in after if each]
        members = [*places, *averages]
        reason = unlike(ops) or unlike_averages(program, after, "reduce")
        reason = reason or dependencies.among(program, ops) or dependencies.between(program, members)
        if reason:
            reasons.append(f"to {about(program, places)}: {reason}")
            continue
        if len(places) > 1:
            coalesce = _buffer(program, names)
            layout = {key: coalesce.attrs[key] for key in LAYOUT}
            moves.append((places, [one_of(program, places, names, layout)]))
            startup.append(coalesce)
            first = program.vars[names[0]]
            buffers.append(Var(coalesce.outputs["fused_output"][0], UNKNOWN, first.dtype, first.persistable))
        reader = dependencies.first_after(program, max(members), names) if averages else None
        if averages and reader is not None:
            gone, come = late.setdefault(reader, ([], []))
            gone += averages
            come.append(one_of(program, averages, names, {}).replace(role="optimize"))
        elif len(averages) > 1:
            moves.append((averages, [one_of(program, averages, names, {})]))
    moves += [([*gone, reader], [*come, program.main[reader]]) for reader, (gone, come) in late.items()]
    if not moves:
        return Result(
            program, False, (*reasons, "no owner is sent two gradients of a dtype in a row that fit together")
        )
    changed = program.with_vars(buffers).replace(startup=[*program.startup, *startup])
    return Result(changed.replace(main=dependencies.rewritten(program, moves)), True, tuple(reasons))


def _buffer(program: Program, names: list[str]) -> Op:
    """What moves gradients into a buffer; those that live from step to step with what is in them."""
    kept = any(program.vars[name].persistable for name in names)
    return coalesce_op(names, f"FusedGrad_{names[0]}", copy_data=kept)
