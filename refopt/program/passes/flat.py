"""An optimizer op over flat buffers: the buffers that it needs, and their names."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from refopt.catalog import Routine
from refopt.checks.dtypes import ITEM_SIZES
from refopt.program.model import UNKNOWN, Op, Var
from refopt.program.ops.updates import SHARED
from refopt.program.passes import dependencies
from refopt.program.passes.coalesce import coalesce_op
from refopt.program.program import Program


class Flat(NamedTuple):
    """A flat op, with the startup ops and buffers that it needs, and its scalars by slot."""

    op: Op
    startup: list[Op]
    buffers: list[Var]
    scalars: dict[str, tuple[str, ...]]


def role(slot: str) -> str:
    """What Paddle calls a slot: ``Param`` for ``params``, ``Beta1Pow`` for ``beta1_pow``."""
    singular = {"velocities": "velocity"}.get(slot, slot.removesuffix("s") if slot.endswith("params") else slot)
    singular = {"grads": "grad"}.get(singular, singular)
    return "".join(word.capitalize() for word in singular.split("_"))


def gradient_buffer(program: Program, grads: Sequence[str]) -> tuple[Op | None, str]:
    """The startup op that makes the buffer of exactly these gradients, ``None`` if they are in none; or a reason."""
    buffers = dict.fromkeys(program.buffer_of.get(grad) for grad in grads)
    if len(buffers) > 1:
        names = ", ".join(repr(name) if name else "none" for name in buffers)
        return None, f"the gradients are in {len(buffers)} buffers ({names})"
    (buffer,) = buffers
    if buffer is None:
        return None, ""
    own = set(grads)
    others = [view for view in program.views[buffer] if view not in own]
    if others:
        return None, f"{others[0]!r} is in the gradients' buffer, too"
    return program.makers[buffer], ""


def flattened(program: Program, routine: Routine, ops: Sequence[Op]) -> Flat:
    """The flat op that replaces suitable ops."""
    first, grads = ops[0], [op.inputs["grads"][0] for op in ops]
    there, _ = gradient_buffer(program, grads)
    names = {} if there is None else {"grads": there.outputs["fused_output"][0]}
    slots = [slot for slot in routine.slot_names if slot in first.inputs and slot not in names]
    buffers, startup = [], []
    for slot in slots:
        tensors = [op.inputs[slot][0] for op in ops]
        var = program.vars[tensors[0]]
        names[slot] = f"@FUSEDVAR@_{routine.name}_{role(slot)}_{tensors[0]}"
        buffers.append(Var(names[slot], UNKNOWN, var.dtype, var.persistable))
        attrs = _layout(there, program.vars[grads[0]].dtype, var.dtype)
        made = coalesce_op(tensors, names[slot], copy_data=slot != "grads" or var.persistable, **attrs)
        startup.append(made.replace(device=first.device))
    layer = dependencies.layer_of(ops)
    op = first.with_names(lambda slot, own: own if slot in SHARED else (names[slot],), layer=layer)
    return Flat(op, startup, buffers, {slot: (names[slot],) for slot in routine.scalars})


def _layout(there: Op | None, grad: str, own: str) -> dict[str, Any]:
    """The layout of a buffer of a dtype: that of the gradients in elements, whose buffer may be there."""
    override = -1 if there is None else there.attrs["size_of_dtype"]
    item = ITEM_SIZES[grad] if override == -1 else override
    attrs = {} if there is None else {key: there.attrs[key] for key in ("use_align", "align_size")}
    return attrs | {"size_of_dtype": -1 if ITEM_SIZES[own] == item else item}
