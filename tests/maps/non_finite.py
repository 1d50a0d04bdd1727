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
    """A row for each slot, a column for each value; one for the factor, where it is not as all gradients."""
    lines = [f"### {routine.name}", "", "| input | NaN | inf |", "| --- | --- | --- |"]
    rows = {slot: [left(routine, slot, value) for value in (np.nan, np.inf)] for slot in
            (*(slot.name for slot in routine.slots if slot.name != "master_params"), *GATE)}
    as_gradients = [[(name, kind, name not in routine.scalars) for name, kind, _ in each] for each in rows["grads"]]
    for slot, values in rows.items():
        if values != {"grad_factor": as_gradients, "found_inf": [[], []]}.get(slot):
            lines.append(f"| `{slot}` | {' | '.join(map(in_words, values))} |")
    return [*lines, ""]


Spoilt = list[tuple[str, str, bool]]  # a slot, what is in it, and whether in all elements


def in_words(spoilt: Spoilt) -> str:
    """By what is in the slots: NaN: `params`, `moment`."""
    kinds: dict[str, list[str]] = {}
    for name, kind, everywhere in spoilt:
        kinds.setdefault(kind + " in all" * everywhere, []).append(f"`{name}`")
    return "; ".join(f"{kind}: {', '.join(names)}" for kind, names in kinds.items()) or "-"


def left(routine: Routine, slot: str, value: float) -> Spoilt:
    """What one step leaves that is not finite."""
    optional = tuple(each.name for each in routine.slots if each.optional and each.name in routine.states)
    case = make(routine, [SIZE], optional=optional)
    if slot in GATE:
        case.steps[0][slot] = np.full(1, value, np.float32)
    else:
        case.lists()[slot][0][PLACE if slot not in routine.scalars else 0] = value
    return [x for name, arrays in reference(case).items() if (x := spoilt(name, arrays[0]))]


def spoilt(name: str, array: np.ndarray | None) -> tuple[str, str, bool] | None:
    """How an array is not finite; None if it is."""
    if array is None or np.isfinite(array).all():
        return None
    which = array[PLACE if array.size > 1 else 0]
    kind = "NaN" if np.isnan(which) else "inf" if np.isinf(which) else ""
    everywhere = array.size > 1 and not np.isfinite(array).any()
    assert kind and np.isfinite(array).sum() in (0, array.size - 1), "one element, or all"
    return name, kind, everywhere
