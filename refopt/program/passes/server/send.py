"""A parameter server in miniature: gradients are sent in blocks to the ranks that own them, parameters come back."""

from __future__ import annotations

from collections.abc import Mapping

from refopt.checks.arguments import chosen, whole
from refopt.program.model import Op
from refopt.program.ops.offload import COPIES
from refopt.program.ops.updates import MERGED, SHARED, is_flat, of_tensor, routine_of
from refopt.program.passes.balance import Balancer, sizes_of
from refopt.program.passes.dependencies import title
from refopt.program.passes.gradients import complete, params_of
from refopt.program.passes.owners import Declined, owned, part_of
from refopt.program.passes.place import communicated, declined, left, placed
from refopt.program.passes.result import Result
from refopt.program.passes.server.exchange import exchanged, states
from refopt.program.passes.server.pieces import Dealer, Parameter
from refopt.program.program import Program

STRATEGIES = "reduce", "all_reduce"
RECEIVERS = "gradient", "balanced"


def send_to_owners(
    program: Program, devices: int, *, strategy: str = "reduce", slice_count: int | None = None,
    min_block_size: int = 8192, receiver: str = "gradient",
) -> Result:
    """Cut gradients into blocks, send each to the rank that owns it, update it there, and receive the parameter back.

    Every rank is a trainer and a server. A gradient is summed by `reduce` or `all_reduce`, cut on its device by
    ``split_by_ref``, sent, and used by the servers, to which blocks are assigned in turn; the blocks of the parameter
    are received, joined by ``concat``, and broadcast from there. ``send_barrier`` separates sending and updating,
    ``fetch_barrier`` receiving and joining. A server's own blocks are not sent.

    A gradient is reduced, cut and sent on one device by construction: these ops ask the balancer for the gradient's
    place, and do not choose it again.

    Only elementwise routines that round to nearest can be cut (numerics, N11); others have one block, like parameters
    of a single number. States are cut at startup, on the server; a scalar is copied for each block.

    Args:
        program: the step of one device, with all updates after all gradients; it is not modified.
        devices: how many ranks there are, at least 1.
        strategy: how gradients are summed: ``"reduce"``, or ``"all_reduce"``, after which one device sends.
        slice_count, min_block_size: as in `slice_variable`; as many blocks as ranks by default.
        receiver: the device that receives a parameter: that of its ``"gradient"``, or, with ``"balanced"``, a new
            choice of the balancer, as in Paddle's first version.

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
    program = program.replace(main=[each for op in program.main for each in _each(op)])
    sizes = sizes_of(program.vars)
    balancer = Balancer(devices, sizes)
    found = complete(program)
    owners, alone = placed(program, found, balancer if strategy == "reduce" else Balancer(devices, sizes))
    summed = communicated(program, devices, [each for each in found if each.name not in alone])
    main, moved, cast = _moved(summed)
    if strategy == "reduce":
        try:
            main = owned(summed.replace(main=main), owners, devices, params_of(summed))
        except Declined as error:
            return Result(program, False, (str(error),))
    dealer = Dealer(program, balancer, devices if slice_count is None else slice_count, min_block_size)
    here: list[Op] = []  # updates that stay on all devices
    for name, ops in _by_parameter(moved).items():
        if sizes[ops[0].inputs["grads"][0]]:
            dealer.deal(name, ops)
        else:
            here += ops
    parameters = dealer.parameters
    changed = summed.with_vars(dealer.vars.values())
    received = _received(changed, parameters, balancer, receiver)
    main += [*exchanged(parameters, received, here, devices), *cast]
    startup = [*summed.startup, *(op for p in parameters for op in states(program, p))]
    return Result(changed.replace(startup=startup, main=main), True, (*left(alone), *dealer.reasons))


def _each(op: Op) -> list[Op]:
    """An update of several parameters as one update each."""
    routine = routine_of(op)
    if routine is None or not op.type.startswith(MERGED):
        return [op]
    count = len(op.inputs["params"])
    return [part_of(op, [k], type=routine.name).replace(attrs=of_tensor(op, routine, k)) for k in range(count)]


def _moved(program: Program) -> tuple[list[Op], list[Op], list[Op]]:
    """The ops of all ranks; those of servers, updates and ops that advance scalars; and final casts of parameters."""
    known: set[str] = set()
    here, moved, cast = [], [], []  # type: list[Op], list[Op], list[Op]
    for op in program.main:
        if routine_of(op) is not None:
            known.update(op.reads)
            moved.append(op)
        elif op.role == "optimize" and not known.isdisjoint(op.writes):
            moved.append(op)
        else:
            (cast if op.type == "cast" and op.role == "optimize" else here).append(op)
    return here, moved, cast


def _unfit(program: Program) -> str:
    """Why the updates cannot be moved to servers. Empty if they can."""
    if away := next((op for op in program.main if op.type in COPIES), None):
        return f"{title(away)}: its states are in host memory; apply offload afterwards"
    begun = ""
    produced = {each.name for each in complete(program)}
    known: dict[str, str] = {}  # by variable, the parameter whose update uses it
    for op in program.main:
        if routine_of(op) is not None:
            begun = op.type
            reason = next((why for each in _each(op) if (why := _unfit_update(program, each, produced, known))), "")
        elif not begun:
            continue
        elif op.role != "optimize":
            reason = f"{op.type} comes after {begun}; expected all updates after all gradients"
        else:
            reason = "" if _beside(op, known) else f"{title(op)}: expected updates, scale ops of scalars, or casts"
        if reason:
            return reason
    return ""


def _beside(op: Op, known: Mapping[str, str]) -> bool:
    """Whether an optimizer op other than an update can be moved with updates: it advances a scalar of one, or casts
    what it has changed."""
    if op.type == "scale":
        return len(op.reads) == 1 and op.reads[0] in known
    return op.type == "cast" and known.keys().isdisjoint(op.writes)


def _unfit_update(program: Program, op: Op, produced: set[str], known: dict[str, str]) -> str:
    """Why an update cannot be moved to a server. Empty if it can; its variables are then added to ``known``."""
    if is_flat(program, op):
        return f"{title(op)} updates a buffer of several parameters; apply fuse_optimizer afterwards"
    ((name,), (grad,)) = op.inputs["params"], op.inputs["grads"]
    if grad not in produced:
        return f"{op.type} of {name!r}: no backward op makes {grad!r}"
    own = {used for slot, names in op.inputs.items() if slot not in SHARED for used in names}
    for used in sorted(own):
        if used in known:
            return f"{op.type} of {name!r}: the update of {known[used]!r} uses {used!r}, too"
    known.update(dict.fromkeys(own, name))
    return ""


def _by_parameter(updates: list[Op]) -> dict[str, list[Op]]:
    """The ops of each parameter: its update, and those that advance its scalars."""
    by_param: dict[str, list[Op]] = {}
    of: dict[str, str] = {}
    for op in updates:
        if routine_of(op) is not None:
            (name,) = op.inputs["params"]
            by_param.setdefault(name, []).append(op)
            of.update((used, name) for slot, names in op.inputs.items() if slot not in SHARED for used in names)
        else:
            by_param[of[op.reads[0]]].append(op)
    return by_param


def _received(program: Program, parameters: list[Parameter], balancer: Balancer, receiver: str) -> dict[str, int]:
    """By parameter, the device that joins its blocks."""
    if receiver == "gradient":
        return {p.name: p.device for p in parameters}
    again = Balancer(balancer.devices, sizes_of(program.vars))
    again.take(balancer)
    return {p.name: again.get_appropriate_dev([piece.names[p.name] for piece in p.pieces]) for p in parameters}
