"""One broadcast for the parameters of an owner that are of one dtype and fit together."""

from __future__ import annotations

from refopt.program import UNKNOWN, Program, Var
from refopt.program.kinds import LAYOUT
from refopt.program.passes import Result, dependencies
from refopt.program.passes.attributes import unlike
from refopt.program.passes.coalesce import coalesce_op
from refopt.program.passes.grouping import check_limit
from refopt.program.program import expect_program
from refopt.program.sharding.runs import about, one_of, runs


def fuse_broadcasts(program: Program, limit: float = 32.0) -> Result:
    """Replace the broadcasts of a step by one for each run of variables of one owner and dtype.

    The variables of a run are moved into a buffer at startup, on all ranks alike. Comes after
    `sharding.optimize_cast`, since it is then that the dtypes are what is sent. All ranks must find the same
    runs: what an owner has put into a buffer of its own and sends from there, it leaves alone, and the others do not;
    `bind` then says that they differ.

    Args:
        program: the program; it stays as it is.
        limit: megabytes of 2**20 bytes that a run may have; see `refopt.program.passes.grouping.fuse_size`.

    Source: Paddle's ``FuseHelper`` in ``sharding/utils.py``, as the optimizer sharding of PR 35878 uses it.
    """
    expect_program("fuse_broadcasts", program)
    check_limit("fuse_broadcasts: limit", limit)
    reasons: list[str] = []
    moves, startup, buffers = [], [], []
    for places in runs(program, "broadcast", limit, reasons):
        if len(places) < 2:
            continue
        ops = [program.main[i] for i in places]
        names = [op.inputs["x"][0] for op in ops]
        reason = unlike(ops) or dependencies.between(program, places) or dependencies.among(program, ops)
        if reason:
            reasons.append(f"from {about(program, places)}: {reason}")
            continue
        buffer = Var(f"FusedBroadcast_{names[0]}", UNKNOWN, program.vars[names[0]].dtype, persistable=True)
        coalesce = coalesce_op(names, buffer.name, copy_data=True)
        layout = {key: coalesce.attrs[key] for key in LAYOUT}
        buffers.append(buffer)
        startup.append(coalesce)
        moves.append((places, [one_of(program, places, names, layout)]))
    if not moves:
        return Result(program, False, (*reasons, "no owner has two variables of one dtype in a row that fit together"))
    changed = program.with_vars(buffers).replace(startup=[*program.startup, *startup])
    made_main = dependencies.rewritten(program, moves)
    return Result(changed.replace(main=made_main), True, tuple(reasons))
