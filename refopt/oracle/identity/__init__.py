"""Which routine and choices an optimizer is, found by what it does: `identify`."""

from refopt.oracle.identity.identify import Identity, Match, identify

__all__ = ["Identity", "Match", "identify"]
