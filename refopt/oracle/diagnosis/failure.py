"""A case that broke a law."""

from collections.abc import Callable
from typing import Any, NamedTuple

from refopt.oracle.broken import Broken
from refopt.oracle.exact.cases import Case, elements_of


class Failure(NamedTuple):
    """A case that broke a law: how, and what raises `trial.Broken` for it."""

    law: str
    label: str
    case: Any
    broken: Broken
    holds: Callable[[Case], object]

    @property
    def key(self) -> tuple[str, str]:
        """The law, and the kind of its failure."""
        return self.law, self.broken.kind

    @property
    def tensor(self) -> int:
        """The tensor that is wrong; the first one if that is not known."""
        return self.broken.where.tensor if self.broken.where else 0

    @property
    def size(self) -> tuple[int, int]:
        """The number of tensors and of elements of its case."""
        return len(self.case), elements_of(self.case)

    @property
    def is_bounded(self) -> bool:
        """Whether a single step exceeded its bound at a known place."""
        return self.broken.where is not None and self.broken.ratio is not None and len(self.case.steps) == 1
