"""The laws, one file a chapter. `LAWS` has them by id."""

from refopt.oracle.laws import step
from refopt.oracle.laws.law import Law, Try

LAWS: dict[str, Law] = {law.id: law for law in (step.LAW,)}

__all__ = ["LAWS", "Law", "Try"]
