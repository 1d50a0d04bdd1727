"""The result of a comparison."""

from typing import Any

from refopt.oracle.report import Report


class Compared(Report):
    """A `Report` on two implementations: its items are cases, its laws the parts of the comparison."""

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(None, *given, **named)
        self.right, self.but, self.is_wrong = "no difference", "as expected", "DIFFERENT"

    def _heading(self) -> str:
        return self.subject

    def _why_not(self) -> str:
        return next((f": {item.text}" for item in self.of("skipped")), "")
