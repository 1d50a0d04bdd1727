"""Casting parameters in the optimizer's stage: once after the update instead of in every micro-step."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from refopt.program.model import Op
from refopt.program.passes.eligibility import Eligible, eligible
from refopt.program.passes.result import Result
from refopt.program.program import Program, expect_program


def optimize_cast(program: Program) -> Result:
    """Keep fp16 copies of parameters from step to step, and cast where the parameters change.

    Casts in the forward and backward passes are removed, with the recomputed copies; a cast follows each update;
    broadcasts of a parameter become those of its copy; and startup makes the first copies, after its broadcasts. A rank
    that receives a parameter instead of updating it frees the fp32 array at the end of startup. No bit changes: a copy
    always is the parameter, rounded.

    Apply it after `refopt.program.passes.fuse_optimizer`, which declines updates with casts in between.

    In a program for several ranks, a broadcast of a parameter is assumed to come from the only rank that updates it, as
    with `refopt.program.passes.shard`. `refopt.program.passes.eligible` finds the eligible parameters.

    Source: ``cast_fp32param_in_optimize`` of Paddle's ``sharding/offload_helper.py``, PR 34965, and
    ``opt_sharding_cast_fp32param``, PR 35878.
    """
    expect_program("optimize_cast", program)
    analysis = eligible(program)
    if not analysis.copies:
        return Result(program, False, (*analysis.reasons, "no model pass casts a parameter that can live in fp16"))
    main, updated = _main(program, analysis)
    vars = {name: var for name, var in program.vars.items() if name not in analysis.recomputed}
    for copy in analysis.copies.values():
        vars[copy] = replace(vars[copy], persistable=True, initial=0.0)
    startup = [Op("cast", {"x": (param,)}, {"out": (copy,)}, {}, "startup") for param, copy in analysis.copies.items()]
    sent = {op.inputs["x"][0] for op in program.main if op.type == "broadcast"}
    gone = [param for param in analysis.copies if param in sent and param not in updated]
    rewritten = program.replace(vars=vars, startup=[*program.startup, *startup], main=main)
    return Result(without_masters(rewritten, gone), True, analysis.reasons)


def _main(program: Program, analysis: Eligible) -> tuple[list[Op], set[str]]:
    """The ops with casts of eligible parameters only after updates, and the parameters that are updated here."""
    main: list[Op] = []
    updated: set[str] = set()
    order = {param: k for k, param in enumerate(analysis.copies)}
    for i, op in enumerate(program.main):
        if i in analysis.casts:
            continue
        main.append(_renamed(op, analysis))
        written = program.cells(op.writes) if op.role == "optimize" else set()
        for param in sorted(written & analysis.copies.keys(), key=order.__getitem__):
            slots = {"x": (param,)}, {"out": (analysis.copies[param],)}
            main.append(Op("cast", *slots, {}, "optimize", op.layer, op.device))
            updated.add(param)
    return main, updated


def without_masters(program: Program, names: Collection[str]) -> Program:
    """Free parameters at the end of startup; the caller still provides them."""
    if not names:
        return program
    let_go = set(names)
    vars = {name: replace(var, persistable=False) if name in let_go else var for name, var in program.vars.items()}
    here = {op.type: op for op in program.startup if op.type in ("initialize", "delete")}
    gone = {name for op in here.values() for name in (*op.reads, *op.writes)} | let_go
    ordered = tuple(name for name in vars if name in gone)
    startup = [op for op in program.startup if op.type not in here]
    first, last = Op("initialize", {}, {"out": ordered}, {}, "startup"), Op("delete", {"x": ordered}, {}, {}, "startup")
    return program.replace(vars=vars, startup=[first, *startup, last])


def _renamed(op: Op, analysis: Eligible) -> Op:
    """An op that reads first copies instead of recomputed ones, and sends copies instead of parameters."""
    new = (analysis.copies, analysis.recomputed) if op.type == "broadcast" else (analysis.recomputed,)
    if not any(name in names for name in op.reads for names in new):
        return op
    return op.with_names(lambda _, names: [next((each[x] for each in new if x in each), x) for x in names])
