"""The result of a comparison."""

from refopt.oracle.related import Related


class Compared(Related):
    """A `Report` on two implementations: its items are cases, its laws the parts of the comparison."""

    RIGHT, BUT, WRONG = "no difference", "as expected", "DIFFERENT"

    def _heading(self) -> str:
        return self.subject

    def _why_not(self) -> str:
        return next((f": {item.text}" for item in self.of("skipped")), "")
