"""The laws, one file a chapter. `LAWS` has them by id."""

from refopt.oracle.laws import (
    calls,
    conduct,
    effect,
    exact_bits,
    gate,
    layouts,
    merging,
    non_finite,
    sizes,
    step,
    storing,
    unforeseen,
)
from refopt.oracle.laws.law import Law, Try

CHAPTERS = (
    step, merging, layouts, sizes, non_finite, gate, storing, calls, exact_bits, conduct, unforeseen, effect
)  # fmt: skip
_EVERY = [law for chapter in CHAPTERS for law in chapter.LAWS]
LAWS: dict[str, Law] = {law.id: law for law in sorted(_EVERY, key=lambda law: int(law.id[1:]))}

__all__ = ["LAWS", "Law", "Try"]
