"""The laws, one file per chapter. `LAWS` lists them by id."""

from typing import Any

from refopt.oracle.laws import (
    again,
    conduct,
    effect,
    exact_bits,
    gate,
    layouts,
    merging,
    non_finite,
    numbers,
    sizes,
    step,
    storing,
    symmetries,
    unforeseen,
    use,
)
from refopt.oracle.laws.law import Law, Try
from refopt.oracle.laws.symmetries import SYMMETRIES

CHAPTERS = (
    step, merging, layouts, sizes, non_finite, gate, storing, numbers, again, exact_bits, conduct, unforeseen, effect,
    use, symmetries,
)
_EVERY = [law for chapter in CHAPTERS for law in chapter.LAWS]
LAWS: dict[str, Law] = {law.id: law for law in sorted(_EVERY, key=lambda law: int(law.id[1:]))}

# Former ids of laws, from when those without a formula were separate.
FORMER = {
    "R1": "L2", "R2": "L2", "R3": "L3", "R4": "L15", "R5": "L4", "R6": "L4", "R7": "L17", "R8": "L16", "R9": "L8",
    "R10": "L25", "R11": "L26", "R12": "L27",
}


def current_id(entry: Any) -> Any:
    """The current id of a law, or of a law in a dtype; anything else unchanged."""
    law, dash, dtype = entry.partition("-") if isinstance(entry, str) else (entry, "", "")
    return f"{FORMER[law]}{dash}{dtype}" if law in FORMER else entry


__all__ = ["FORMER", "LAWS", "SYMMETRIES", "Law", "Try", "current_id"]
