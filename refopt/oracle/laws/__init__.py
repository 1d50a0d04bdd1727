"""The laws, one file per chapter. `LAWS` lists them by id."""

from importlib import import_module

from refopt.oracle.laws.codes import FEW_BITS
from refopt.oracle.laws.law import Law, Try
from refopt.oracle.laws.symmetries import SYMMETRIES

CHAPTERS = (
    "step", "merging", "layouts", "sizes", "non_finite", "gate", "storing", "numbers", "again", "exact_bits", "conduct",
    "unforeseen", "effect", "use", "symmetries", "codes",
)
_EVERY = [law for name in CHAPTERS for law in import_module(f"{__name__}.{name}").LAWS]
LAWS: dict[str, Law] = {law.id: law for law in sorted(_EVERY, key=lambda law: int(law.id[1:]))}

__all__ = ["FEW_BITS", "LAWS", "SYMMETRIES", "Law", "Try"]
