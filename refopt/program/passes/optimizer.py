"""Fusing optimizer ops."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Set
from typing import Any, NamedTuple

from refopt.catalog import KNOWN, Routine
from refopt.checks.arguments import chosen, flag
from refopt.program.model import Op, Var
from refopt.program.ops.updates import MERGED, SHARED, advances, coded, is_flat, uncut
from refopt.program.passes import dependencies
from refopt.program.passes.attributes import differences, differing, unlike
from refopt.program.passes.flat import flattened, gradient_buffer
from refopt.program.passes.result import Result, moved
from refopt.program.program import Program, expect_program

FORMS = "auto", "flat", "merged"


class Unit(NamedTuple):
    """Ops to fuse into one.

    Attributes:
        routine: their routine.
        places: their places in ``main``, in the order of tensors in the fused op.
        powers: by scalar that other ops advance, the places of these, in the same order.
        uneven: numbers that differ between tensors, by name.
    """

    routine: Routine
    places: tuple[int, ...]
    powers: dict[str, tuple[int, ...]]
    uneven: dict[str, str]

    def ops(self, program: Program) -> list[Op]:
        return [program.main[i] for i in self.places]

    def members(self) -> list[int]:
        """All places of replaced ops."""
        return [*self.places, *(i for places in self.powers.values() for i in places)]


def fuse_optimizer(program: Program, optimizer: str = "all", form: str = "auto", per_buffer: bool = False) -> Result:
    """Replace the ops of a routine, one for each tensor, by one for each signature of dtypes.

    There are two forms. *Flat*: parameters, states and scalars are coalesced at startup like the gradients, and one op
    of the same type treats each buffer as one tensor; the first tensor's scalars apply to all, and all are advanced.
    *Merged*: one op of type ``merged_`` over the tensors in place, which keeps each tensor's numbers, scalars and norms
    separate. Tensors are in the order of the gradients. Scalars that ``scale`` ops advance, two for each tensor of
    Adam, are then advanced by one op per kind.

    The flat form needs an elementwise routine, the same numbers for all tensors, rounding to nearest, no states in 8
    bits, gradients that have one buffer of their own or none, and scalars with equal initial values, which
    `refopt.program.Bound.startup` checks. Ops are not fused if they differ in attributes of which a merged op has only
    one, depend on each other, or have sparse gradients.

    Args:
        optimizer: a name of `refopt.catalog.KNOWN`, or ``"all"``.
        form: ``"flat"``, one op for each buffer of gradients; ``"merged"``; or ``"auto"``: flat if that makes one op
            per signature, else merged.
        per_buffer: keep updates whose gradients are in different buffers, or in none, separate in the merged form as
            well, so that each waits only for its own gradients.

    Raises:
        ValueError: naming the argument; or a buffer's name is taken.

    Source: Paddle's ``fuse_optimizer_op_pass`` and those of Adam, SGD and momentum, of PR 15933, first in PR 15497. It
    silently takes learning rate, beta powers and whatever it does not compare from the first op.
    """
    expect_program("fuse_optimizer", program)
    chosen("fuse_optimizer: form", form, FORMS)
    chosen("fuse_optimizer: optimizer", optimizer, ("all", *KNOWN))
    flag("fuse_optimizer: per_buffer", per_buffer)
    fusion = _Fusion(program, form)
    names = dict.fromkeys(op.type for op in program.main) if optimizer == "all" else [optimizer]
    for routine in (KNOWN[name] for name in names if name in KNOWN):
        for places in _candidates(program, routine, form, per_buffer, fusion.reasons):
            fusion.add(routine, places)
    nothing = f"no two ops of {optimizer} can be fused"
    return moved(program, fusion.moves, fusion.reasons, nothing, fusion.buffers, fusion.startup)


class _Fusion:
    """Collects the changes."""

    def __init__(self, program: Program, form: str) -> None:
        self.moves: list[dependencies.Move] = []
        self.startup: list[Op] = []
        self.buffers: list[Var] = []
        self.reasons: list[str] = []
        self._program, self._form = program, form
        self._scales = dependencies.singles(program, "scale")
        self._rooted = dependencies.rooted(program)

    def add(self, routine: Routine, places: tuple[int, ...]) -> None:
        """Fuse some ops, or record why not."""
        program, about = self._program, f"{routine.name} of {_about(self._program, places)}"
        unit, reason = _unit(program, routine, places, self._scales)
        not_flat = reason or _not_flat(program, unit, self._rooted)
        if not reason and not_flat and self._form == "flat":
            reason = f"not flat: {not_flat}"
        if reason:
            self.reasons.append(f"{about}: {reason}")
        elif self._form == "merged" or not_flat:
            self.moves.append((unit.members(), _merged(program, unit)))
            self.reasons += [f"{about}: merged, not flat: {not_flat}"] if self._form == "auto" else []
        else:
            flat = flattened(program, unit.routine, unit.ops(program))
            self.moves.append((unit.members(), [flat.op, *_advances(program, unit, flat.scalars)]))
            self.startup += flat.startup
            self.buffers += flat.buffers


def _candidates(
    program: Program, routine: Routine, form: str, per_buffer: bool, reasons: list[str]
) -> Iterator[tuple[int, ...]]:
    """Places of ops with one signature that may be fused, in the order of their gradients; others give reasons."""
    sums = {name for op in program.main if op.type == "scatter_add" for name in op.writes}
    rank = _order(program)
    units: dict[tuple, list[int]] = {}
    for i, op in enumerate(program.main):
        if op.type != routine.name or is_flat(program, op):
            continue
        if op.inputs["grads"][0] in sums:
            reasons.append(f"{dependencies.title(op)}: its gradient is sparse")
        else:
            units.setdefault(_signature(program, routine, op, form, per_buffer), []).append(i)
    for places in units.values():
        if len(places) == 1:
            reasons.append(f"{dependencies.title(program.main[places[0]])}: the only one of its kind")
        else:
            yield tuple(sorted(places, key=lambda i: rank.get(program.main[i].inputs["grads"][0], len(rank))))


def _signature(program: Program, routine: Routine, op: Op, form: str, per_buffer: bool) -> tuple[Any, ...]:
    """The key that ops must share to be fused."""
    grad, param = op.inputs["grads"][0], program.vars[op.inputs["params"][0]]
    slots = [op.inputs.get(slot) for slot in routine.slot_names]
    key: list[Any] = [program.vars[names[0]].dtype if names else None for names in slots]
    key += [op.inputs.get(slot) for slot in SHARED] + [advances(op, routine), op.device, op.attrs.get("count")]
    if form == "flat":
        key += [program.buffer_of.get(grad), math.prod(param.shape) > 0]
    if per_buffer:
        cut = program.whole_of.get(grad, grad)
        key.append(program.buffer_of.get(cut, cut))
    return tuple(key)


def _order(program: Program) -> dict[str, int]:
    """The order of gradients: by when they are made or, in a buffer, by address."""
    gradients = [name for op in program.main if op.type == "backward" for name in op.outputs["grads"]]
    views = [view for views in program.views.values() for view in views]
    return {name: k for k, name in enumerate([*gradients, *views])}


def _unit(
    program: Program, routine: Routine, places: tuple[int, ...], scales: dict[str, list[int]]
) -> tuple[Unit, str]:
    """The ops to fuse, and why they cannot be fused. Empty if they can."""
    ops = [program.main[i] for i in places]
    uneven: dict[str, str] = {}
    reason = ""
    for op in ops[1:]:
        for key in differences(ops[0], op):
            if key in routine.of_each:
                uneven.setdefault(key, differing(ops[0], op, key))
            else:
                reason = reason or differing(ops[0], op, key)
    unit = Unit(routine, places, {}, uneven)
    if not reason and not advances(ops[0], routine):
        reason = _find_powers(program, unit, scales)
    reason = reason or next((twice for slot in routine.scalars if (twice := _twice(ops, slot))), "")
    reason = reason or dependencies.among(program, ops) or dependencies.between(program, unit.members())
    return unit, reason


def _find_powers(program: Program, unit: Unit, scales: dict[str, list[int]]) -> str:
    """Find the ops that advance the scalars, or why they cannot be fused."""
    for slot in unit.routine.scalars:
        candidates = [scales.get(op.inputs[slot][0], []) for op in unit.ops(program)]
        if not any(candidates):
            continue
        for place, op, places in zip(unit.places, unit.ops(program), candidates, strict=True):
            if len(places) != 1 or places[0] < place:
                return f"{slot}: expected exactly one scale op, after {dependencies.title(op)}"
        unit.powers[slot] = tuple(places[0] for places in candidates)
        reason = unlike([program.main[places[0]] for places in candidates])
        if reason:
            return reason
    return ""


def _not_flat(program: Program, unit: Unit, rooted: Set[str]) -> str:
    """Why ops cannot become a flat one. Empty if they can. Only one rank gets or sends ``rooted`` variables."""
    ops = unit.ops(program)
    if unit.uneven and not unit.routine.whole:
        return next(iter(unit.uneven.values()))
    if reason := uncut(ops[0]) or coded(program, ops[0]):
        return reason
    for op in ops:
        if math.prod(program.vars[op.inputs["params"][0]].shape) == 0:
            return f"{dependencies.title(op)} has no elements"
        if program.vars[op.inputs["grads"][0]].persistable != program.vars[ops[0].inputs["grads"][0]].persistable:
            return "only some gradients live from step to step"
        for slot, (name,) in ((s, n) for s, n in op.inputs.items() if s not in SHARED):
            if name in rooted:
                return f"{slot}: {name!r} {dependencies.ALONE}"
            if name in program.whole_of:
                return f"{slot}: {name!r} is a block of {program.whole_of[name]!r}"
            if slot != "grads" and name in program.buffer_of:
                return f"{slot}: {name!r} is already in a buffer, {program.buffer_of[name]!r}"
    return _twice(ops, "grads") or gradient_buffer(program, [op.inputs["grads"][0] for op in ops])[1]


def _twice(ops: list[Op], slot: str) -> str:
    """Which variable of a slot two of the ops have in common; empty if none."""
    name, count = Counter(op.inputs[slot][0] for op in ops).most_common(1)[0]
    return f"{slot}: {count} ops use {name!r}" if count > 1 else ""


def _merged(program: Program, unit: Unit) -> list[Op]:
    """The merged op over the tensors in place, and the ops that advance scalars."""
    ops = unit.ops(program)
    attrs = {
        key: tuple(op.attrs[key] for op in ops) if key in unit.uneven else value for key, value in ops[0].attrs.items()
    }

    def all_of(side: str) -> dict[str, tuple[str, ...]]:
        slots = getattr(ops[0], side)
        return {
            slot: slots[slot] if slot in SHARED else tuple(getattr(op, side)[slot][0] for op in ops) for slot in slots
        }

    merged = ops[0].replace(
        type=MERGED + unit.routine.name, inputs=all_of("inputs"), outputs=all_of("outputs"), attrs=attrs,
        layer=dependencies.layer_of(ops),
    )
    return [merged, *_advances(program, unit, {slot: merged.inputs[slot] for slot in unit.routine.scalars})]


def _advances(program: Program, unit: Unit, scalars: dict[str, tuple[str, ...]]) -> list[Op]:
    """One op for each kind of scalar that ops had to advance."""
    advancing = []
    for slot, places in unit.powers.items():
        ops = [program.main[i] for i in places]
        x = {"x": scalars[slot]}, {"out": scalars[slot]}
        advancing.append(ops[0].replace(inputs=x[0], outputs=x[1], layer=dependencies.layer_of(ops)))
    return advancing


def _about(program: Program, places: tuple[int, ...]) -> str:
    names = [program.main[i].inputs["params"][0] for i in places]
    return f"{names[0]!r} to {names[-1]!r}"
