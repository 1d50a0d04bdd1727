"""Checks of the formulae's arguments; an error names the argument that is invalid."""

from __future__ import annotations

from typing import Any

from refopt.catalog import Routine
from refopt.checks.arguments import flag, listed, shown, whole
from refopt.program.passes.grouping import check_limit

_FLAGS = frozenset(["early", "folded", "recompute", "clip", "optimize_cast", "sharded", "scan", "batched"])
_LISTS = frozenset(["sizes", "items", "owners", "rows", "eligible"])  # the last has flags, the others integers
_LIMITS = "limit", "send_limit"
_FROM_1 = "world_size", "accumulate", "chunk", "gradient"


def nonzero(counts: dict[str, int]) -> dict[str, int]:
    """The counts that are not 0."""
    return {kind: count for kind, count in counts.items() if count}


def check_plain(where: str, routine: Routine, **values: Any) -> None:
    """Like `check`, with a routine and tensors, some of which may be sparse."""
    if not isinstance(routine, Routine):
        raise TypeError(f"{where}: routine: expected a row of refopt.catalog.KNOWN, got {shown(routine)}")
    check(where, **values)
    if values.get("sparse", 0) > values.get("tensors", 0):
        raise ValueError(f"{where}: sparse: expected at most the {values['tensors']} tensors, got {values['sparse']}")


def check(where: str, **values: Any) -> None:
    """Raise if an argument is not the flag, limit, number or list that its name says; the error names it."""
    for name, value in values.items():
        if name in _LISTS:
            for k, entry in enumerate(listed(f"{where}: {name}", value, "entries")):
                flag(f"{where}: {name}[{k}]", entry) if name == "eligible" else whole(f"{where}: {name}[{k}]", entry, 0)
            if len(value) != len(values["sizes"]):
                expected = f"expected {len(values['sizes'])} entries, as sizes has"
                raise ValueError(f"{where}: {name}: {expected}, got {len(value)}")
        elif name in _FLAGS:
            flag(f"{where}: {name}", value)
        elif name in _LIMITS:
            check_limit(f"{where}: {name}", value)
        else:
            whole(f"{where}: {name}", value, int(name in _FROM_1))
