"""Each parameter is updated by one rank, its owner, which alone has its state."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

from refopt.checks.arguments import chosen, whole
from refopt.program.model import Op
from refopt.program.ops.updates import MERGED, SHARED, is_flat, update_types
from refopt.program.passes import dependencies
from refopt.program.passes.cast import without_masters
from refopt.program.passes.dependencies import title
from refopt.program.passes.eligibility import STAGES
from refopt.program.passes.result import Result
from refopt.program.passes.shares import RULES, partition
from refopt.program.program import Program, expect_program


class Owned(NamedTuple):
    """What belongs to a parameter.

    Attributes:
        owner: the rank that updates it.
        grad: its gradient.
        state: states, scalars and master: what the owner alone has.
        copies: what ops of the optimizer's stage cast it to.
    """

    owner: int
    grad: str
    state: frozenset[str]
    copies: tuple[str, ...]


ORDERS = "program", "reduced"


def shard(program: Program, rank: int, degree: int, rule: str = "paddle", order: str = "program") -> Result:
    """The program of one rank of several that share out the optimizer.

    Gradients are reduced to the owner of their parameter, who alone averages, checks and updates, and then broadcasts
    what the forward and the backward pass read of it: the fp16 copy if the optimizer's stage makes one, else the
    parameter. Whether a gradient was inf or NaN, and the sums of squares for the norm, are added up over all ranks,
    those with nothing included. State of others is not there, nor are their fp32 parameters, where copies do. A rank
    that owns nothing of a routine has an update of no tensors, and so takes the same numbers in a step as the others.

    What each rank has, and the copies of all, are what they are without sharding, bit for bit (numerics, N11), given
    sums in rank order: a norm is formed from the sums of tensors in program order, wherever these were formed.

    Args:
        program: a program for ``degree`` ranks with an op of its own for each reduction and update, before or after
            `refopt.program.passes.optimize_cast`; it stays as it is.
        rank: this rank's number.
        degree: the number of ranks.
        rule: of `refopt.program.passes.partition`, which gets the numbers of elements in the order of the updates.
        order: of the updates and broadcasts: that of the ``"program"``, or that in which gradients are ``"reduced"``,
            so that on streams the first to come is the first to be updated and sent.

    Source: Paddle's ``sharding_optimizer`` with ``_dp_as_optimizer_sharding``, PR 35593 and PR 35878. State of a
    routine it does not know stays on all ranks there; here it follows its op. Its found-inf is a maximum, of integers.
    """
    expect_program("shard", program)
    degree = whole("shard: degree", degree, 1)
    rank = whole("shard: rank", rank, 0, degree - 1)
    chosen("shard: rule", rule, RULES)
    chosen("shard: order", order, ORDERS)
    _check(program, degree)
    updates = _updates(program)
    reason = _declined(program, updates) if degree > 1 else "one rank owns everything"
    if reason:
        return Result(program, False, (reason,))
    owned, reasons = _owned(program, updates, degree, rule), []
    if order == "reduced":
        program, reason = _as_reduced(program)
        reasons += [reason] if reason else []
        updates = _updates(program)
        owned = {op.inputs["params"][0]: owned[op.inputs["params"][0]] for op in updates}
    others = {param: its for param, its in owned.items() if its.owner != rank}
    sent = _sent(program, updates, owned)
    main = _main(program, updates, owned, others) + [
        Op("broadcast", {"x": (name,)}, {"out": (name,)}, {"ranks": degree, "root": owned[param].owner}, "communicate",
           layer) for param, name, layer in sent
    ]  # fmt: skip
    gone = {name for its in others.values() for name in its.state}
    vars = {name: var for name, var in program.vars.items() if name not in gone}
    masters = others.keys() - {name for _, name, _ in sent}
    rewritten = without_masters(program.replace(vars=vars, main=main), masters)
    owners = {its.owner for its in owned.values()}
    nothing = f"owns nothing: {len(owned)} parameters by the rule {rule!r}"
    reasons += [f"rank {r} {nothing}" for r in range(degree) if r not in owners]
    return Result(rewritten, True, tuple(reasons))


def _updates(program: Program) -> list[Op]:
    """The ops of routines."""
    types = update_types(program)
    return [op for op in program.main if op.type in types]


def _check(program: Program, degree: int) -> None:
    for op in program.main:
        if op.attrs.get("ranks", degree) != degree:
            raise ValueError(f"shard: degree: expected {op.attrs['ranks']}, as {title(op)} has, got {degree}")


def _declined(program: Program, updates: list[Op]) -> str:
    """Why a program cannot be shared out. Empty if it can."""
    types = {op.type for op in program.main}
    if "reduce" in types:
        return "gradients are reduced to owners already"
    if "all_reduce" not in types:
        return "no gradient is reduced over the ranks"
    begun = {name for op in program.startup for name in (*op.reads, *op.writes)}
    reasons = (reason for op in updates if (reason := _unfit(program, op, begun)))
    return next(reasons, "") or _not_reduced(program, updates) or _needed_early(program)


def _unfit(program: Program, op: Op, begun: set[str]) -> str:
    """Why an update cannot be an owner's alone. Empty if it can."""
    if not begun.isdisjoint(op.inputs.get("master_params", ())):
        return f"{title(op)} writes what was cast; fold_casts comes after"
    if op.type.startswith(MERGED) or is_flat(program, op):
        return f"{title(op)} is one for several parameters; passes that fuse come after"
    return "" if op.role == "optimize" else f"{title(op)}: expected role optimize, got {op.role}"


