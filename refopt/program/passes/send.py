"""Gradients sent in blocks to the ranks that own them, parameters received back: a parameter server in miniature."""

from __future__ import annotations

from collections.abc import Mapping

from refopt.checks.arguments import chosen, whole
from refopt.program.blocks import Block
from refopt.program.model import Op
from refopt.program.ops.updates import MERGED, SHARED, routine_of
from refopt.program.passes.balance import Balancer, sizes_of
from refopt.program.passes.pieces import Dealer, Parameter, Piece
from refopt.program.passes.place import broadcasts, communicated, declined
from refopt.program.passes.result import Result
from refopt.program.program import Program

STRATEGIES = "reduce", "all_reduce"
RECEIVERS = "gradient", "balanced"


def send_to_owners(
    program: Program, devices: int, *, strategy: str = "reduce", slice_count: int | None = None,
    min_block_size: int = 8192, receiver: str = "gradient",
) -> Result:  # fmt: skip
    """Cut gradients into blocks, send each to the rank that owns it, update it there, and receive the parameter back.

    Every rank is a trainer and a server. A gradient is summed as by `reduce` or `all_reduce`, cut on its device by
    ``split_by_ref``, sent, and updated by the servers, to whom blocks are dealt in turn; the blocks of the parameter
    are received, put together by ``concat``, and broadcast from there. ``send_barrier`` stands between sending and
    updating, ``fetch_barrier`` between receiving and putting together. What a server has itself is not sent.

    Reduction, cut and sending of a gradient are on one device by construction: they ask the balancer for the place that
    the gradient has, and do not have it drawn again.

    Only elementwise routines that round to nearest can be cut (numerics, N11); others have one block, as have
    parameters of a single number. Their states are cut at startup, on the server; a scalar becomes one for each block.

    Args:
        program: the step of one device, all updates behind all gradients; it stays as it is.
        devices: how many ranks there are, at least 1.
        strategy: how gradients are summed: ``"reduce"``, or ``"all_reduce"``, after which one device sends.
        slice_count, min_block_size: of `slice_variable`; as many blocks as ranks by default.
        receiver: the device that receives a parameter: that of its ``"gradient"``, or drawn again from the balancer,
            ``"balanced"``, as in Paddle's first version.

    Returns:
        The program of all devices; `refopt.program.passes.on_device` gives the one that a rank binds.

    Source: PR 11221 of Paddle, and its ``DistributeTranspiler``.
    """
    chosen("send_to_owners: strategy", strategy, STRATEGIES)
    chosen("send_to_owners: receiver", receiver, RECEIVERS)
    slice_count = None if slice_count is None else whole("send_to_owners: slice_count", slice_count, 1)
    min_block_size = whole("send_to_owners: min_block_size", min_block_size, 1)
    reason = declined("send_to_owners", program, devices) or _unfit(program)
    if reason:
        return Result(program, False, (reason,))
    sizes = sizes_of(program.vars)
    balancer = Balancer(devices, sizes)
    summed = communicated(program, devices, balancer if strategy == "reduce" else None)
    dealer = Dealer(program, balancer, devices if slice_count is None else slice_count, min_block_size)
    here: list[Op] = []  # updates that stay on all devices
    for name, ops in _by_parameter([op for op in program.main if op.role == "optimize"]).items():
        if sizes[ops[0].inputs["grads"][0]]:
            dealer.deal(name, ops)
        else:
            here += ops
    parameters = dealer.parameters
    changed = program.with_vars([*summed.vars, *dealer.vars.values()])
    received = _received(changed, parameters, balancer, receiver)
    main = [op for op in summed.main if op.role != "optimize"]
    main += _exchanged(parameters, received, here, devices)
    startup = [*program.startup, *(op for p in parameters for op in _states(program, p))]
    return Result(changed.replace(startup=startup, main=main), True, (*summed.reasons, *dealer.reasons))


def _exchanged(parameters: list[Parameter], received: dict[str, int], here: list[Op], devices: int) -> list[Op]:
    """What comes behind the gradients: to the servers, the updates, those that stay here among them, and back."""
    sends, gradients = _exchange(parameters, "grad", {p.name: p.device for p in parameters}, devices)
    back, params = _exchange(parameters, "name", received, devices, to_servers=False)
    return [
        *(op for p in parameters for op in _split(p)),
        *sends, _barrier("send_barrier", gradients, devices), *here,
        *(op for p in parameters for op in _updates(p)),
        *back, _barrier("fetch_barrier", params, devices),
        *(op for p in parameters for op in _concat(p, received[p.name])),
        *broadcasts(received, devices),
    ]  # fmt: skip


def _barrier(kind: str, names: list[str], devices: int) -> Op:
    """A barrier of all devices."""
    return Op(kind, {"x": tuple(names)}, {"out": tuple(names)}, {"ranks": devices}, "communicate")


