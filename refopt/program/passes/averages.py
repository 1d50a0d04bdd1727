"""Averaging gradients within the updates."""

from __future__ import annotations

from collections import deque

import numpy as np

from refopt.checks.arguments import flag
from refopt.checks.dtypes import arithmetic_name
from refopt.program.model import Op, Var
from refopt.program.ops.updates import SHARED, routine_of
from refopt.program.passes.attributes import unlike
from refopt.program.passes.dependencies import Move, title
from refopt.program.passes.result import Result, moved
from refopt.program.program import Program, expect_program

FACTOR = SHARED[0]


def fold_averages(program: Program, exact: bool = True) -> Result:
    """Let updates multiply sums of gradients by 1 / W as they read them, instead of a separate op.

    An update of gradients that ``scale`` ops have averaged becomes one of their sums, with 1 / W as its
    ``grad_factor``; the gradients then hold sums after a step. In fp32 no other bit changes, since an update forms the
    product in fp32 (numerics, N8), as the ``scale`` op did. A 16-bit average is rounded to 16 bits, but not within an
    update, so these are folded only if bits may change; the result is then more accurate.

    An average is kept if something else uses it, such as a gradient check for the norm, or if its update already has a
    factor or a ``rescale_grad``, since the product of two numbers is rounded; the same holds for a ``rescale_grad``
    passed to a step.

    Args:
        exact: whether every bit must stay the same.

    Source: Paddle needs no averages, since it multiplies the loss by 1 / W.
    """
    expect_program("fold_averages", program)
    flag("fold_averages: exact", exact)
    users = _users(program)
    declined: dict[int, str] = {}  # by place of an average
    for place, sources in users.items():
        if reason := unfolded(program, place, sources, exact):
            declined |= dict.fromkeys(sources - declined.keys(), reason)
    _decline_with(users, declined)
    reasons = tuple(f"{title(program.main[i])}: {declined[i]}" for i in sorted(declined))
    moves: list[Move] = []
    factors: dict[str, Var] = {}
    for place, sources in users.items():
        if not sources & declined.keys():
            op = program.main[place]
            var = factor_of(program, op, program.main[min(sources)])
            factors[var.name] = var
            moves.append(([*sources, place], [op.replace(inputs={**op.inputs, FACTOR: (var.name,)})]))
    new = [var for name, var in factors.items() if program.vars.get(name) != var]
    return moved(program, moves, reasons, "no average is read by updates alone", new)


def _decline_with(users: dict[int, set[int]], declined: dict[int, str]) -> None:
    """Decline the averages of updates that already keep some: an update keeps all or none."""
    of: dict[int, list[set[int]]] = {}
    for sources in users.values():
        for i in sources:
            of.setdefault(i, []).append(sources)
    waiting = deque(sorted(declined))
    while waiting:
        first = waiting.popleft()
        for sources in of.pop(first, ()):
            more = sorted(sources - declined.keys())
            declined |= dict.fromkeys(more, declined[first])
            waiting += more


def _users(program: Program) -> dict[int, set[int]]:
    """By place of an op that uses or further multiplies results of ``scale`` ops, the places of these ops."""
    maker: dict[str, int] = {}  # by memory
    users: dict[int, set[int]] = {}
    for i, op in enumerate(program.main):
        touched = program.cells((*op.reads, *op.writes))
        if sources := {maker[cell] for cell in touched & maker.keys()}:
            users[i] = sources
        if op.type == "scale":
            maker |= dict.fromkeys(touched, i)
    return users


def unfolded(program: Program, place: int, sources: set[int], exact: bool) -> str:
    """Why an op cannot form the averages that it uses. Empty if it can."""
    op, averages = program.main[place], [program.main[i] for i in sorted(sources)]
    averaged = program.cells(name for each in averages for name in each.writes)
    return (
        _used_otherwise(program, op, averaged, exact) or unlike(averages)
        or _rounded(program, op, averaged, averages[0].attrs["scale"], exact)
    )


def _used_otherwise(program: Program, op: Op, averaged: set[str], exact: bool) -> str:
    """Why an op is not an update that uses averages only as gradients. Empty if it is."""
    read = program.cells(op.inputs.get("grads", ()))
    others = [name for slot, names in op.inputs.items() if slot != "grads" for name in names]
    if routine_of(op) is None or averaged & program.cells((*op.writes, *others)):
        return f"{title(op)} uses it, too"
    if read - averaged:
        return f"{title(op)} also uses {min(read - averaged)!r}, which is not an average"
    if FACTOR in op.inputs or (exact and op.attrs.get("rescale_grad", 1) != 1):
        return f"{title(op)} already multiplies gradients by a number"
    return ""


def _rounded(program: Program, op: Op, averaged: set[str], scale: float, exact: bool) -> str:
    """Why the product would differ from the average. Empty if it does not."""
    reals, read = _reals(program, op), program.cells(op.inputs["grads"])
    if len(reals) > 1:
        return f"{title(op)} computes in {' and '.join(sorted(reals))}"
    if not abs(scale) <= float(np.finfo(min(reals)).max):
        return f"{scale!r} is not a finite number of {min(reals)}"
    for name in sorted(averaged):
        var = program.vars[name]
        if var.persistable:
            return f"{name!r} lives from step to step"
        if exact and name in read and var.dtype not in reals:
            return f"{name!r} is rounded to {var.dtype}"
    return ""


def _reals(program: Program, op: Op) -> set[str]:
    """The dtypes in which an update computes."""
    return {arithmetic_name(program.vars[name].dtype) for name in op.inputs["params"]}


def factor_of(program: Program, op: Op, average: Op) -> Var:
    """The factor of an update's gradients."""
    (real,), scale = _reals(program, op), float(average.attrs["scale"]) + 0.0  # turns -0 into 0, as scale does
    return Var(f"{FACTOR}@{scale!r}@{real}", (1,), real, persistable=True, initial=scale)