def _not_reduced(program: Program, updates: list[Op]) -> str:
    """Which gradient is not reduced by itself over the ranks, or what else is. Empty if all are, and nothing else."""
    grads = {name for op in updates for name in op.inputs["grads"]}
    reduced: set[str] = set()
    for op in program.main:
        if op.type == "all_reduce" and (len(op.inputs["x"]) > 1 or op.inputs["x"][0] not in grads):
            return f"{title(op)} is not of the gradient of one parameter"
        if op.type in ("all_reduce", "scatter_add"):
            reduced.update(op.writes)
    return next((f"{name!r} is not reduced over the ranks" for name in sorted(grads - reduced)), "")


def _needed_early(program: Program) -> str:
    """Which op needs what has been updated before it is sent, at the end of the step. Empty if none does."""
    new: set[str] = set()
    types = update_types(program)
    for op in program.main:
        if new and (op.type in types or op.role in STAGES) and not new.isdisjoint(op.reads):
            late = next(name for name in op.reads if name in new)
            return f"{title(op)} needs {late!r} after its update, before it is broadcast"
        if op.type in types:
            new.update(op.outputs["params"])
        elif op.type == "cast" and op.role == "optimize":
            new.update(op.writes)
    return ""


def _owned(program: Program, updates: list[Op], degree: int, rule: str) -> dict[str, Owned]:
    """By parameter, in the order of the updates."""
    params = [op.inputs["params"][0] for op in updates]
    owners = partition([math.prod(program.vars[name].shape) for name in params], degree, rule)
    casts: dict[str, list[str]] = {}
    for op in program.main:
        if op.type == "cast" and op.role == "optimize":
            for x, out in zip(op.inputs["x"], op.outputs["out"], strict=True):
                casts.setdefault(x, []).append(out)
    shared = ("params", "grads", *SHARED)
    return {
        param: Owned(
            owner, op.inputs["grads"][0],
            frozenset(name for slot, names in op.inputs.items() if slot not in shared for name in names),
            tuple(dict.fromkeys(casts.get(param, ()))),
        )
        for owner, param, op in zip(owners, params, updates, strict=True)
    }  # fmt: skip


def _as_reduced(program: Program) -> tuple[Program, str]:
    """Updates in the order in which their gradients are reduced, where the last of them stood; or why they are not."""
    types = update_types(program)
    places = [i for i, op in enumerate(program.main) if op.type in types]
    ops = [program.main[i] for i in places]
    reason = dependencies.among(program, ops) or dependencies.between(program, places)
    if reason:
        return program, f"updates stay in the order of the program: {reason}"
    sums = [op for op in program.main if op.type in ("all_reduce", "scatter_add")]
    when = {name: k for k, op in enumerate(sums) for name in op.writes}
    ops.sort(key=lambda op: when[op.inputs["grads"][0]])
    return program.replace(main=dependencies.rewritten(program, [(places, ops)])), ""


def _main(
    program: Program, updates: list[Op], owned: Mapping[str, Owned], others: Mapping[str, Owned]
) -> list[Op]:  # fmt: skip
    """What is left of the ops, and what comes between them."""
    owner = {its.grad: its.owner for its in owned.values()}
    sent = {its.grad for its in others.values()}
    done: set[str] = set()  # gradients of others, which have been sent to them
    foreign = {*others, *(name for its in others.values() for name in (*its.state, *its.copies))}  # with those
    here = {op.type for op in updates if op.outputs["params"][0] not in others}
    elsewhere = {op.type for op in updates} - here
    main: list[Op] = []
    for op in program.main:
        if op.type == "all_reduce":
            grad = op.inputs["x"][0]
            main.append(op.replace(type="reduce", attrs={**op.attrs, "root": owner[grad]}))
            if grad in sent:
                done.add(grad)
                foreign.add(grad)
        elif op.type == "check_gradients":
            main += _gradient_check(op, sent, *_norms(program))
        elif op.type in elsewhere:
            main.append(_of_nothing(op))
            elsewhere -= {op.type}
        elif not op.writes or not (foreign if op.role == "optimize" else done).issuperset(op.writes):
            main.append(op)  # which makes something that this rank has
    return main


def _norms(program: Program) -> tuple[set[str], int]:
    """The sums that norms are formed of, and the number of ranks."""
    norms = {name for op in program.main if op.type == "finish_check" for name in op.inputs.get("sums", ())}
    return norms, next(op.attrs["ranks"] for op in program.main if op.type == "all_reduce")


def _of_nothing(op: Op) -> Op:
    """The update of no tensors, so that every rank takes, and checks, the numbers of a step."""
    return op.with_names(lambda slot, names: names if slot in SHARED else (), type=MERGED + op.type, layer=None)


def _gradient_check(op: Op, foreign: set[str], norms: set[str], degree: int) -> list[Op]:
    """The gradient check of what is owned, and the sums over the ranks."""
    kept = [(name, k) for name, k in zip(op.inputs["x"], op.attrs["positions"], strict=True) if name not in foreign]
    check = op.replace(inputs={"x": [name for name, _ in kept]},
                      attrs={**op.attrs, "positions": tuple(k for _, k in kept)})  # fmt: skip
    over = [op.outputs["odd"], *([op.outputs["sums"]] if set(op.outputs["sums"]) & norms else [])]
    sums = [Op("all_reduce", {"x": x}, {"out": x}, {"ranks": degree}, "communicate") for x in over]
    return [check, *sums]


def _sent(
    program: Program, updates: list[Op], owned: Mapping[str, Owned]
) -> list[tuple[str, str, str | None]]:  # fmt: skip
    """Parameters, the variables in which the passes read them, and their layers."""
    read = {name for op in program.main if op.role in STAGES for name in op.reads}
    layers = {op.inputs["params"][0]: op.layer for op in updates}
    return [
        (param, name, layers[param])
        for param, its in owned.items()
        for name in ([x for x in (param, *its.copies) if x in read] or [param])
    ]
