"""Sharding by parameter: one rank, the owner, updates a parameter and has its state."""

from __future__ import annotations

import math

from refopt.checks.arguments import chosen, names, whole
from refopt.program.ops.collectives import BATCH
from refopt.program.ops.updates import is_flat, update_types
from refopt.program.passes import dependencies
from refopt.program.passes.dependencies import title
from refopt.program.passes.eligibility import STAGES
from refopt.program.passes.gradients import params_of
from refopt.program.passes.owners import Declined, owned, sent, updates_of
from refopt.program.passes.place import broadcasts, on_device
from refopt.program.passes.result import Result
from refopt.program.passes.shares import RULES, partition
from refopt.program.program import Program, expect_program

ORDERS = "program", "reduced"


def shard(
    program: Program, rank: int, degree: int, rule: str = "paddle", order: str = "program", axis: str | None = None
) -> Result:
    """The program of one rank of several that divide the optimizer among them.

    Gradients are reduced to the owner of their parameter, which alone averages, checks and updates, and then broadcasts
    what the model's passes read: the fp16 copy if the optimizer's stage makes one, else the parameter. Whether a
    gradient was inf or NaN, and the sums of squares for the norm, are added up over all ranks, including those that own
    nothing. A rank has no states of other owners, nor their fp32 parameters if copies suffice. A rank that owns nothing
    of a routine has an update of no tensors, so that it accepts the same numbers in a step as the others.

    All values agree bit for bit with those without sharding (numerics, N11), given sums in rank order: a norm is formed
    from the sums of tensors in program order, wherever these were formed.

    Args:
        program: a program for ``degree`` ranks with a separate op for each reduction and update, before or after
            `refopt.program.passes.optimize_cast`; it is not modified.
        rank: this rank's number.
        degree: the number of ranks.
        rule: of `refopt.program.passes.partition`, which gets the numbers of elements in the order of the updates.
        order: of the updates and broadcasts: that of the ``"program"``, or that in which gradients are ``"reduced"``,
            so that on streams the gradient that arrives first is updated and sent first.
        axis: the axis of a `refopt.comm.Mesh` that the step is divided along; see `refopt.program.passes.over_axes`.
            ``rank`` and ``degree`` are along it.

    Source: Paddle's ``sharding_optimizer`` with ``_dp_as_optimizer_sharding``, PR 35593 and PR 35878. There the state
    of an unknown routine stays on all ranks; here it follows its op. Its found-inf is an integer maximum.
    """
    expect_program("shard", program)
    degree = whole("shard: degree", degree, 1)
    rank = whole("shard: rank", rank, 0, degree - 1)
    chosen("shard: rule", rule, RULES)
    chosen("shard: order", order, ORDERS)
    reason = declined("shard", program, degree, axis) or _needed_early(program)
    if reason:
        return Result(program, False, (reason,))
    by_rows = {name: op for op in updates_of(program) if "count" in op.attrs for name in op.outputs["params"]}
    names = [name for op in updates_of(program) for name in op.outputs["params"] if name not in by_rows]
    sizes = [math.prod(program.vars[name].shape) for name in names]
    owners = dict(zip(names, partition(sizes, degree, rule), strict=True))
    reasons = [f"{name!r} is left to all ranks, which have the rows of its gradient" for name in by_rows]
    if order == "reduced":
        program, reason = _as_reduced(program)
        reasons += [reason] if reason else []
    try:
        main = owned(program, owners, degree, axis=axis)
    except Declined as error:
        return Result(program, False, (str(error),))
    main += broadcasts(sent(program, owners), degree, axis)
    mine = on_device(program.replace(main=main), rank)
    mine = mine.replace(main=[op.replace(device=None) for op in mine.main])
    nothing = f"owns nothing: {len(owners)} parameters by the rule {rule!r}"
    reasons += [f"rank {r} {nothing}" for r in range(degree) if r not in owners.values()]
    return Result(mine, True, tuple(reasons))


def declined(where: str, program: Program, degree: int, axis: str | None = None) -> str:
    """Why a program cannot be sharded; raises if it is for another number of ranks. Empty if it can."""
    if axis is not None:
        names(f"{where}: axis", [axis])
    for op in program.main:
        if op.attrs.get("axis") == axis and op.attrs.get("ranks", degree) != degree:
            raise ValueError(f"{where}: degree: expected {op.attrs['ranks']}, as {title(op)} has, got {degree}")
    if degree == 1:
        return "one rank owns everything"
    types = {op.type for op in program.main}
    if not types.isdisjoint(("reduce", "broadcast", "reduce_scatter", BATCH)):
        return "gradients are already reduced to owners, or parameters broadcast by them"
    if not any(op.type == "all_reduce" and op.attrs.get("axis") == axis for op in program.main):
        return "no gradient is reduced over the ranks" if axis is None else f"no gradient is reduced along {axis!r}"
    if not (updates := updates_of(program)):
        return "nothing is updated"
    flat = next((op for op in updates if is_flat(program, op)), None)
    return f"{title(flat)} updates a buffer; apply fuse_optimizer afterwards" if flat else ""


def _needed_early(program: Program) -> str:
    """Which op needs an updated parameter before the broadcasts at the end of the step. Empty if none does."""
    new: set[str] = set()
    types = update_types(program)
    for op in program.main:
        if new and (op.type in types or op.role in STAGES) and not new.isdisjoint(op.reads):
            late = next(name for name in op.reads if name in new)
            return f"{title(op)} needs {late!r} between its update and its broadcast"
        if op.type in types:
            new.update(op.outputs["params"])
        elif op.type == "cast" and op.role == "optimize":
            new.update(op.writes)
    return ""


def _as_reduced(program: Program) -> tuple[Program, str]:
    """Updates in the order in which their gradients are reduced, in the last one's place; or why they cannot be."""
    types = update_types(program)
    places = [i for i, op in enumerate(program.main) if op.type in types]
    ops = [program.main[i] for i in places]
    reason = dependencies.among(program, ops) or dependencies.between(program, places)
    if reason:
        return program, f"updates stay in the order of the program: {reason}"
    params = params_of(program)
    sums = [op for op in program.main if op.type in ("all_reduce", "scatter_add")]
    when = {params.get(name): k for k, op in enumerate(sums) for name in op.writes}
    ops.sort(key=lambda op: max((when.get(name, -1) for name in op.outputs["params"]), default=-1))
    return program.replace(main=dependencies.rewritten(program, [(places, ops)])), ""
