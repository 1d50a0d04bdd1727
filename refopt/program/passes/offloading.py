"""Keeping optimizer states in host memory, with copies to the device before an update and back after it."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from refopt.checks.arguments import flag, whole
from refopt.program.model import Op, Var
from refopt.program.ops.offload import layout
from refopt.program.ops.updates import is_flat, routine_of
from refopt.program.passes import dependencies
from refopt.program.passes.owners import part_of
from refopt.program.passes.result import Result
from refopt.program.program import Program, expect_program

RING = "@RING@"


def offload(program: Program, *, nbytes: int | None = None, ring: int = 3, masters: bool = False) -> Result:
    """Keep the states of updates in host memory.

    Each update is preceded by a ``copy_in`` of what it changes apart from parameters and scalars, and followed by a
    ``copy_out``, each in one piece. On the device the copies are in a ring of buffers, which updates use in turn:
    `placement.on_streams` makes a copy in wait only until the previous contents of its buffer are copied out, so the
    states of the next update arrive, and those of the last one leave, while this update works.

    With s(b) the bytes of the states of update b, each tensor rounded up to 256, the host has the sum of all s(b), as
    page-locked memory, and the device only the sum over the r below ``ring`` of ``max(s(b) for b % ring == r)``. No
    tensor is cut, so the largest ones matter.

    Args:
        program: of one device, with its updates fused as they will be copied.
        nbytes: split a merged update into several, in order, so that none has more bytes of states than this, unless a
            single tensor has. This changes no bit, since a merged update treats tensors independently.
        ring: how many buffers, at least 1. With one, copies and updates are sequential; with three, one update is
            copied in, one computed and one copied out at a time.
        masters: whether masters are kept there, too.

    Returns:
        The program; bound by `refopt.program.placement.bind_schedule` it uses memory as described here; bound by
        `refopt.program.bind` it gives the same bits. Flat updates, and updates whose states other ops use, are kept.
    """
    expect_program("offload", program)
    ring = whole("offload: ring", ring, 1)
    nbytes = None if nbytes is None else whole("offload: nbytes", nbytes, 1)
    flag("offload: masters", masters)
    if len({op.device for op in program.main} - {None}) > 1:
        return Result(program, False, ("ops are placed on several devices; expected one device",))
    builder = _Builder(program, ring, nbytes, ("master_params",) if masters else ())
    for op in program.main:
        builder.add(op)
    if not builder.sizes:
        return Result(program, False, (*builder.reasons, "no update has states that the host can keep"))
    return Result(program.with_vars(builder.vars()).replace(main=builder.main), True, tuple(builder.reasons))


class _Builder:
    """Collects the ops of a step."""

    def __init__(self, program: Program, ring: int, nbytes: int | None, kept: tuple[str, ...]) -> None:
        self.main: list[Op] = []
        self.reasons: list[str] = []
        self.sizes: list[int] = []  # of the blocks of states that are copied, in bytes
        self._near: list[Var] = []
        self._first = sum(name.startswith(RING) for name in program.vars)  # of the buffers that this ring adds
        self._program, self._ring, self._nbytes, self._kept = program, ring, nbytes, kept
        self._users = Counter(name for op in program.main for name in program.cells({*op.reads, *op.writes}))
        self._created = {name for op in program.startup for name in {*op.writes} - {*op.reads}}

    def add(self, op: Op) -> None:
        """Add an op, with copies if it is an update whose states can be kept elsewhere."""
        routine = routine_of(op)
        if routine is None:
            self.main.append(op)
            return
        slots = tuple(slot for slot in (*routine.states, *self._kept) if slot in op.inputs)
        reason = _why_not(self._program, op, slots, self._users, self._created)
        if reason:
            self.reasons.append(f"{dependencies.title(op)}: {reason}")
            self.main.append(op)
            return
        for piece in _pieces(self._program, op, slots, self._nbytes):
            vars = [self._program.vars[name] for slot in slots for name in piece.inputs[slot]]
            buffer = f"{RING}{self._first + len(self.sizes) % self._ring}"
            self.main += _copied(piece, slots, [var.name for var in vars], buffer)
            self._near += [Var(f"{var.name}@DEVICE", var.shape, var.dtype) for var in vars]
            self.sizes.append(layout(vars)[1])

    def vars(self) -> list[Var]:
        """The variables on the device: states, and the buffers of the ring."""
        sizes = (self.sizes[r :: self._ring] for r in range(min(self._ring, len(self.sizes))))
        return [*self._near, *(Var(f"{RING}{r}", (max(each),), "uint8") for r, each in enumerate(sizes, self._first))]


def _why_not(program: Program, op: Op, slots: Sequence[str], users: Mapping[str, int], created: set[str]) -> str:
    """Why the slots of an update cannot be kept elsewhere. Empty if they can."""
    names = [name for slot in slots for name in op.inputs[slot]]
    if not any(math.prod(program.vars[name].shape) for name in names):
        return "it has no states"
    if is_flat(program, op):
        return "it is flat, and its states are in buffers made at startup; the merged form keeps them separate"
    for name in names:
        if name in created:
            return f"{name!r} is made at startup, on the device"
        if name in program.buffer_of or name in program.parts or not program.vars[name].persistable:
            return f"{name!r} is not separate memory that lives from step to step"
        if users[name] > 1:
            return f"other ops use {name!r}, too"
    return ""


def _pieces(program: Program, op: Op, slots: Sequence[str], nbytes: int | None) -> Iterator[Op]:
    """An update, or its parts: runs of its tensors."""
    count, start, length = len(op.inputs["params"]), 0, 0
    sizes = [layout([program.vars[op.inputs[slot][k]] for slot in slots])[1] for k in range(count)]
    for stop in range(1, count + 1):
        length += sizes[stop - 1]
        if stop == count or (nbytes is not None and length + sizes[stop] > nbytes):
            yield part_of(op, range(start, stop))
            start, length = stop, 0


def _copied(op: Op, slots: Sequence[str], names: Sequence[str], ring: str) -> list[Op]:
    """Copy in, update, copy out."""
    near = [f"{name}@DEVICE" for name in names]
    return [
        op.replace(type="copy_in", inputs={"x": names}, outputs={"out": near, "ring": [ring]}, attrs={}),
        op.with_names(lambda slot, own: [f"{x}@DEVICE" for x in own] if slot in slots else own),
        op.replace(type="copy_out", inputs={"x": near, "ring": [ring]}, outputs={"out": names}, attrs={}),
    ]
