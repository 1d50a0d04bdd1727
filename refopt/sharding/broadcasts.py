"""One broadcast for the parameters of an owner that are of one dtype and fit together."""

from __future__ import annotations

import math

from refopt.passes import Result, dependencies
from refopt.passes.coalesce import coalesce_op
from refopt.passes.grouping import fuse_size
from refopt.program import UNKNOWN, Op, Program, Var


def fuse_broadcasts(program: Program, limit: float = 32.0) -> Result:
    """Replace the broadcasts of a step by one for each run of variables of one owner and dtype.

    The variables of a run are moved into a buffer at startup, on all ranks alike. Comes after
    `refopt.sharding.optimize_cast`, since it is then that the dtypes are what is sent. All ranks must find the same
    runs: what an owner has put into a buffer of its own and sends from there, it leaves alone, and the others do not;
    `bind` then says that they differ.

    Args:
        program: the program; it stays as it is.
        limit: megabytes of 2**20 bytes that a run may have; see `refopt.passes.grouping.fuse_size`.

    Source: Paddle's ``FuseHelper`` in ``sharding/utils.py``, as the optimizer sharding of PR 35878 uses it.
    """
    roots: dict[int, list[int]] = {}
    reasons = []
    for i, op in enumerate(program.main):
        if op.type != "broadcast" or len(op.inputs["x"]) > 1:
            continue
        (name,) = op.inputs["x"]
        if name in program.buffer_of:
            reasons.append(f"{name!r} is in a buffer already, {program.buffer_of[name]!r}")
        elif math.prod(program.vars[name].shape) == 0:
            reasons.append(f"{name!r} has no elements")
        else:
            roots.setdefault(op.attrs["root"], []).append(i)
    moves, startup, buffers = [], [], []
    for root, places in roots.items():
        names = [program.main[i].inputs["x"][0] for i in places]
        vars = [program.vars[name] for name in names]
        for group in fuse_size(names, [var.shape for var in vars], [var.dtype for var in vars], limit=limit).groups:
            if len(group) < 2:
                continue
            together, members = [names[k] for k in group], [places[k] for k in group]
            why = dependencies.between(program, members) or dependencies.among(
                program, [program.main[i] for i in members]
            )  # fmt: skip
            if why:
                reasons.append(f"from rank {root}, {together[0]!r} to {together[-1]!r}: {why}")
                continue
            buffer = Var(f"FusedBroadcast_{together[0]}", UNKNOWN, vars[group[0]].dtype, persistable=True)
            op = coalesce_op(together, buffer.name, copy_data=True)
            buffers.append(buffer)
            startup.append(op)
            moves.append((members, [_of(program, members, together, op)]))
    if not moves:
        return Result(program, False, (*reasons, "no owner has two variables of one dtype in a row that fit together"))
    changed = program.with_vars(buffers).replace(startup=[*program.startup, *startup])
    made = changed.replace(main=dependencies.rewritten(program, moves))
    return Result(made, True, tuple(reasons))


def _of(program: Program, places: list[int], names: list[str], buffer: Op) -> Op:
    """The broadcast of what lies in a buffer."""
    first = program.main[places[0]]
    layout = {key: buffer.attrs[key] for key in ("use_align", "align_size", "size_of_dtype")}
    layer = dependencies.common(program.main[i].layer for i in places)
    return first.replace(inputs={"x": names}, outputs={"out": names}, attrs={**first.attrs, **layout}, layer=layer)
