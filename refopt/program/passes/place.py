"""One step on several devices: gradients summed everywhere, or each on the device that updates its parameter."""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from refopt.checks.arguments import RANKS, whole
from refopt.comm.calls import check_rank
from refopt.program.model import Op, Var
from refopt.program.ops.messages import BARRIERS, MESSAGES
from refopt.program.ops.updates import SHARED
from refopt.program.passes.balance import Balancer, sizes_of
from refopt.program.passes.result import Result
from refopt.program.program import Program, expect_program


def all_reduce_gradients(program: Program, devices: int) -> Result:
    """Sum and average each gradient on every device, and update every parameter everywhere.

    Args:
        program: the step of one device; it stays as it is.
        devices: how many there are, at least 1.

    Returns:
        What `refopt.program.step_program` makes for so many ranks. Sparse gradients are gathered, where Paddle
        reduces them to device 0 and broadcasts the sum.

    Source: strategy ``kAllReduce`` of Paddle's ``MultiDevSSAGraphBuilder``.
    """
    reason = declined("all_reduce_gradients", program, devices)
    if reason:
        return Result(program, False, (reason,))
    exchanged = communicated(program, devices, None)
    return Result(program.with_vars(exchanged.vars).replace(main=exchanged.main), True)


def reduce_to_owners(program: Program, devices: int) -> Result:
    """Sum and average each gradient on one device, which updates the parameter, and broadcast it from there.

    Gradients are given to devices by a `Balancer` as the backward ops come, each op of an optimizer goes where the
    first of its inputs is that has a place, and what it changes is placed there, too. The parameters are broadcast at
    the end of the step, device by device and in the order of their names, so that all ranks make the calls alike.

    A parameter without elements has nothing to balance or to send, and is left to all.

    Args:
        program: the step of one device; it stays as it is.
        devices: how many there are, at least 1.

    Returns:
        The program of all devices; `on_device` gives the one that a rank binds.

    Source: strategy ``kReduce`` of Paddle's ``MultiDevSSAGraphBuilder``, and ``BCastParamsToDevices``.
    """
    reason = declined("reduce_to_owners", program, devices)
    if reason:
        return Result(program, False, (reason,))
    balancer = Balancer(devices, sizes_of(program.vars))
    exchanged = communicated(program, devices, balancer)
    main: list[Op] = []
    changed: dict[str, int] = {}
    for op in exchanged.main:
        if op.role == "optimize":
            device, reason = _device(op, balancer)
            if reason:
                return Result(program, False, (reason,))
            if device is not None:
                op = op.replace(device=device)
                for slot, names in {**op.inputs, **op.outputs}.items():
                    for name in names if slot not in SHARED else ():
                        balancer.record(name, device)
                changed.update(dict.fromkeys(op.outputs.get("params", ()), device))
        main.append(op)
    main += broadcasts(changed, devices)
    return Result(program.with_vars(exchanged.vars).replace(main=main), True, tuple(exchanged.reasons))


def declined(where: str, program: Program, devices: int) -> str:
    """Why a program cannot be given to devices. Empty if it can."""
    expect_program(where, program)
    whole(f"{where}: devices", devices, 1, RANKS)
    if devices == 1:
        return "one device has nobody to share with"
    for op in (*program.startup, *program.main):
        if op.device is not None or "ranks" in op.attrs:
            return f"{op.type} has devices or ranks already; expected the step of one device"
    if program.views:
        return f"{next(iter(program.views))!r} is a buffer of tensors that may go to several devices; place them first"
    return ""


def communicated(program: Program, devices: int, balancer: Balancer | None) -> Communicated:
    """The ops of a step, with a sum and an average after each gradient: on all devices, or where a balancer says."""
    step = Communicated(program, devices, balancer)
    for op in program.main:
        if op.type == "scatter_add":
            step.add_rows(op)
            continue
        step.main.append(op)
        for grad in op.outputs.get("grads", ()) if op.type == "backward" else ():
            step.sum(op, grad)
    return step


