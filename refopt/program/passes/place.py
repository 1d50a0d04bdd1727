"""One step on several devices: gradients summed everywhere, or each on the device that updates its parameter."""

from __future__ import annotations

import math
import sys
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from refopt.checks.arguments import RANKS, whole
from refopt.comm.calls import check_rank
from refopt.program.model import Op, Var
from refopt.program.ops.messages import BARRIERS, MESSAGES
from refopt.program.passes import gradients
from refopt.program.passes.balance import Balancer, sizes_of
from refopt.program.passes.cast import without_masters
from refopt.program.passes.dependencies import title
from refopt.program.passes.owners import Declined, along, owned, sent
from refopt.program.passes.result import Result, changed
from refopt.program.program import Program, expect_program
from refopt.program.step import begun_alike

EMPTY = "there are no gradients and no parameters"


def all_reduce_gradients(program: Program, devices: int) -> Result:
    """Sum and average each gradient on every device, and update every parameter everywhere.

    Args:
        program: the step of one device; it is not modified.
        devices: how many there are, at least 1.

    Returns:
        What `refopt.program.step_program` makes for that many ranks. Sparse gradients are gathered, while Paddle
        reduces them to device 0 and broadcasts the sum.

    Source: strategy ``kAllReduce`` of Paddle's ``MultiDevSSAGraphBuilder``.
    """
    reason = declined("all_reduce_gradients", program, devices)
    if reason:
        return Result(program, False, (reason,))
    new = communicated(program, devices, gradients.complete(program))
    return changed(program, new, (), EMPTY)


def reduce_to_owners(program: Program, devices: int) -> Result:
    """Sum and average each gradient on one device, which updates the parameter, and broadcast it from there.

    A `Balancer` assigns gradients to devices, in the order in which they are complete; an update is on the device of
    its gradient. What the model reads is broadcast at the end of the step, device by device and in the order of names,
    so that all ranks make the same calls.

    An empty parameter needs no balancing or sending, and is left to all devices.

    Args:
        program: the step of one device; it is not modified.
        devices: how many there are, at least 1.

    Returns:
        The program of all devices; `on_device` gives the one that a rank binds.

    Source: strategy ``kReduce`` of Paddle's ``MultiDevSSAGraphBuilder``, and ``BCastParamsToDevices``.
    """
    reason = declined("reduce_to_owners", program, devices)
    if reason:
        return Result(program, False, (reason,))
    found = gradients.complete(program)
    owners, alone = placed(program, found, Balancer(devices, sizes_of(program.vars)))
    summed = communicated(program, devices, [each for each in found if each.name not in alone])
    try:
        main = owned(summed, owners, devices)
    except Declined as error:
        return Result(program, False, (str(error),))
    roots = {name: root for name, root, _ in sent(summed, owners)}
    main += broadcasts([(name, root, None) for name, root in broadcast_order(roots)], devices)
    return changed(program, summed.replace(main=main), left(alone), EMPTY)


def declined(where: str, program: Program, devices: int) -> str:
    """Why a program cannot be distributed to devices. Empty if it can."""
    expect_program(where, program)
    whole(f"{where}: devices", devices, 1, RANKS)
    if devices == 1:
        return "there is only one device"
    for op in (*program.main, *program.startup):
        if op.device is not None or "ranks" in op.attrs:
            return f"{op.type} already has devices or ranks; expected the step of one device"
        if "count" in op.attrs:
            return f"{title(op)} updates rows; apply update_rows afterwards"
    return ""


def placed(
    program: Program, found: Sequence[gradients.Complete], balancer: Balancer
) -> tuple[dict[str, int], dict[str, None]]:
    """By parameter, the device of its gradient by a balancer; and the empty gradients, which have none."""
    params, owners, alone = gradients.params_of(program), dict[str, int](), dict[str, None]()
    for each in found:
        if math.prod(program.vars[each.name].shape) == 0:
            alone[each.name] = None
        elif each.name in params:
            owners[params[each.name]] = balancer.place(each.name)
    return owners, alone


def left(alone: Iterable[str]) -> tuple[str, ...]:
    """Why gradients are not summed."""
    return tuple(f"{name!r} has no elements and stays on all devices" for name in alone)


