"""Casting parameters within the updates, which then have masters."""

from __future__ import annotations

from refopt.program.model import Op
from refopt.program.ops.updates import is_flat, routine_of
from refopt.program.passes import dependencies
from refopt.program.passes.dependencies import Move, title
from refopt.program.passes.result import Result, moved
from refopt.program.program import Program, expect_program


def fold_casts(program: Program) -> Result:
    """Let updates write the fp16 copies of parameters, instead of casting afterwards.

    An update of fp32 parameters that are cast right afterwards becomes one of the copies, with the fp32 parameters as
    masters: it reads and writes these as before, and rounds the results to the copies. No bit changes: a copy always is
    its master, rounded, even in skipped steps. The norms of LARS, which may be those of stored parameters or of
    masters, become those of masters.

    Apply it after `refopt.program.passes.optimize_cast`, which makes such casts, and copies at startup; and after
    `refopt.program.passes.shard`.

    Source: PR 35878 has separate casts in the optimizer's stage; updates with ``MasterParam`` that write both are
    Paddle's ``multi_precision``, as of PR 35476.
    """
    expect_program("fold_casts", program)
    casts = dependencies.singles(program, "cast", "optimize")
    writers = _writers(program)
    at_startup = (op for op in program.startup if op.type == "cast")
    begun = {pair for op in at_startup for pair in zip(op.inputs["x"], op.outputs["out"], strict=True)}
    moves: list[Move] = []
    reasons: list[str] = []
    for i, op in enumerate(program.main):
        if routine_of(op) is None or not any(name in casts for name in op.outputs["params"]):
            continue
        reason = _why_not(program, i, casts, writers, begun)
        if reason:
            reasons.append(f"{title(op)}: {reason}")
            continue
        places = [casts[name][0] for name in op.outputs["params"]]
        moves.append(([i, *places], [_folded(op, [program.main[k].outputs["out"][0] for k in places])]))
    return moved(program, moves, reasons, "no update is followed by casts of its parameters")


def _writers(program: Program) -> dict[str, set[int]]:
    """By memory, places of the ops that change it. A broadcast does not count: it comes from the updating rank."""
    writers: dict[str, set[int]] = {}
    for i, op in enumerate(program.main):
        for cell in program.cells(op.writes) if op.type != "broadcast" else ():
            writers.setdefault(cell, set()).add(i)
    return writers


def _why_not(
    program: Program, place: int, casts: dict[str, list[int]], writers: dict[str, set[int]], begun: set[tuple[str, str]]
) -> str:
    """Why an update cannot do the casts of its parameters. Empty if it can."""
    op = program.main[place]
    if is_flat(program, op):
        return "it updates buffers"
    if "master_params" in op.inputs:
        return "it already has masters"
    places = [place]
    for name in op.outputs["params"]:
        if len(casts.get(name, ())) != 1 or casts[name][0] < place:
            return f"expected exactly one cast of {name!r} alone, after it"
        (copy,) = program.main[casts[name][0]].outputs["out"]
        dtype, copy_dtype = program.vars[name].dtype, program.vars[copy].dtype
        if (dtype, copy_dtype) != ("float32", "float16"):
            return f"{copy!r}, the cast of {name!r}, is {copy_dtype}, and the parameter {dtype}"
        if (name, copy) not in begun:
            return f"{copy!r} is not made at startup, so it may differ from {name!r}, rounded, if a step is skipped"
        places.append(casts[name][0])
        for cell in sorted(program.cells((name, copy))):
            for other in sorted(writers[cell].difference((place, casts[name][0]))):
                return f"{title(program.main[other])} changes {cell!r}, too"
    return dependencies.between(program, places)


def _folded(op: Op, copies: list[str]) -> Op:
    """The update of copies, with the parameters as masters."""
    masters = op.inputs["params"]
    attrs = {**op.attrs, "norm_of": "master"} if "norm_of" in op.attrs else op.attrs
    sides = ({**side, "params": copies, "master_params": masters} for side in (op.inputs, op.outputs))
    inputs, outputs = sides
    return op.replace(inputs=inputs, outputs=outputs, attrs=attrs)
