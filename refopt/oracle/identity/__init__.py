"""Which routine and choices an optimizer is, found by what it does: `identify`."""

from refopt.oracle.identity.identify import identify
from refopt.oracle.identity.report import Identity, Match

__all__ = ["Identity", "Match", "identify"]
