"""Comparing two implementations: `compare`."""

from refopt.oracle.comparison.compare import compare
from refopt.oracle.comparison.data import PARTS

__all__ = ["PARTS", "compare"]
