"""Which parameters can live in fp16, with the cast in the optimizer's stage."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from refopt.catalog import ROUTINES
from refopt.program.mixed_precision import CAST, RECOMPUTED, copy_of
from refopt.program.model import Op
from refopt.program.ops.registry import of_way
from refopt.program.ops.updates import MERGED
from refopt.program.passes.dependencies import title
from refopt.program.program import Program, expect_program

STAGES = "forward", "backward"


class Eligible(NamedTuple):
    """What can be done to a program.

    Attributes:
        copies: by parameter that is eligible, its fp16 copy; in program order.
        recomputed: by copy that is made again, the first one.
        casts: places in ``main`` of the casts that make these.
        reasons: why other parameters are not eligible.
    """

    copies: Mapping[str, str]
    recomputed: Mapping[str, str]
    casts: frozenset[int]
    reasons: tuple[str, ...]


def eligible(program: Program) -> Eligible:
    """Find the parameters that the forward and the backward pass read in fp16 alone.

    A parameter is eligible if each op of these passes that reads it is a cast of it alone, to fp16, whose outcome is
    named ``w.cast_fp16``, or, after that, ``w.cast_fp16.subprog_0`` or the like; if nobody reads a copy that is older
    than the parameter; and if no collective has it in a group.

    Source: ``OffloadHelper`` in Paddle's ``sharding/offload_helper.py``, PR 34965 and PR 35878, which knows casts by
    these names. It fails on a parameter that no op reads, and takes one step for granted where copies could be old.
    """
    expect_program("eligible", program)
    stays: dict[str, str] = {}
    copies: dict[str, str] = {}
    recomputed: dict[str, str] = {}
    casts: dict[int, str] = {}
    source: dict[str, str] = {}
    old: set[str] = set()
    params = _params(program)
    made_of: dict[str, set[str]] = {}  # by parameter, what it has been cast to
    order = {param: k for k, param in enumerate(params)}
    for i, op in enumerate(program.main):
        for name in op.reads:
            if name in old:
                stays.setdefault(source[name], f"{title(op)} reads {name!r}, which is older than the parameter")
        for param in (name for name in op.reads if name in order):
            if op.role in STAGES:
                reason = _no_cast(program, op, param, copies)
                if reason:
                    stays.setdefault(param, reason)
                    continue
                (copy,) = op.outputs["out"]
                casts[i] = source[copy] = param
                made_of.setdefault(param, set()).add(copy)
                old.discard(copy)
                if copy == copy_of(param):
                    copies[param] = copy
                else:
                    recomputed[copy] = copy_of(param)
            elif op.type in of_way("network") and len(op.reads) > 1:
                stays.setdefault(param, f"{op.type} has it in a group; fuse_broadcasts comes after")
        written = program.cells(op.writes)
        if op.role != "optimize" and op.type != "broadcast":
            for param in sorted(written & order.keys(), key=order.__getitem__):
                stays.setdefault(param, f"{title(op)} changes it outside of the optimizer's stage")
        old.update(name for param in written & made_of.keys() for name in made_of[param] if source[name] == param)
    for param in params:
        if param not in copies:
            stays.setdefault(param, "neither pass casts it")
    good = {param: copies[param] for param in params if param not in stays}
    return Eligible(
        good,
        {copy: first for copy, first in recomputed.items() if source[copy] in good},
        frozenset(i for i, param in casts.items() if param in good),
        tuple(f"{param!r} stays fp32: {reason}" for param, reason in stays.items()),
    )


def _params(program: Program) -> list[str]:
    """fp32 parameters: what ops of routines update, here or where they come from, and what is cast."""
    touched = {name for op in program.main if op.type.removeprefix(MERGED) in ROUTINES for name in op.outputs["params"]}
    touched |= {name for op in program.main if op.type == "broadcast" or op.role in STAGES for name in op.reads}
    touched = program.cells(touched)
    return [
        name for name, var in program.vars.items() if name in touched and var.persistable and var.dtype == "float32"
    ]  # fmt: skip


def _no_cast(program: Program, op: Op, param: str, copies: Mapping[str, str]) -> str:
    """Why an op that reads a parameter is not its cast to fp16. Empty if it is."""
    if op.type != "cast":
        return f"{title(op)} reads it"
    if len(op.inputs["x"]) > 1:
        return "its cast is one with others"
    (copy,) = op.outputs["out"]
    if program.vars[copy].dtype != "float16":
        return f"its cast {copy!r} is {program.vars[copy].dtype}"
    if copy == copy_of(param) or (CAST in copy and RECOMPUTED in copy and param in copies):
        return ""
    return f"its cast is named {copy!r}"
