"""Two implementations held to each other: `compare`, and `record` for one that is compared later."""

from refopt.oracle.comparison.compare import compare, record
from refopt.oracle.comparison.data import PARTS

__all__ = ["PARTS", "compare", "record"]
