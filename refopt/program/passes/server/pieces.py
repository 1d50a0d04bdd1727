"""Parameters cut into blocks that servers own: which of its update belongs to which, and who has it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from refopt.program.blocks import Block, block_shape, slice_variable
from refopt.program.model import Op, Part, Var
from refopt.program.ops.updates import SHARED, routine_of
from refopt.program.passes.balance import Balancer
from refopt.program.program import Program


class Piece(NamedTuple):
    """A block of a parameter, and what of its update belongs to it.

    Attributes:
        block: which one.
        server: the rank that updates it.
        names: by variable of the update, the piece's own.
    """

    block: Block
    server: int
    names: Mapping[str, str]


class Parameter(NamedTuple):
    """A parameter that is updated elsewhere: its name, its gradient, its ops, its pieces, and the device it is on."""

    name: str
    grad: str
    ops: list[Op]
    pieces: list[Piece]
    device: int


class Dealer:
    """Cuts parameters into pieces, and gives these to servers in turn."""

    def __init__(self, program: Program, balancer: Balancer, slice_count: int, min_block_size: int) -> None:
        self.parameters: list[Parameter] = []
        self.vars: dict[str, Var] = {}
        self.reasons: list[str] = []
        self._program, self._balancer = program, balancer
        self._slice_count, self._min_block_size = slice_count, min_block_size
        self._dealt = 0

    def deal(self, name: str, ops: list[Op]) -> None:
        """Cut one parameter."""
        blocks, reason = _cut(self._program, ops, self._slice_count, self._min_block_size)
        self.reasons += [reason] if reason else []
        pieces = []
        used = list(dict.fromkeys(
            used for op in ops for slot, names in op.inputs.items() if slot not in SHARED for used in names
        ))  # fmt: skip
        for block in blocks:
            names = dict(zip(used, used, strict=True)) if len(blocks) == 1 else self._names(name, used, block)
            pieces.append(Piece(block, self._dealt % self._balancer.devices, names))
            self._dealt += 1
        grad = ops[0].inputs["grads"][0]
        self.parameters.append(Parameter(name, grad, ops, pieces, self._balancer.place(grad)))

    def _names(self, param: str, used: list[str], block: Block) -> dict[str, str]:
        """What a block's variables are called, which are made here."""
        vars, names = self._program.vars, {}
        shape = vars[param].shape
        part = block_shape(shape, block)
        for name in used:
            var = vars[name]
            suffix = name.removeprefix(param) if name.startswith(f"{param}_") else ""
            names[name] = own = f"{param}.block{block.number}{suffix}" if suffix else f"{name}.block{block.number}"
            initial = 0.0 if var.persistable else None  # startup cuts what the whole starts from
            extents, first = (part, block.first) if var.shape == shape else (var.shape, 0)
            of = Part(name, var.shape, first)
            self.vars[own] = Var(own, extents, var.dtype, var.persistable, initial=initial, part=of)
        return names


def _cut(program: Program, ops: list[Op], slice_count: int, min_block_size: int) -> tuple[tuple[Block, ...], str]:
    """The blocks of a parameter, and why it is one although it need not be."""
    shape = program.vars[ops[0].inputs["params"][0]].shape
    (blocks,) = slice_variable([shape], slice_count, min_block_size)
    routine, whole = routine_of(ops[0]), (Block(0, 0, blocks[-1].first + blocks[-1].size),)
    assert routine is not None
    if len(blocks) == 1:
        return whole, ""
    name = ops[0].inputs["params"][0]
    if not routine.elementwise:
        return whole, f"{name!r} is not cut: {routine.name} has norms of tensors"
    if ops[0].attrs.get("rounding") == "stochastic":
        return whole, f"{name!r} is not cut: stochastic rounding counts the elements of each tensor"
    return blocks, ""
