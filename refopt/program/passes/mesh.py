"""Turning a step of all ranks into one on a mesh of ranks, with collectives along its axes."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

from refopt.checks.arguments import RANKS, names, shown, whole
from refopt.program.model import Op
from refopt.program.passes.owners import added_up
from refopt.program.passes.result import Result, changed
from refopt.program.program import Program, expect_program


def over_axes(program: Program, axes: Mapping[str, int]) -> Result:
    """Sum gradients along the axes of a mesh in turn, instead of over all ranks at once.

    A pass that distributes the step along one axis, such as `refopt.program.passes.shard_elements`, then leaves the
    sums along the others to the ranks that have the gradient: sharding within a host and replicas across hosts, which
    PyTorch calls HSDP.

    The sums are formed in another order: with axes of 2 and 2, ``(a + b) + (c + d)`` instead of ``a + b + c + d``.
    Later passes preserve the bits of the new step (numerics, N11).

    Args:
        program: a step of as many ranks as the mesh; sparse gradients and broadcasts are not changed.
        axes: sizes by name, in the order of summation.

    Raises:
        ValueError, TypeError: naming the axis; or the program is for another number of ranks.
    """
    expect_program("over_axes", program)
    sizes = _sizes("over_axes: axes", axes)
    main: list[Op] = []
    for op in program.main:
        if op.type == "all_reduce" and "axis" not in op.attrs:
            if op.attrs["ranks"] != math.prod(sizes.values()):
                got = math.prod(sizes.values())
                raise ValueError(f"over_axes: axes: expected {op.attrs['ranks']} ranks, as the program has, got {got}")
            main += _along(op, sizes)
        else:
            main.append(op)
    return changed(program, program.replace(main=main), (), "nothing is summed over all ranks at once")


def check_over(program: Program, axes: Mapping[str, int]) -> Result:
    """Combine the gradient checks of ranks with different parameters: whether any is inf or NaN, and the norm.

    The results of each check of gradients are added up along some axes, such as those of tensor and pipeline
    parallelism, so that all ranks skip a step, and clip, consistently. Sums of squares are added up place by place, so
    for a norm all ranks must have the same number of parameters.

    Args:
        program: a step that checks its gradients, before or after it is distributed.
        axes: sizes by name.

    Raises:
        ValueError, TypeError: naming the axis.
    """
    expect_program("check_over", program)
    sizes = _sizes("check_over: axes", axes)
    main: list[Op] = []
    for op in program.main:
        if op.type == "finish_check":
            check = Op("check_gradients", {}, {slot: op.inputs.get(slot, ()) for slot in ("odd", "sums")})
            there = {(each.reads, each.attrs["axis"]) for each in main if "axis" in each.attrs}
            new = [each for one in added_up(program, check, 1) for each in _along(one, sizes)]
            main += [each for each in new if (each.reads, each.attrs["axis"]) not in there]
        main.append(op)
    checked = any(op.type == "finish_check" for op in program.main)
    reason = "all gradient checks are combined along these axes" if checked else "no gradients are checked"
    return changed(program, program.replace(main=main), (), reason)


def _along(op: Op, sizes: Mapping[str, int]) -> Iterator[Op]:
    """A collective along each axis."""
    for axis, size in sizes.items():
        yield op.replace(attrs={**op.attrs, "ranks": size, "axis": axis})


def _sizes(where: str, axes: Any) -> dict[str, int]:
    if not isinstance(axes, Mapping) or not axes:
        raise TypeError(f"{where}: expected sizes by name, got {shown(axes)}")
    return {axis: whole(f"{where}: {axis!r}", axes[axis], 1, RANKS) for axis in names(where, list(axes))}
