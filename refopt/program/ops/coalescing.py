"""Tensors in one buffer, and variables released or provided at startup."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from refopt import cpu
from refopt.checks.arguments import collected, flag, whole
from refopt.checks.dtypes import ITEM_SIZES
from refopt.program.graph import Graph
from refopt.program.model import UNKNOWN, Op
from refopt.program.ops.checks import check_alike, check_startup, variables
from refopt.program.ops.context import Context
from refopt.program.ops.registry import op

TILE = 1024  # elements; parts of a buffer are multiples of it, since tiles are summed first (numerics, N6)
LAYOUT = "use_align", "align_size", "size_of_dtype"  # attributes that determine where tensors lie in a buffer


def _check_coalesce(graph: Graph, op: Op) -> None:
    check_alike(graph, op, "input", "output")
    _check_layout(op)
    names = op.outputs["fused_output"]
    if len(names) != 1 or graph.vars[names[0]].shape != UNKNOWN:
        raise ValueError(f"fused_output: expected one variable of shape {UNKNOWN}, got {', '.join(names)}")
    for k, var in enumerate(variables(graph, op.outputs["output"])):
        expected = graph.vars[names[0]].dtype
        if var.dtype != expected:
            raise TypeError(f"output[{k}]: expected {expected}, as {names[0]!r} has, got {var.dtype}")
        if math.prod(var.shape) < 1:
            raise ValueError(f"output[{k}]: expected at least one element, got {var.name!r} of shape {var.shape}")


def _check_layout(op: Op) -> None:
    for key in ("copy_data", "use_align"):
        if key in op.attrs:
            flag(key, op.attrs[key])
    for key in ("align_size", "size_of_dtype"):
        if key in op.attrs and whole(key, op.attrs[key], -1) == 0:
            raise ValueError(f"{key}: expected -1 or an integer of at least 1, got 0")
    whole("parts", op.attrs.get("parts", 1), 1)
    if "groups" in op.attrs:
        groups = collected("groups", op.attrs["groups"], "counts")
        total = sum(whole(f"groups[{k}]", count, 1) for k, count in enumerate(groups))
        if total != len(op.outputs["output"]):
            raise ValueError(f"groups: expected counts that add up to {len(op.outputs['output'])}, got {total}")


@op(
    "coalesce_tensor", "input", "output fused_output", check=_check_coalesce, startup=True,
    fills=lambda op: bool(op.attrs.get("copy_data")),
)
def coalesce_tensor(context: Context, op: Op) -> Callable[[], Any]:
    """`output`, the same variables as `input`, become views into one new buffer, `fused_output`; at startup.

    Their values are kept only with `copy_data`. With `parts`, the buffer is padded with zeros until it divides into
    that many equal parts of whole tiles.
    """
    vars, attrs, backend = context.program.vars, op.attrs, context.backend
    copied = bool(attrs.get("copy_data"))

    def run() -> None:
        inputs = [context.arrays[name] if copied else None for name in op.inputs["input"]]
        (buffer,), shapes = op.outputs["fused_output"], [vars[name].shape for name in op.inputs["input"]]
        dtype = vars[buffer].dtype
        if "parts" in attrs:
            total = sum(padded(attrs, math.prod(shape), dtype, backend.chunk) for shape in shapes)
            if more := attrs["parts"] * part_size(total, attrs["parts"]) - total:
                shapes.append((more,))
                inputs.append(backend.full((more,), dtype, 0.0) if copied else None)
        layout = {name: attrs[name] for name in LAYOUT if name in attrs}
        coalesced = backend.coalesce(inputs, dtype=dtype, copy_data=copied, shapes=shapes, **layout)
        context.put(buffer, coalesced.buffer)
        for name, view in zip(op.outputs["output"], coalesced.views, strict=False):
            context.put(name, view)

    return run


def padded(attrs: Mapping[str, Any], size: int, dtype: str, chunk: int) -> int:
    """Elements of a tensor in a buffer of this layout, with padding; ``chunk`` is the machine's alignment in bytes."""
    override = attrs.get("size_of_dtype", -1)
    align = attrs.get("align_size", -1)
    align = (chunk if align == -1 else align) if attrs.get("use_align", True) else None
    return cpu.layout([size], ITEM_SIZES[dtype] if override == -1 else override, align).total


def part_size(total: int, parts: int) -> int:
    """Elements of each of ``parts`` equal parts, whole tiles, that together hold ``total`` elements."""
    return -(-total // (parts * TILE)) * TILE


def _check_brought(slot: str) -> Callable[[Graph, Op], None]:
    def check(graph: Graph, op: Op) -> None:
        names = (op.outputs if slot == "out" else op.inputs)[slot]
        if not names:
            raise ValueError(f"{slot}: expected variables, got none")
        check_startup(op)
        for k, name in enumerate(names):
            if graph.vars[name].persistable:
                raise ValueError(f"{slot}[{k}]: expected a variable that is not persistable, got {name!r}")

    return check


@op("initialize", "", "out", check=_check_brought("out"), startup=True, dense=False)
def initialize(context: Context, op: Op) -> Callable[[], Any]:
    """The caller provides `out` at startup, though they need not live from step to step."""
    return lambda: None


@op("delete", "x", "", check=_check_brought("x"), startup=True, dense=False, drops=True)
def delete(context: Context, op: Op) -> Callable[[], Any]:
    """`x` and their memory are released at startup."""
    return lambda: context.drop(op.inputs["x"])
