"""Ranks that train alone for some steps, and then average their parameters."""

from __future__ import annotations

import math
from typing import Any

from refopt.checks.arguments import RANKS, whole
from refopt.checks.dtypes import REMAINDERS
from refopt.program.model import UNKNOWN, Op, Var
from refopt.program.ops.coalescing import LAYOUT
from refopt.program.ops.updates import routine_of
from refopt.program.passes.coalesce import coalesce_op
from refopt.program.passes.dependencies import title
from refopt.program.passes.gradients import params_of
from refopt.program.passes.result import Result, changed
from refopt.program.program import Program, expect_program
from refopt.program.states import copies


def local_steps(program: Program, every: int) -> Result:
    """Sum no gradients, but average the parameters over the ranks at the end of each ``every``-th step.

    Each rank updates its parameters by its own gradients, and keeps its own states, loss scale included, which are
    never averaged. Masters are averaged instead of what is rounded from them. Parameters of a dtype are one call, and
    lie in a buffer from startup on. `Bound.steps` counts, so a checkpoint resumes between two averages; it has what one
    rank has, and each rank saves and loads its own. It changes bits.

    The step must be one of all ranks alike, as `step_program` makes it: apply it before gradients are shared out,
    narrowed, or averaged within updates.

    Args:
        every: k, at least 1.

    Source: Paddle's ``localsgd_optimizer.py``; S. U. Stich, "Local SGD Converges Fast and Communicates Little", 2019.
    """
    expect_program("local_steps", program)
    every = whole("local_steps: every", every, 1)
    sums = [op for op in program.main if "ranks" in op.attrs]
    if not sums:
        return Result(program, False, ("no gradients are summed over ranks",))
    ranks, reasons = sums[0].attrs["ranks"], list[str]()
    main = _alone(program, ranks, reasons)
    exact, rounded = _parameters(program, reasons)
    if reasons:
        return Result(program, False, tuple(reasons))
    new: list[Var] = []
    startup: list[Op] = []
    when = {"every": every}
    for dtype in dict.fromkeys(program.vars[name].dtype for name in exact):
        alike = tuple(name for name in exact if program.vars[name].dtype == dtype)
        free = [name for name in alike if name not in program.views and name not in program.buffer_of]
        calls, layout = [[name] for name in alike], dict[str, Any]()
        if len(free) > 1:
            startup.append(coalesce_op(free, f"LocalParams_{free[0]}", copy_data=True))
            new.append(Var(f"LocalParams_{free[0]}", UNKNOWN, dtype, True))
            layout = {key: startup[-1].attrs[key] for key in LAYOUT}
            calls = [free, *([name] for name in alike if name not in free)]
        for names in calls:
            attrs = {"ranks": ranks, **when, **(layout if len(names) > 1 else {})}
            main.append(Op("all_reduce", {"x": tuple(names)}, {"out": tuple(names)}, attrs, "communicate"))
        main.append(Op("scale", {"x": alike}, {"out": alike}, {"scale": 1 / ranks, **when}, "optimize"))
    if rounded:
        main.append(Op("cast", {"x": tuple(rounded.values())}, {"out": tuple(rounded)}, when, "optimize"))
    made = program.with_vars(new).replace(startup=[*program.startup, *startup], main=main)
    return changed(program, made, (), "there are no parameters")


def _alone(program: Program, ranks: int, reasons: list[str]) -> list[Op]:
    """The ops of a step of one rank alone; adds why there is none."""
    grads, summed, averaged = program.cells(params_of(program)), set[str](), set[str]()
    main: list[Op] = []
    for op in program.main:
        cells = program.cells(op.reads)
        if "ranks" in op.attrs:
            summed |= cells
            if op.type != "all_reduce" or "axis" in op.attrs or not cells <= grads:
                reasons.append(f"{title(op)}: expected all-reduces of gradients over all ranks, and nothing else")
        elif op.type == "scale" and cells & summed:
            averaged |= cells
            scale = op.attrs["scale"]
            count = round(1 / scale) if scale >= 1 / RANKS**2 else 0  # ranks, times micro-steps
            if not count or count % ranks or 1 / count != scale:
                reasons.append(f"{title(op)}: {scale!r} is not an average over {ranks} ranks")
            elif count > ranks:
                main.append(op.replace(attrs={"scale": ranks / count}))
        else:
            main.append(op)
    reasons += [f"{name!r} is summed over ranks, and no scale op averages it" for name in sorted(summed - averaged)]
    return main


def _parameters(program: Program, reasons: list[str]) -> tuple[list[str], dict[str, str]]:
    """Parameters, or their masters if they have some; and by name of what is rounded from them, which that is."""
    exact: dict[str, None] = {}
    rounded: dict[str, str] = {}
    for op in program.main:
        if op.type == "copy_in":
            reasons.append(f"{title(op)}: states are in host memory; apply offload afterwards")
        for k, param in enumerate(op.inputs["params"] if routine_of(op) is not None else ()):
            master = op.inputs.get("master_params", op.inputs["params"])[k]
            if program.vars[master].dtype in REMAINDERS:
                reasons.append(f"{title(op)}: {master!r} is a remainder, which has no average")
            elif program.vars[param].shape == UNKNOWN or math.prod(program.vars[param].shape) > 0:
                exact[master] = None
                rounded |= {param: master} if param != master else {}
    rounded |= {copy: source for copy, source in copies(program).items() if source in exact}
    return [*exact], rounded
