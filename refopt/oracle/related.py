"""What came of a check without a routine."""

from collections import Counter
from collections.abc import Collection, Sequence

from refopt.oracle.report import FAILED, PASSED, SKIPPED, Item, Report


class Related(Report):
    """A `Report` of laws that need no formula: without one there are neither bounds nor ratios."""

    def __init__(
        self, subject: str, items: Sequence[Item], laws: dict[str, str], *, compared: int,
        expected_failures: dict[str, str], dtypes: Sequence[str], notes: Sequence[str], seconds: float,
        allow_skips: Collection[str] = (), usual_dtypes: bool = False,
    ) -> None:  # fmt: skip
        super().__init__(
            "none", subject, items, laws, largest={}, compared=compared, unbounded=0,
            expected_failures=expected_failures, dtypes=dtypes, notes=notes, seconds=seconds,
            allow_skips=allow_skips, usual_dtypes=usual_dtypes,
        )  # fmt: skip

    @property
    def step_compared(self) -> bool:
        """Whether any relation was tried, and anything compared."""
        return any(item.status == PASSED for item in self.items) and self.compared > 0

    def _verdict(self) -> str:
        if self.ok:
            word = "holds, as far as was compared" if not self.of(FAILED) else "holds but for what was expected"
        elif not self.wrong and self.step_compared:
            word = self.partly()
        elif not self.wrong:
            commonest = Counter(item.text for item in self.of(SKIPPED)).most_common(1)
            word = "NOT COMPARED" + (f": {commonest[0][0]}" if commonest else "")
        else:
            word = f"WRONG, {', '.join(self.wrong)}"
        total, skipped = len(self.items), len(self.of(SKIPPED))
        share = round(100 * skipped / total) if total else 0
        return f"{self.subject}, of no formula: {word}; {skipped} of {total} cases skipped ({share} %)"
