"""Copies and multiplications of single tensors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from refopt.checks.arguments import number
from refopt.program.graph import Graph
from refopt.program.model import Op
from refopt.program.ops.checks import check_alike
from refopt.program.ops.context import Context
from refopt.program.ops.registry import op


def _check_scale(graph: Graph, op: Op) -> None:
    check_alike(graph, op, "x", "out", in_place=True)
    number("scale", op.attrs.get("scale"), finite=True)


@op("scale", "x", "out", check=_check_scale)
def scale(context: Context, op: Op) -> Callable[[], Any]:
    """Each of `x` is multiplied by the number `scale`, in place."""
    arrays = [context.arrays[name] for name in op.inputs["x"]]
    return context.backend.cast(arrays, arrays, op.attrs["scale"])


def _check_cast(graph: Graph, op: Op) -> None:
    check_alike(graph, op, "x", "out", dtype=False)


@op("cast", "x", "out", check=_check_cast)
def cast(context: Context, op: Op) -> Callable[[], Any]:
    """Each of `x` is copied to its counterpart in `out`, and rounded to its dtype."""
    sources, targets = ([context.arrays[name] for name in names] for names in (op.inputs["x"], op.outputs["out"]))
    return context.backend.cast(sources, targets)
