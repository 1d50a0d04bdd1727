"""The laws, one file a chapter. `LAWS` has them by id."""

from refopt.oracle.laws import calls, exact_bits, gate, layouts, merging, non_finite, sizes, step, storing
from refopt.oracle.laws.law import Law, Try

CHAPTERS = step, merging, layouts, sizes, non_finite, gate, storing, calls, exact_bits
LAWS: dict[str, Law] = {law.id: law for chapter in CHAPTERS for law in chapter.LAWS}

__all__ = ["LAWS", "Law", "Try"]
