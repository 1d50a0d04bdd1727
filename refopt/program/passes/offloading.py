"""States of an optimizer in the memory of the host: copied to the device for an update, and back after it."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from refopt.catalog import Routine
from refopt.checks.arguments import flag, whole
from refopt.program.model import Op, Var
from refopt.program.ops.offload import layout
from refopt.program.ops.updates import SHARED, is_flat, routine_of
from refopt.program.passes import dependencies
from refopt.program.passes.result import Result
from refopt.program.program import Program, expect_program


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
    users = Counter(name for op in program.main for name in program.cells({*op.reads, *op.writes}))
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
            sizes.append(layout(vars)[1])
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
    sizes = [layout([program.vars[op.inputs[slot][k]] for slot in slots])[1] for k in range(count)]
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
