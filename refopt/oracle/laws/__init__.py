"""The laws, one file per chapter. `LAWS` lists them by id."""

from refopt.oracle.laws import (
    again,
    codes,
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
from refopt.oracle.laws.codes import FEW_BITS
from refopt.oracle.laws.law import Law, Try
from refopt.oracle.laws.symmetries import SYMMETRIES

CHAPTERS = (
    step, merging, layouts, sizes, non_finite, gate, storing, numbers, again, exact_bits, conduct, unforeseen, effect,
    use, symmetries, codes,
)
_EVERY = [law for chapter in CHAPTERS for law in chapter.LAWS]
LAWS: dict[str, Law] = {law.id: law for law in sorted(_EVERY, key=lambda law: int(law.id[1:]))}

__all__ = ["FEW_BITS", "LAWS", "SYMMETRIES", "Law", "Try"]
