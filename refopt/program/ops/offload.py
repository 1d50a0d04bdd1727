"""Copies of states from host memory to a ring of buffers on the device, and back."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from refopt.checks.dtypes import ITEM_SIZES
from refopt.program.graph import Graph
from refopt.program.model import Op, Var
from refopt.program.ops.context import Context
from refopt.program.ops.registry import op

COPIES = "copy_in", "copy_out"
ALIGN = 256  # bytes, the alignment of tensors in a block


def layout(vars: Sequence[Var]) -> tuple[list[int], int]:
    """The offsets of tensors in a block, in bytes, and the size of the block."""
    firsts, end = [], 0
    for var in vars:
        firsts.append(end)
        end += -(-math.prod(var.shape) * ITEM_SIZES[var.dtype] // ALIGN) * ALIGN
    return firsts, end


def _check_copy(graph: Graph, op: Op) -> None:
    x, out = ([graph.vars[name] for name in names] for names in (op.inputs["x"], op.outputs["out"]))
    if len(x) != len(out):
        raise ValueError(f"out: expected {len(x)} variables, as x has, got {len(out)}")
    for k, (one, other) in enumerate(zip(x, out, strict=True)):
        if (one.shape, one.dtype, one.sparse) != (other.shape, other.dtype, other.sparse):
            raise ValueError(f"out[{k}]: expected {one}, as x has, got {other}")
    names = (op.inputs if op.type == "copy_out" else op.outputs)["ring"]
    need = layout(x)[1]
    if len(names) != 1 or graph.vars[names[0]].dtype != "uint8" or math.prod(graph.vars[names[0]].shape) < need:
        raise ValueError(f"ring: expected one variable of {need} bytes or more, got {', '.join(names)}")


@op("copy_in", "x", "out ring", check=_check_copy, way="host", dense=False)
@op("copy_out", "x ring", "out", check=_check_copy, way="host", dense=False)
def copy(context: Context, op: Op) -> Callable[[], Any]:
    """`out` become copies of `x`; one of both is in device memory, the other in host memory.

    Those on the device lie in `ring`, an output of ``copy_in`` and an input of ``copy_out``, which orders the two.
    `refopt.program.bind` treats all variables as ordinary arrays.
    """
    x, out = ([context.arrays[name] for name in names] for names in (op.inputs["x"], op.outputs["out"]))
    return context.backend.cast(x, out)