class Communicated:
    """Ops of a step with the gradients made one, what they need, and why some were left."""

    def __init__(self, program: Program, devices: int, balancer: Balancer | None) -> None:
        self.main: list[Op] = []
        self.vars: list[Var] = []
        self.reasons: list[str] = []
        self._program, self._devices, self._balancer = program, devices, balancer
        self._gathered: dict[str, str] = {}
        self._alone: set[str] = set()

    def sum(self, op: Op, grad: str) -> None:
        """Sum a gradient that a ``backward`` op has made, and average it; or gather its rows."""
        var, balancer, ranks = self._program.vars[grad], self._balancer, {"ranks": self._devices}
        if balancer is not None and math.prod(var.shape) == 0:
            self.reasons.append(f"{grad!r} has no elements and stays on all devices")
            self._alone.add(grad)
        elif var.sparse:
            self._gathered[grad] = name = f"{grad}@GATHERED"
            self.vars.append(Var(name, var.shape, var.dtype, sparse=True))
            self.main.append(_communicate("all_gather", [grad], [name], ranks, op.layer))
        else:
            device = None if balancer is None else balancer.place(grad)
            kind, root = ("all_reduce", {}) if device is None else ("reduce", {"root": device})
            self.main.append(_communicate(kind, [grad], [grad], ranks | root, op.layer))
            self.main.append(_scale(op, grad, self._devices, device))

    def add_rows(self, op: Op) -> None:
        """Add up the rows of all devices, and average the sum."""
        names = tuple(self._gathered.get(name, name) for name in op.inputs["x"])
        device, balancer, first = None, self._balancer, op.inputs["x"][0]
        if balancer is not None and first not in self._alone:
            device = balancer.place(first)
            for name in (*op.reads, *op.writes):
                balancer.record(name, device)
        self.main.append(op.replace(inputs={"x": names}, device=device))
        if not self._gathered.keys().isdisjoint(op.inputs["x"]):
            self.main += [_scale(op, name, self._devices, device) for name in op.outputs["out"]]


def broadcasts(owners: Mapping[str, int], devices: int) -> list[Op]:
    """A broadcast of each parameter from its own device."""
    return [
        _communicate("broadcast", [name], [name], {"ranks": devices, "root": root})
        for name, root in broadcast_order(owners)
    ]


def broadcast_order(owners: Mapping[str, int]) -> list[tuple[str, int]]:
    """Names and devices, device by device, in the order of the names: the same however they come.

    Paddle goes through an unordered set, so that ranks need not agree.
    """
    return sorted(owners.items(), key=lambda item: (item[1], item[0]))


def owners(program: Program) -> dict[str, int]:
    """By name of a parameter, the device that it is broadcast from, in the order of the calls."""
    expect_program("owners", program)
    calls = (op for op in program.main if op.type == "broadcast")
    return {name: op.attrs["root"] for op in calls for name in op.inputs["x"]}


def on_device(program: Program, device: int) -> Program:
    """The program that one rank binds: the ops of its device and those of all, and the variables that they use.

    A barrier keeps what the rank itself sends and receives.

    Args:
        program: a program of all devices; it stays as it is.
        device: the rank.

    Raises:
        ValueError, TypeError: if it is none of the ranks that the ops are for.
    """
    expect_program("on_device", program)
    ranks = (op.attrs["ranks"] for op in (*program.startup, *program.main) if "ranks" in op.attrs)
    check_rank("on_device: device", device, max(ranks, default=sys.maxsize))
    startup = tuple(op for op in program.startup if op.device in (None, device))
    main = _part_of(program, device)
    vars = program.vars
    used = {name for op in (*startup, *main) for name in (*op.reads, *op.writes)}
    for name in reversed(list(vars)):  # which holds a variable before those that start from it
        if name in used and isinstance(vars[name].initial, str):
            used.add(str(vars[name].initial))
    return Program({name: var for name, var in vars.items() if name in used}, startup, main)


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


def _scale(op: Op, name: str, devices: int, device: int | None) -> Op:
    return _communicate("scale", [name], [name], {"scale": 1 / devices}, op.layer, device)


def _communicate(
    kind: str, x: Sequence[str], out: Sequence[str], attrs: Mapping[str, Any], layer: str | None = None,
    device: int | None = None,
) -> Op:  # fmt: skip
    return Op(kind, {"x": tuple(x)}, {"out": tuple(out)}, attrs, "communicate", layer, device)


def _device(op: Op, balancer: Balancer) -> tuple[int | None, str]:
    """The device of the first input that has a place, and why it cannot be there. ``None`` for all devices."""
    names = [name for slot, names in op.inputs.items() if slot not in SHARED for name in names]
    placed = [(name, balancer.places[name]) for name in names if name in balancer.places]
    for name, device in placed[1:]:
        if device != placed[0][1]:
            return None, f"{op.type}: {placed[0][0]!r} is on device {placed[0][1]}, and {name!r} on device {device}"
    return (placed[0][1], "") if placed else (None, "")