def communicated(program: Program, devices: int, found: Iterable[gradients.Complete]) -> Program:
    """The step of one of several devices: gradients are summed over them once they are complete, and averaged.

    Rows of a sparse gradient are gathered before they are added up. At startup, device 0 broadcasts the initial
    parameters.

    Args:
        program: the step of one device.
        devices: how many there are.
        found: the gradients to sum.
    """
    before, after = defaultdict(list), defaultdict(list)  # type: dict[int, list[Op]], dict[int, list[Op]]
    gathered: dict[str, Var] = {}
    averages: set[int] = set()
    ranks = {"ranks": devices}
    for each in found:
        layer, x = program.main[each.place].layer, [each.name]
        for row in each.rows:
            var, name = program.vars[row], f"{row}@GATHERED"
            gathered[row] = Var(name, var.shape, var.dtype, sparse=True)
            made = program.users[row][1][-1]
            after[made].append(_communicate("all_gather", [row], [name], ranks, layer))
        total = [] if each.rows else [_communicate("all_reduce", x, x, ranks, layer)]
        if each.average is None:
            after[each.place] += [*total, _communicate("scale", x, x, {"scale": 1 / devices}, layer)]
        else:
            before[each.average] += total
            averages.add(each.average)
    main: list[Op] = []
    for i, op in enumerate(program.main):
        if i in averages:
            op = op.replace(attrs={**op.attrs, "scale": _average(op.attrs["scale"], devices)})
        elif op.type == "scatter_add":
            op = op.replace(inputs={"x": [gathered[x].name if x in gathered else x for x in op.inputs["x"]]})
        main += [*before[i], op, *after[i]]
    changed = program.with_vars(gathered.values()).replace(main=main)
    return changed.replace(startup=[*begun_alike(changed, devices), *program.startup])


def _average(scale: float, devices: int) -> float:
    """The factor that also averages over devices: 1 / n becomes 1 / (n * devices), rounded once."""
    count = round(1 / scale) if scale else 0
    return 1 / (count * devices) if count and 1 / count == scale else scale / devices


def broadcasts(calls: Iterable[tuple[str, int, str | None]], devices: int, axis: str | None = None) -> list[Op]:
    """Broadcasts at the end of a step, of names from roots, with their layers."""
    return [
        _communicate("broadcast", [name], [name], {**along(devices, axis), "root": root}, layer)
        for name, root, layer in calls
    ]


def broadcast_order(owners: Mapping[str, int]) -> list[tuple[str, int]]:
    """Names and devices, device by device, in the order of names, whatever the order of ``owners``.

    Paddle iterates over an unordered set, so ranks may disagree.
    """
    return sorted(owners.items(), key=lambda item: (item[1], item[0]))


def owners(program: Program) -> dict[str, int]:
    """By name of a parameter, the device that it is broadcast from, in the order of the calls."""
    expect_program("owners", program)
    calls = (op for op in program.main if op.type == "broadcast")
    return {name: op.attrs["root"] for op in calls for name in op.inputs["x"]}


def on_device(program: Program, device: int) -> Program:
    """The program that one rank binds: the ops of its device and those of all, and the variables that they use.

    A barrier keeps only the rank's own messages. What only other devices change is freed at the end of startup;
    parameters that no op uses are kept.

    Args:
        program: a program of all devices; it is not modified.
        device: the rank.

    Raises:
        ValueError, TypeError: it is not one of the ranks that the ops are for.
    """
    expect_program("on_device", program)
    ranks = (op.attrs["ranks"] for op in (*program.startup, *program.main) if "ranks" in op.attrs)
    check_rank("on_device: device", device, max(ranks, default=sys.maxsize))
    startup = tuple(op for op in program.startup if op.device in (None, device))
    main = _part_of(program, device)
    vars = program.vars
    used = {name for op in (*startup, *main) for name in (*op.reads, *op.writes)}
    for name in reversed(list(vars)):  # a variable precedes those that start from it
        if name in used and isinstance(vars[name].initial, str):
            used.add(str(vars[name].initial))
    everywhere = {name for op in (*program.startup, *program.main) for name in (*op.reads, *op.writes)}
    idle = {name for name, var in vars.items() if var.initial is None and var.persistable and name not in everywhere}
    part = Program({name: var for name, var in vars.items() if name in used or name in idle}, startup, main)
    elsewhere = {name for op in program.main if op.device not in (None, device) for name in op.writes}
    old = elsewhere.intersection(used).difference(*(op.writes for op in main))
    return without_masters(part, [name for name in part.vars if name in old and part.vars[name].persistable])


def _part_of(program: Program, device: int) -> tuple[Op, ...]:
    """The ops of a step that a device takes part in."""
    main: list[Op] = []
    sent: list[str] = []
    received: list[str] = []
    for op in (op for op in program.main if op.device in (None, device)):
        if op.type in MESSAGES:
            sent += op.reads
            received += op.writes
        if op.type in BARRIERS:
            op = op.replace(inputs={"x": sent}, outputs={"out": received})
            sent, received = [], []
        main.append(op)
    return tuple(main)


def _communicate(
    kind: str, x: Sequence[str], out: Sequence[str], attrs: Mapping[str, Any], layer: str | None = None
) -> Op:
    return Op(kind, {"x": tuple(x)}, {"out": tuple(out)}, attrs, "communicate", layer)