def _unfit(program: Program) -> str:
    """Why the updates cannot be moved to servers. Empty if they can."""
    begun = ""
    produced = {name for op in program.main if op.type in ("backward", "scatter_add") for name in op.writes}
    known: dict[str, str] = {}  # by variable, the parameter whose update it is of
    for op in program.main:
        if op.role == "optimize":
            begun = op.type
            reason = _unfit_update(op, produced, known)
        else:
            reason = f"{op.type} comes after {begun}; expected all updates behind all gradients" if begun else ""
        if reason:
            return reason
    return ""


def _unfit_update(op: Op, produced: set[str], known: dict[str, str]) -> str:
    """Why an op of the optimizer cannot be moved to a server. Empty if it can; what it uses is known then."""
    if op.type.startswith(MERGED) or any(slot in op.inputs for slot in SHARED):
        return f"{op.type} shares what it needs with others; expected updates of one tensor each"
    if routine_of(op) is None:
        if op.type == "scale" and len(op.reads) == 1 and op.reads[0] in known:
            return ""
        return f"{op.type} of {', '.join(op.reads)}: expected updates, and scale ops that advance their scalars"
    ((name,), (grad,)) = op.inputs["params"], op.inputs["grads"]
    if grad not in produced:
        return f"{op.type} of {name!r}: no backward op makes {grad!r}"
    for used in op.reads:
        if used in known:
            return f"{op.type} of {name!r}: {used!r} is of the update of {known[used]!r}, too"
    known.update(dict.fromkeys(op.reads, name))
    return ""


def _by_parameter(updates: list[Op]) -> dict[str, list[Op]]:
    """The ops of each parameter: its update, and those that advance its scalars."""
    by_param: dict[str, list[Op]] = {}
    of: dict[str, str] = {}
    for op in updates:
        if routine_of(op) is not None:
            (name,) = op.inputs["params"]
            by_param.setdefault(name, []).append(op)
            of.update(dict.fromkeys(op.reads, name))
        else:
            by_param[of[op.reads[0]]].append(op)
    return by_param


def _received(program: Program, parameters: list[Parameter], balancer: Balancer, receiver: str) -> dict[str, int]:
    """By parameter, the device that puts it together."""
    if receiver == "gradient":
        return {p.name: p.device for p in parameters}
    again = Balancer(balancer.devices, sizes_of(program.vars))
    again.take(balancer)
    return {p.name: again.get_appropriate_dev([piece.names[p.name] for piece in p.pieces]) for p in parameters}


def _exchange(
    parameters: list[Parameter], field: str, homes: Mapping[str, int], devices: int, to_servers: bool = True
) -> tuple[list[Op], list[str]]:
    """Messages between servers and the devices that tensors are on, and the names of what is exchanged."""
    ops: list[Op] = []
    names: list[str] = []
    for p in parameters:
        for piece in p.pieces:
            ends = (homes[p.name], piece.server) if to_servers else (piece.server, homes[p.name])
            if ends[0] == ends[1]:
                continue
            name = piece.names[getattr(p, field)]
            both = {"ranks": devices}
            ops.append(Op("send", {"x": (name,)}, {}, both | {"to": ends[1]}, "communicate", device=ends[0]))
            ops.append(Op("recv", {}, {"out": (name,)}, both | {"source": ends[0]}, "communicate", device=ends[1]))
            names.append(name)
    return ops, names


def _split(p: Parameter) -> list[Op]:
    """The cut of the gradient, on its device."""
    if len(p.pieces) == 1:
        return []
    blocks = tuple(piece.names[p.grad] for piece in p.pieces)
    return [Op("split_by_ref", {"x": (p.grad,)}, {"out": blocks}, role="communicate", device=p.device)]


def _concat(p: Parameter, device: int) -> list[Op]:
    """The parameter from its blocks, on the device that has received them."""
    if len(p.pieces) == 1:
        return []
    blocks = tuple(piece.names[p.name] for piece in p.pieces)
    return [Op("concat", {"x": blocks}, {"out": (p.name,)}, role="communicate", device=device)]


def _updates(p: Parameter) -> list[Op]:
    """The ops of the update for each piece, on its server."""

    def own(op: Op, piece: Piece) -> Op:
        return op.with_names(lambda _, names: [piece.names[name] for name in names], device=piece.server)

    return [own(op, piece) for piece in p.pieces for op in p.ops]


def _states(program: Program, p: Parameter) -> list[Op]:
    """Startup ops that give servers their blocks of what lives from step to step; what is not theirs is let go."""
    if len(p.pieces) == 1:
        return []
    splits = []
    lasting = [name for name in p.pieces[0].names if program.vars[name].persistable]
    for server in sorted({piece.server for piece in p.pieces}):
        own = [piece for piece in p.pieces if piece.server == server]
        for name in lasting:
            scalar = program.vars[name].shape != program.vars[p.name].shape
            blocks = tuple(Block(0, 0, 1) if scalar else piece.block for piece in own)
            out, attrs = tuple(piece.names[name] for piece in own), {"blocks": blocks, "keep": name == p.name}
            splits.append(Op("split", {"x": (name,)}, {"out": out}, attrs, "startup", device=server))
    return splits
