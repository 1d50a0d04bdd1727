"""What came of a comparison."""

from refopt.oracle.related import Related


class Compared(Related):
    """A `Report` of two implementations: its items are cases, and its laws the parts of the comparison."""

    def _verdict(self) -> str:
        of, skipped = len(self.items), len(self.of("skipped"))
        if self.ok:
            word = "no difference, as far as was compared" if not self.of("failed") else "as was expected"
        elif not self.wrong:
            word = "NOT COMPARED" + next((f": {item.text}" for item in self.of("skipped")), "")
        else:
            word = f"DIFFERENT, {', '.join(self.wrong)}"
        return f"{self.subject}: {word}; {skipped} of {of} cases skipped ({round(100 * skipped / of) if of else 0} %)"
