"""States of an optimizer in the memory of the host: copied to the device for an update, and back after it."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from refopt import cpu
from refopt.catalog import Routine
from refopt.checks import c_strides
from refopt.checks.arguments import flag, whole
from refopt.checks.dtypes import ITEM_SIZES, numpy_dtype
from refopt.program import Op, Program, Var
from refopt.program.kinds import SHARED, is_flat, routine_of
from refopt.program.passes import Result, dependencies
from refopt.program.placement.kinds import COPIES, check_slots
from refopt.program.program import expect_program

if TYPE_CHECKING:
    from refopt.program import Bound
    from refopt.program.backends import Gpu

ALIGN = 256  # bytes, where a tensor begins in its block

Ends = tuple[Any, Any]  # source and target of a copy


def offload(program: Program, *, nbytes: int | None = None, ring: int = 3, masters: bool = False) -> Result:
    """Keep the states of updates in the memory of the host.

    Before each update comes a ``copy_in`` of what it changes beside parameters and scalars, and after it a
    ``copy_out``, each in one piece. On the device the copies lie in a ring of buffers, which updates take in turn:
    `placement.on_streams` has a copy in wait until what lay in its buffer is out, and for nothing else, so that
    the states of the next update come while this one works, and those of the last one go.

    With s(b) the bytes of the states of update b, each tensor rounded up to 256, the host has the sum of all s(b), as
    page-locked memory, and the device, in its place, the sum over the r below ``ring`` of
    ``max(s(b) for b % ring == r)``. No tensor is cut, so the largest decide.

    Args:
        program: of one device, its updates fused as they are to be copied; it stays as it is.
        nbytes: cut a merged update into several, in order, so that none has more bytes of states than this, unless by
            a single tensor. This changes no bit, since a merged update does one tensor at a time.
        ring: how many buffers, at least 1. With one, the copies and the update of one after the other; with three, one
            is copied in, one updated and one copied out at a time.
        masters: whether masters are kept there, too.

    Returns:
        The program; bound by `refopt.program.placement.bind_schedule` it has the memory described here, and by
        `refopt.program.bind` the same bits. Updates that are flat, or whose states something else uses, too, are left.

    Raises:
        ValueError: naming the argument.
    """
    expect_program("offload", program)
    ring = whole("offload: ring", ring, 1)
    nbytes = None if nbytes is None else whole("offload: nbytes", nbytes, 1)
    flag("offload: masters", masters)
    if len({op.device for op in program.main} - {None}) > 1:
        return Result(program, False, ("ops are of several devices; expected those of one",))
    users = Counter(name for op in program.main for name in dependencies.cells(program, {*op.reads, *op.writes}))
    main: list[Op] = []
    near: list[Var] = []
    reasons: list[str] = []
    sizes: list[int] = []
    for op in program.main:
        routine = routine_of(op)
        slots, reason = ((), "") if routine is None else _slots(program, op, routine, masters, users)
        reasons += [f"{dependencies.title(op)}: {reason}"] if reason else []
        for piece in _pieces(program, op, routine, slots, nbytes) if slots and routine else ():
            vars = [program.vars[name] for slot in slots for name in piece.inputs[slot]]
            main += _copied(piece, slots, [var.name for var in vars], f"@RING@{len(sizes) % ring}")
            near += [Var(f"{var.name}@DEVICE", var.shape, var.dtype) for var in vars]
            sizes.append(_layout(vars)[1])
        main += [] if slots else [op]
    if not sizes:
        return Result(program, False, (*reasons, "no update has states to keep elsewhere"))
    near += [Var(f"@RING@{r}", (max(sizes[r::ring]),), "uint8") for r in range(min(ring, len(sizes)))]
    return Result(program.with_vars(near).replace(main=main), True, tuple(reasons))


def _slots(
    program: Program, op: Op, routine: Routine, masters: bool, users: Mapping[str, int]
) -> tuple[tuple[str, ...], str]:
    """The slots of an update that are kept elsewhere, and why there are none."""
    wanted = (*routine.states, *(["master_params"] if masters else []))
    slots = tuple(slot for slot in wanted if slot in op.inputs)
    names = [name for slot in slots for name in op.inputs[slot]]
    if not any(math.prod(program.vars[name].shape) for name in names):
        return (), "it has no states"
    if is_flat(program, op):
        return (), "it is flat, and its states are in buffers that startup makes; the merged form has them apart"
    created = {name for op in program.startup for name in {*op.writes} - {*op.reads}}
    for name in names:
        if name in created:
            return (), f"{name!r} is made at startup, on the device"
        if name in program.buffer_of or name in program.parts or not program.vars[name].persistable:
            return (), f"{name!r} is no memory of its own that lives from step to step"
        if users[name] > 1:
            return (), f"{name!r} is used by other ops, too"
    return slots, ""


def _pieces(program: Program, op: Op, routine: Routine, slots: Sequence[str], nbytes: int | None) -> Iterator[Op]:
    """An update, or its parts: runs of its tensors."""
    count, start, length = len(op.inputs["params"]), 0, 0
    own = {hyper.name for hyper in routine.hypers if hyper.per_tensor}
    sizes = [_layout([program.vars[op.inputs[slot][k]] for slot in slots])[1] for k in range(count)]
    for stop in range(1, count + 1):
        length += sizes[stop - 1]
        if stop < count and (nbytes is None or length + sizes[stop] <= nbytes):
            continue
        sides = [
            {slot: names if slot in SHARED else names[start:stop] for slot, names in side.items()}
            for side in (op.inputs, op.outputs)
        ]
        attrs = {
            key: value[start:stop] if key in own and isinstance(value, list | tuple) else value
            for key, value in op.attrs.items()
        }
        yield op.replace(inputs=sides[0], outputs=sides[1], attrs=attrs)
        start, length = stop, 0


def _copied(op: Op, slots: Sequence[str], names: Sequence[str], ring: str) -> list[Op]:
    """Copy in, update, copy out."""
    near = [f"{name}@DEVICE" for name in names]
    sides = [
        {slot: tuple(f"{x}@DEVICE" for x in own) if slot in slots else own for slot, own in side.items()}
        for side in (op.inputs, op.outputs)
    ]
    return [
        op.replace(type="copy_in", inputs={"x": names}, outputs={"out": near, "ring": [ring]}, attrs={}),
        op.replace(inputs=sides[0], outputs=sides[1]),
        op.replace(type="copy_out", inputs={"x": near, "ring": [ring]}, outputs={"out": names}, attrs={}),
    ]


def _layout(vars: Sequence[Var]) -> tuple[list[int], int]:
    """Where tensors begin in a block, in bytes, and the bytes of the block."""
    firsts, end = [], 0
    for var in vars:
        firsts.append(end)
        end += -(-math.prod(var.shape) * ITEM_SIZES[var.dtype] // ALIGN) * ALIGN
    return firsts, end


class Hosted(NamedTuple):
    """What a bound schedule needs for states in the memory of the host.

    Attributes:
        arrays: by name, arrays in memory of the host, and on the device in rings.
        blocks: by place of a copy in ``main``, the memory that it copies.
    """

    arrays: dict[str, Any]
    blocks: dict[int, Ends]


def arrays_of(program: Program, arrays: Mapping[str, Any], backend: Gpu) -> Hosted:
    """Make the memory of host and rings, the states being what the caller has brought, or what they start from.

    Args:
        program: the program.
        arrays: what the caller has brought.
        backend: the machine, and the caller's stream.

    Raises:
        ValueError: naming the array that is missing or other than it must be.
    """
    offloaded, machine = Hosted({}, {}), backend.machine
    back: dict[tuple[str, ...], Ends] = {}
    for i, op in enumerate(program.main):
        if op.type == "copy_in":
            (ring,), names = op.outputs["ring"], op.inputs["x"]
            if ring not in offloaded.arrays:
                offloaded.arrays[ring] = machine.empty(program.vars[ring].shape, np.uint8)
            firsts, size = _layout([program.vars[name] for name in names])
            image = np.zeros(size, np.uint8)
            for name, first in zip(names, firsts, strict=True):
                var = program.vars[name]
                np.ndarray(var.shape, numpy_dtype(var.dtype), image, first)[...] = _value(
                    program, arrays, backend, name
                )
            host, near = machine.pinned(image), machine.view(offloaded.arrays[ring], 0, (size,), (1,))
            for block, members in ((host, names), (near, op.outputs["out"])):
                for name, first in zip(members, firsts, strict=True):
                    offloaded.arrays[name] = _view(machine, block, first, program.vars[name])
            offloaded.blocks[i], back[names] = (host, near), (near, host)
        elif op.type == "copy_out" and op.outputs["out"] in back:
            offloaded.blocks[i] = back[op.outputs["out"]]
    return offloaded


def _view(machine: Any, block: Any, first: int, var: Var) -> Any:
    kind = numpy_dtype(var.dtype)
    if not math.prod(var.shape):
        return machine.empty(var.shape, kind)
    return machine.view(block, first, var.shape, c_strides(var.shape, kind.itemsize), kind)


def _value(program: Program, arrays: Mapping[str, Any], backend: Gpu, name: str) -> np.ndarray:
    """What a variable holds before the first step."""
    var = program.vars[name]
    if name in arrays:
        described = backend.describe(arrays[name], f"bind_schedule: arrays: {name!r}")
        if (described.dtype, described.shape) != (var.dtype, var.shape):
            expected, got = f"{var.dtype} of shape {var.shape}", f"{described.dtype} of shape {described.shape}"
            raise ValueError(f"bind_schedule: arrays: {name!r}: expected {expected}, got {got}")
        return backend.read(arrays[name])
    if var.initial is None:
        raise ValueError(f"bind_schedule: arrays: {name!r}: expected an array, since it starts from none, got none")
    value = np.full(var.shape, 0.0 if isinstance(var.initial, str) else var.initial, numpy_dtype(var.dtype))
    if isinstance(var.initial, str):
        cpu.merged_cast([_value(program, arrays, backend, var.initial)], [value])
    return value


def _check(program: Program, op: Op) -> None:
    """A copy, in or out."""
    ring_in = op.type == "copy_out"
    check_slots(op, ["x", "ring"] if ring_in else ["x"], ["out"] if ring_in else ["out", "ring"])
    x, out = ([program.vars[name] for name in names] for names in (op.inputs["x"], op.outputs["out"]))
    if len(x) != len(out):
        raise ValueError(f"out: expected {len(x)} variables, as x has, got {len(out)}")
    for k, (one, other) in enumerate(zip(x, out, strict=True)):
        if (one.shape, one.dtype, one.sparse) != (other.shape, other.dtype, other.sparse):
            raise ValueError(f"out[{k}]: expected {one}, as x has, got {other}")
    names = (op.inputs if ring_in else op.outputs)["ring"]
    need = _layout(x)[1]
    if len(names) != 1 or program.vars[names[0]].dtype != "uint8" or math.prod(program.vars[names[0]].shape) < need:
        raise ValueError(f"ring: expected one variable of {need} bytes or more, got {', '.join(names)}")


def _run(bound: Bound, op: Op) -> Callable[[], Any]:
    """By `refopt.program.bind`, where all variables are arrays as any others."""
    x, out = ([bound.arrays[name] for name in names] for names in (op.inputs["x"], op.outputs["out"]))
    return bound.backend.cast(x, out)


CHECKS: dict[str, Callable[[Program, Op], None]] = dict.fromkeys(COPIES, _check)
RUNNERS: dict[str, Callable[[Bound, Op], Callable[[], Any]]] = dict.fromkeys(COPIES, _run)
