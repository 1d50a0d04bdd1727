"""Parameters cut into blocks that servers own, with the parts of the update for each block."""

from __future__ import annotations

import math
from collections.abc import Mapping
from itertools import pairwise
from typing import Any, NamedTuple

from refopt.cpu.blocks import cut
from refopt.program.blocks import Block, block_shape, slice_variable, state_block
from refopt.program.model import Op, Part, Var
from refopt.program.ops.checks import Describer
from refopt.program.ops.updates import SHARED, coded, uncut
from refopt.program.passes.balance import Balancer
from refopt.program.program import Program


class Piece(NamedTuple):
    """A block of a parameter, with its part of the update.

    Attributes:
        block: the block.
        server: the rank that updates it.
        names: by variable of the update, the piece's own.
        attrs: attributes of its update that differ from the whole.
    """

    block: Block
    server: int
    names: Mapping[str, str]
    attrs: Mapping[str, Any]


class Parameter(NamedTuple):
    """A parameter that is updated elsewhere: its name, its gradient, its ops, its pieces, and the device it is on."""

    name: str
    grad: str
    ops: list[Op]
    pieces: list[Piece]
    device: int


class Dealer:
    """Cuts parameters into pieces, and assigns these to servers in turn."""

    def __init__(self, program: Program, balancer: Balancer, slice_count: int, min_block_size: int) -> None:
        self.parameters: list[Parameter] = []
        self.vars: dict[str, Var] = {}
        self.reasons: list[str] = []
        self._program, self._balancer = program, balancer
        self._slice_count, self._min_block_size = slice_count, min_block_size
        self._dealt = 0

    def deal(self, name: str, ops: list[Op]) -> None:
        """Cut one parameter."""
        blocks, attrs, reason = _cut(self._program, ops[0], self._slice_count, self._min_block_size)
        self.reasons += [reason] if reason else []
        pieces = []
        used = list(dict.fromkeys(
            used for op in ops for slot, names in op.inputs.items() if slot not in SHARED for used in names
        ))
        for block, own in zip(blocks, attrs, strict=True):
            names = dict(zip(used, used, strict=True)) if len(blocks) == 1 else self._names(name, used, block)
            pieces.append(Piece(block, self._dealt % self._balancer.devices, names, own))
            self._dealt += 1
        grad = ops[0].inputs["grads"][0]
        self.parameters.append(Parameter(name, grad, ops, pieces, self._balancer.place(grad)))

    def _names(self, param: str, used: list[str], block: Block) -> dict[str, str]:
        """Make a block's variables; returns their names."""
        vars, names = self._program.vars, {}
        shape = vars[param].shape
        for name in used:
            var = vars[name]
            suffix = name.removeprefix(param) if name.startswith(f"{param}_") else ""
            names[name] = own = f"{param}.block{block.number}{suffix}" if suffix else f"{name}.block{block.number}"
            initial = 0.0 if var.persistable else None  # startup cuts what the whole starts from
            part = state_block(var.shape, shape, block)
            extents, of = block_shape(var.shape, part), Part(name, var.shape, part.first)
            self.vars[own] = Var(own, extents, var.dtype, var.persistable, initial=initial, part=of)
        return names


def _cut(
    program: Program, op: Op, slice_count: int, min_block_size: int
) -> tuple[tuple[Block, ...], list[dict[str, Any]], str]:
    """The blocks of a parameter, attributes of their updates, and why it is not cut, if it could be."""
    (name,) = op.inputs["params"]
    var = program.vars[name]
    (blocks,) = slice_variable([var.shape], slice_count, min_block_size)
    reason = (uncut(op) or coded(program, op)) if len(blocks) > 1 else ""
    if not reason:
        return blocks, [{}] * len(blocks), ""
    runs = _of_matrices(var, op, blocks[0].size) if "blocks" in op.attrs else []
    if len(runs) < 2:
        return (Block(0, 0, math.prod(var.shape)),), [{}], f"{name!r} is not cut: {reason}"
    return tuple(Block(k, *run) for k, (run, _) in enumerate(runs)), [attrs for _, attrs in runs], ""


def _of_matrices(var: Var, op: Op, size: int) -> list[tuple[tuple[int, int], dict[str, Any]]]:
    """Runs of rows of whole matrices, with at least a number of elements: offset, size, and attributes."""
    blocks, width = op.attrs["blocks"], math.prod(var.shape[1:])
    apart = blocks.of == "experts" and len(var.shape) > 2
    ends = range(var.shape[0] + 1) if apart else cut(var.name, Describer()(var, ""), blocks, "blocks").ends[0]
    runs, last = [], 0
    for k, end in enumerate(ends):
        length = (end - ends[last]) * width
        if length >= size or end == ends[-1]:
            rows = tuple(stop - first for first, stop in pairwise(ends[last : k + 1]))
            runs.append(((ends[last] * width, length), {} if apart else {"blocks": blocks._replace(rows=rows)}))
            last = k
    return runs
