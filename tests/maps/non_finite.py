"""The tables of docs/numerics.md: where inf and NaN go, for each routine and each place where they can enter a step."""

from collections.abc import Iterable

import numpy as np
from maps.collect import ROOT, Item

from benchmarks.sections import with_section
from refopt.catalog import ROUTINES, Routine
from refopt.oracle.exact.build import make
from refopt.oracle.exact.laws import reference

PAGE = ROOT / "docs" / "numerics.md"
GATE = "grad_factor", "found_inf"
SIZE, PLACE = 8, 3  # a tensor, and its element that is not finite


def page(items: Iterable[Item] = ()) -> str:
    """The page, with the tables of today."""
    lines = [line for routine in ROUTINES.values() for line in table(routine)]
    return with_section(PAGE.read_text(), "non-finite", "\n".join(lines).strip())


def table(routine: Routine) -> list[str]:
    """A row for each slot and for what comes from a gradient check, a column for each value."""
    lines = [f"### {routine.name}", "", "| what enters | NaN | inf |", "| --- | --- | --- |"]
    for slot in (*(slot.name for slot in routine.slots if slot.name != "master_params"), *GATE):
        lines.append(f"| `{slot}` | {left(routine, slot, np.nan)} | {left(routine, slot, np.inf)} |")
    return [*lines, ""]


def left(routine: Routine, slot: str, value: float) -> str:
    """What one step leaves that is not finite, in words."""
    optional = tuple(each.name for each in routine.slots if each.optional and each.name in routine.states)
    case = make(routine, [SIZE], optional=optional)
    if slot in GATE:
        case.steps[0][slot] = np.full(1, value, np.float32)
    else:
        case.lists()[slot][0][PLACE if slot not in routine.scalars else 0] = value
    return ", ".join(filter(None, (spoilt(name, arrays[0]) for name, arrays in reference(case).items()))) or "nothing"


def spoilt(name: str, array: np.ndarray | None) -> str:
    """How an array is not finite, in words; empty if it is."""
    if array is None or np.isfinite(array).all():
        return ""
    which = array[PLACE if array.size > 1 else 0]
    kind = "NaN" if np.isnan(which) else "inf" if np.isinf(which) else ""
    everywhere = array.size > 1 and not np.isfinite(array).any()
    assert kind and np.isfinite(array).sum() in (0, array.size - 1), "one element, or all"
    return f"`{name}` {kind}" + (" in all" if everywhere else "")
