"""A case that broke a law, and a cause of such failures."""

import dataclasses
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


@dataclasses.dataclass
class Cause:
    """A cause of failures.

    Attributes:
        text: what is wrong.
        failures: what it explains, as far as it can be tested: ids of laws, each with a `Broken.kind`.
        certain: whether it is more than a possibility or a partial explanation.
        share: the share of their wrong elements that it explains.
        others: equivalent explanations.
        dtype: of the parameters.
    """

    text: str
    failures: list[tuple[str, str]]
    certain: bool = True
    share: float = 1.0
    others: tuple[str, ...] = ()
    dtype: str = ""
    strong: bool = True  # whether many elements confirm it

    @property
    def laws(self) -> list[str]:
        """The ids of the laws, each once."""
        return list(dict.fromkeys(law for law, _ in self.failures))
