"""Sparse gradients: numbered rows, gathered from all ranks and added up."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import accumulate
from typing import Any

import numpy as np

from refopt.checks.arrays import check_c_order
from refopt.program.backends import Backend
from refopt.program.graph import Graph
from refopt.program.model import Op, Var
from refopt.program.ops.checks import check_alike, check_ranks, check_widens, variables
from refopt.program.ops.context import Context, Rows
from refopt.program.ops.registry import op


def check_rows(graph: Graph, op: Op) -> None:
    """Raise unless an ``all_gather`` is of one sparse variable."""
    check_alike(graph, op, "x", "out")
    check_ranks(op)
    for slot, (name, *others) in (("x", op.inputs["x"]), ("out", op.outputs["out"])):
        if others or not graph.vars[name].sparse:
            raise TypeError(f"{slot}: expected one sparse variable, got {', '.join((name, *others))}")


def all_rows(context: Context, op: Op) -> Callable[[], Any]:
    """An ``all_gather`` of a sparse variable, bound."""
    (source,), (target,) = op.inputs["x"], op.outputs["out"]
    var = context.program.vars[source]

    def run() -> None:
        context.rows[target] = gathered(context.backend, context.comm, var, context.rows[source])

    return run


def _check_scatter_add(graph: Graph, op: Op) -> None:
    check_alike(graph, op, "x", "out", dtype=False)
    for x, y in zip(variables(graph, op.inputs["x"]), variables(graph, op.outputs["out"]), strict=True):
        if not x.sparse or y.sparse:
            raise TypeError(f"x, out: expected a sparse variable and a dense one, got {x.name!r} and {y.name!r}")
        check_widens("out", x.dtype, y.dtype)


@op(
    "scatter_add", "x", "out", check=_check_scatter_add, dense=False, gpu="refopt.program.gpu.sparse:scatter_add",
)
def scatter_add(context: Context, op: Op) -> Callable[[], Any]:
    """The dense `out` becomes the sum of the rows of the sparse `x`, added rank after rank, row after row."""
    pairs = list(zip(op.inputs["x"], op.outputs["out"], strict=True))

    def run() -> None:
        for source, target in pairs:
            add_rows(context.rows[source], context.arrays[target])

    return run


def add_rows(rows: Rows, dense: np.ndarray) -> None:
    """Overwrite an array with the sum of rows, each added to the row of its number, in the order given."""
    dense[...] = 0
    with np.errstate(all="ignore"):
        np.add.at(dense, rows[0], rows[1].astype(dense.dtype, copy=False))  # which adds them in order


def checked(backend: Backend, where: str, var: Var, value: Any) -> Rows:
    """Row numbers and rows that a caller provides; raises if they do not fit the variable."""
    if not isinstance(value, tuple | list) or len(value) != 2:
        raise TypeError(f"{where}: expected a pair of row numbers and rows, got {type(value).__name__}")
    indices, values = (backend.upload(x) if backend.name == "gpu" and isinstance(x, np.ndarray) else x for x in value)
    numbers, rows = backend.describe(indices, f"{where}: [0]"), backend.describe(values, f"{where}: [1]")
    if numbers.dtype != "int64" or len(numbers.shape) != 1:
        raise TypeError(f"{where}: [0]: expected int64 of one dimension, got {numbers.dtype} of shape {numbers.shape}")
    expected = numbers.shape + var.shape[1:]
    if rows.dtype != var.dtype:
        raise TypeError(f"{where}: [1]: expected {var.dtype}, got {rows.dtype}")
    if rows.shape != expected:
        raise ValueError(f"{where}: [1]: expected shape {expected}, a row for each number, got {rows.shape}")
    for k, x in ((0, numbers), (1, rows)):
        check_c_order(f"{where}: [{k}]", x)
    host = backend.read(indices)
    for k in np.flatnonzero((host < 0) | (host >= var.shape[0]))[:1]:
        raise ValueError(f"{where}: [0][{k}]: expected a row from 0 to {var.shape[0] - 1}, got {host[k]}")
    return indices, values


def gathered(backend: Backend, comm: Any, var: Var, rows: Rows) -> Rows:
    """The rows of all ranks, in rank order, however many each has."""
    counts = backend.full((comm.size,), "int64", 0)
    comm.all_gather(backend.upload(np.array([len(rows[0])], np.int64)), counts)
    ours = backend.read(counts).tolist()
    ends = [*accumulate(ours)]

    def joined(source: Any, dtype: str, shape: tuple[int, ...]) -> Any:
        """One array of what all ranks have, sent in parts as long as the longest."""
        width, every = math.prod(shape), (sum(ours), *shape)
        if not (part := max(ours) * width):
            return backend.full(every, dtype, 0)
        mine, sent, joined = (backend.full((n,), dtype, 0) for n in (part, part * comm.size, math.prod(every)))
        if source.size:
            backend.cast([source.reshape(source.size)], [backend.part(mine, 0, source.size)])()
        comm.all_gather(mine, sent)
        pieces = [(r * part, (end - n) * width, n * width) for r, (n, end) in enumerate(zip(ours, ends, strict=True))]
        backend.cast(*([backend.part(x, piece[k], piece[2]) for piece in pieces if piece[2]]
                       for k, x in enumerate((sent, joined))))()
        return joined.reshape(every)

    return joined(rows[0], "int64", ()), joined(rows[1], var.dtype, var.shape[1:])
