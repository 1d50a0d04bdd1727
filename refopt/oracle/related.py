"""The result of a check without a routine."""

from collections import Counter
from typing import Any

from refopt.oracle.item import SKIPPED
from refopt.oracle.report import Report


class Related(Report):
    """A `Report` of laws that need no formula; it has neither bounds nor ratios."""

    RIGHT, BUT = "holds", "holds except for expected failures"

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__("none", *given, **named)

    @property
    def step_compared(self) -> bool:
        """Whether any law was tried and anything was compared."""
        return any(item.status != SKIPPED for item in self.items) and self.compared > 0

    def _heading(self) -> str:
        return f"{self.subject}, without a formula"

    def _why_not(self) -> str:
        commonest = Counter(item.text for item in self.of(SKIPPED)).most_common(1)
        return f": {commonest[0][0]}" if commonest else ""
