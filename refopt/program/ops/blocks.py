"""Cuts variables into blocks of rows, and joins the blocks again."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from refopt.checks.arrays import check_c_order
from refopt.program.blocks import Block, block_shape, rows_of
from refopt.program.blocks import split_by_ref as views_of
from refopt.program.graph import Graph
from refopt.program.model import Op
from refopt.program.ops.checks import check_one, check_startup
from refopt.program.ops.context import Context
from refopt.program.ops.registry import op


def _check_blocks(graph: Graph, whole: str, parts: tuple[str, ...], slot: str) -> None:
    """Raise unless parts are all rows of the whole, in order; or all its elements, as one-dimensional variables."""
    var, rows = graph.vars[whole], 0
    if _is_flat(graph, whole, parts):
        var = replace(var, shape=(math.prod(var.shape),))
    for k, name in enumerate(parts):
        part = graph.vars[name]
        if part.dtype != var.dtype:
            raise TypeError(f"{slot}[{k}] {name!r}: expected {var.dtype}, as {whole!r} has, got {part.dtype}")
        if not part.shape or part.shape[1:] != var.shape[1:] or len(part.shape) != len(var.shape):
            raise ValueError(f"{slot}[{k}] {name!r}: expected rows of {whole!r}, {var.shape}, got {part.shape}")
        rows += part.shape[0]
    if rows != var.shape[0]:
        raise ValueError(f"{slot}: expected {var.shape[0]} rows in all, as {whole!r} has, got {rows}")


def _is_flat(graph: Graph, whole: str, parts: Sequence[str]) -> bool:
    """Whether parts are cut from a variable as if it had one dimension."""
    return len(graph.vars[whole].shape) != 1 and all(len(graph.vars[name].shape) == 1 for name in parts)


def _blocks_of(graph: Graph, parts: Sequence[str]) -> list[Block]:
    """The parts of a variable as blocks, from their sizes."""
    blocks, first = [], 0
    for number, name in enumerate(parts):
        size = math.prod(graph.vars[name].shape)
        blocks.append(Block(number, first, size))
        first += size
    return blocks


def _check_split_by_ref(graph: Graph, op: Op) -> None:
    check_one(op.inputs["x"], "x")
    _check_blocks(graph, op.inputs["x"][0], op.outputs["out"], "out")


@op("split_by_ref", "x", "out", check=_check_split_by_ref)
def split_by_ref(context: Context, op: Op) -> Callable[[], Any]:
    """`out` become views of consecutive rows, or elements, of `x`; nothing is copied."""
    (whole,), parts, backend = op.inputs["x"], op.outputs["out"], context.backend
    array, blocks = context.arrays[whole], _blocks_of(context.program, parts)
    if _is_flat(context.program, whole, parts):
        where = f"split_by_ref: {whole!r}"
        check_c_order(where, backend.describe(array, where))
        views = [backend.part(array, block.first, block.size) for block in blocks]
    else:
        views = views_of(array, blocks)
    for name, view in zip(parts, views, strict=True):
        context.put(name, view)
    return lambda: None


def _check_split(graph: Graph, op: Op) -> None:
    check_one(op.inputs["x"], "x")
    blocks, names = op.attrs.get("blocks", ()), op.outputs["out"]
    check_startup(op)
    if len(blocks) != len(names):
        raise ValueError(f"blocks: expected {len(names)}, as out has, got {len(blocks)}")
    shape = graph.vars[op.inputs["x"][0]].shape
    for k, (block, name) in enumerate(zip(blocks, names, strict=True)):
        expected, got = block_shape(shape, Block(*block)), graph.vars[name].shape
        if got != expected:
            raise ValueError(f"out[{k}] {name!r}: expected shape {expected}, that of its block, got {got}")


@op("split", "x", "out", check=_check_split, startup=True)
def split(context: Context, op: Op) -> Callable[[], Any]:
    """At startup: `out` become copies of the blocks of `x` that the attribute `blocks` lists.

    `x` is then released if the attribute `keep` is false. A block that the caller provided stays as it is.
    """
    (whole,), vars = op.inputs["x"], context.program.vars

    def run() -> None:
        array = context.arrays[whole]
        for name, block in zip(op.outputs["out"], op.attrs["blocks"], strict=True):
            if context.is_brought(name):
                continue
            copy = context.backend.full(vars[name].shape, vars[name].dtype, 0.0)
            start, stop = rows_of("split", vars[whole].shape, Block(*block))
            context.backend.cast([array[start:stop]], [copy])()
            context.put(name, copy)
        if not op.attrs.get("keep", True):
            context.drop([whole])

    return run


def _check_concat(graph: Graph, op: Op) -> None:
    check_one(op.outputs["out"], "out")
    _check_blocks(graph, op.outputs["out"][0], op.inputs["x"], "x")


@op("concat", "x", "out", check=_check_concat)
def concat(context: Context, op: Op) -> Callable[[], Any]:
    """`out` is overwritten by the blocks `x`, of which it consists."""
    parts = op.inputs["x"]
    places = views_of(context.arrays[op.outputs["out"][0]], _blocks_of(context.program, parts))
    return context.backend.cast([context.arrays[name] for name in parts], places)
