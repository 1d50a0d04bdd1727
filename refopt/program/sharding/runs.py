"""Collectives of one root that come one after the other and fit together, so that they can be one."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from refopt.program import Op, Program
from refopt.program.passes import dependencies
from refopt.program.passes.grouping import fuse_size


def runs(program: Program, kind: str, limit: float, reasons: list[str]) -> list[list[int]]:
    """Places in ``main`` of the collectives of a type, root by root, in runs of one dtype and of so many bytes.

    A collective of several variables ends the run before it, so that nothing is put together the second time that was
    not the first. One whose variable has no elements, or is in a buffer already, is in no run.

    Args:
        program: the program.
        kind: the type, ``"reduce"`` or ``"broadcast"``.
        limit: megabytes of 2**20 bytes that a run may have; see `refopt.program.passes.grouping.fuse_size`.
        reasons: why a collective is in no run is added to it.
    """
    roots: dict[int, list[list[int]]] = {}
    for i, op in enumerate(program.main):
        if op.type != kind:
            continue
        stretches = roots.setdefault(op.attrs["root"], [[]])
        name = op.inputs["x"][0]
        if len(op.inputs["x"]) > 1:
            stretches.append([])
        elif name in program.buffer_of:
            reasons.append(f"{name!r} is in a buffer already, {program.buffer_of[name]!r}")
        elif math.prod(program.vars[name].shape) == 0:
            reasons.append(f"{name!r} has no elements")
        else:
            stretches[-1].append(i)
    buckets = []
    for places in (places for stretches in roots.values() for places in stretches):
        vars = [program.vars[program.main[i].inputs["x"][0]] for i in places]
        names, shapes, dtypes = ([getattr(var, key) for var in vars] for key in ("name", "shape", "dtype"))
        buckets += [[places[k] for k in group] for group in fuse_size(names, shapes, dtypes, limit=limit).groups]
    return buckets


def one_of(program: Program, places: list[int], names: list[str], layout: Mapping[str, Any]) -> Op:
    """One op, of some variables that lie as a layout says, in the place of several."""
    first = program.main[places[0]]
    layer = dependencies.common(program.main[i].layer for i in places)
    return first.replace(inputs={"x": names}, outputs={"out": names}, attrs={**first.attrs, **layout}, layer=layer)


def about(program: Program, places: list[int]) -> str:
    """A run in words."""
    first, last = (program.main[i].inputs["x"][0] for i in (places[0], places[-1]))
    return f"rank {program.main[places[0]].attrs['root']}, {first!r} to {last!r}"
