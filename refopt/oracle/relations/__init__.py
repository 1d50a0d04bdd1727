"""Laws that need no formula: what any optimizer is held to by another run of itself.

`check` is `refopt.oracle.check` without a routine; `RELATIONS` are the laws by their ids, `SYMMETRIES` what an
optimizer may declare.
"""

from refopt.oracle.relations.checking import check
from refopt.oracle.relations.every import RELATIONS, SYMMETRIES

__all__ = ["RELATIONS", "SYMMETRIES", "check"]
