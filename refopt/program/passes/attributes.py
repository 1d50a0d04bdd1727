"""How two ops differ, apart from their variables."""

from __future__ import annotations

from collections.abc import Sequence

from refopt.program.model import Op
from refopt.program.passes.dependencies import title
from refopt.program.program import Program

FIELDS = "role", "device"


def differences(first: Op, second: Op) -> list[str]:
    """Names of all attributes, and of the fields in `FIELDS`, that differ."""
    keys = [key for key in dict.fromkeys((*first.attrs, *second.attrs)) if _attr(first, key) != _attr(second, key)]
    return keys + [key for key in FIELDS if getattr(first, key) != getattr(second, key)]


def differing(first: Op, second: Op, key: str | None = None) -> str:
    """The difference of two ops in an attribute, by default the first one, as text; empty if there is none."""
    if key is None:
        key = next(iter(differences(first, second)), "")
    if not key:
        return ""
    here, there = (getattr(op, key) if key in FIELDS else _attr(op, key) for op in (first, second))
    return f"{key} differs: {here!r} for {title(first)}, {there!r} for {title(second)}"


def unlike(ops: Sequence[Op]) -> str:
    """How some ops differ apart from their variables; empty if they do not."""
    return next((reason for op in ops[1:] if (reason := differing(ops[0], op))), "")


def unlike_averages(program: Program, after: Sequence[Sequence[int]], kind: str) -> str:
    """Why the multiplications after some reductions, if any, cannot be fused. Empty if they can."""
    if not any(after):
        return ""
    for places in after:
        if len(places) != 1:
            return f"expected one scale op after each {kind}, or none, got {len(places)}"
    return unlike([program.main[place] for (place,) in after])


def _attr(op: Op, key: str) -> object:
    return op.attrs.get(key, "nothing")
