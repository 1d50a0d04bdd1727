"""Comparing two implementations: `compare`, and `record` for one to be compared later."""

from refopt.oracle.comparison.compare import compare, record
from refopt.oracle.comparison.data import PARTS

__all__ = ["PARTS", "compare", "record"]
