"""The ops that send gradients to servers and parameters back, and the updates in between."""

from __future__ import annotations

from refopt.program.blocks import state_block
from refopt.program.model import Op
from refopt.program.passes.owners import of_nothing
from refopt.program.passes.place import broadcast_order, broadcasts
from refopt.program.passes.server.pieces import Parameter, Piece
from refopt.program.program import Program


def exchanged(parameters: list[Parameter], received: dict[str, int], here: list[Op], devices: int) -> list[Op]:
    """The ops after the gradients: sending to servers, updates, including those that are not moved, and the way back.

    Args:
        parameters: those that servers update.
        received: by parameter, the device that receives it.
        here: the updates that are not moved.
        devices: how many there are.
    """
    pieces = [(p, piece) for p in parameters for piece in p.pieces]
    cut = [p for p in parameters if len(p.pieces) > 1]
    updates = [_of_piece(op, piece) for p, piece in pieces for op in p.ops]
    there = [(piece.names[p.grad], p.device, piece.server) for p, piece in pieces]
    back = [(piece.names[p.name], piece.server, received[p.name]) for p, piece in pieces]
    return [
        *(_communicate("split_by_ref", (p.grad,), _blocks(p, p.grad), p.device) for p in cut),
        *_exchange("send_barrier", there, devices), *here,
        *updates, *of_nothing(updates, devices),
        *_exchange("fetch_barrier", back, devices),
        *(_communicate("concat", _blocks(p, p.name), (p.name,), received[p.name]) for p in cut),
        *broadcasts([(name, root, None) for name, root in broadcast_order(received)], devices),
    ]


def _blocks(p: Parameter, name: str) -> tuple[str, ...]:
    """The blocks that a variable is cut into."""
    return tuple(piece.names[name] for piece in p.pieces)


def _of_piece(op: Op, piece: Piece) -> Op:
    """An op of an update, for a piece on its server."""
    changes = {"device": piece.server, "attrs": {**op.attrs, **piece.attrs}}
    return op.with_names(lambda _, names: [piece.names.get(name, name) for name in names], **changes)


def _communicate(kind: str, x: tuple[str, ...], out: tuple[str, ...], device: int | None = None, **attrs: int) -> Op:
    slots = {"x": x} if x else {}, {"out": out} if out else {}
    return Op(kind, *slots, attrs, "communicate", device=device)


def _exchange(barrier: str, messages: list[tuple[str, int, int]], devices: int) -> list[Op]:
    """Messages of variables between different devices, and the barrier at which they have arrived."""
    ops, names = [], []
    for name, source, to in messages:
        if source != to:
            ops.append(_communicate("send", (name,), (), source, ranks=devices, to=to))
            ops.append(_communicate("recv", (), (name,), to, ranks=devices, source=source))
            names.append(name)
    return [*ops, Op(barrier, {"x": tuple(names)}, {"out": tuple(names)}, {"ranks": devices}, "communicate")]


def states(program: Program, p: Parameter) -> list[Op]:
    """Startup ops that give servers their blocks of persistent variables, and free the rest."""
    if len(p.pieces) == 1:
        return []
    splits = []
    lasting = [name for name in p.pieces[0].names if program.vars[name].persistable]
    for server in sorted({piece.server for piece in p.pieces}):
        own = [piece for piece in p.pieces if piece.server == server]
        for name in lasting:
            shapes = program.vars[name].shape, program.vars[p.name].shape
            blocks = tuple(state_block(*shapes, piece.block) for piece in own)
            out, attrs = tuple(piece.names[name] for piece in own), {"blocks": blocks, "keep": name == p.name}
            splits.append(Op("split", {"x": (name,)}, {"out": out}, attrs, "startup", device=server))
    return splits
