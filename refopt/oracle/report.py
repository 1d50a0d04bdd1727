"""What came of a check: each law in each dtype, what is wrong, and the smallest example of it."""

import json
import math
from collections import Counter
from collections.abc import Collection, Sequence
from typing import Any, NamedTuple

import refopt
from refopt.oracle import script
from refopt.oracle.diagnosis import ENOUGH
from refopt.oracle.exceptions import covers, reason

SCHEMA = "refopt.check/1"
PASSED, FAILED, SKIPPED = "passed", "failed", "skipped"
MOST = 5  # reasons that are printed
SKIPS = 0.2  # of the cases of a law: with more the subject is not right


class Item(NamedTuple):
    """One case of a law in one dtype.

    Attributes:
        text: why it failed or was skipped.
        ratio: the error over the bound, where that is what is wrong.
        example: the smallest example, of the worst case of a law.
        pattern: which elements are wrong.
        reasons: what explains it, each with the share of the wrong elements that it explains; ``None`` if that was not
            looked for, and nothing if nothing does.
        command: what shows it again.
        smallest: the case and the failure that ``example`` is of.
        lacks: whether it was skipped since the subject has no place for it, or by request.
    """

    law: str
    dtype: str
    label: str
    status: str
    text: str = ""
    ratio: float | None = None
    example: str = ""
    command: str = ""
    pattern: str = ""
    reasons: tuple[tuple[str, float], ...] | None = None
    smallest: Any = None
    lacks: bool = False


class Report:
    """What `refopt.oracle.check` returns.

    Attributes:
        routine, subject: names.
        items: every case of every law, in order.
        laws: the names of the laws that were asked for, by id.
        largest: by dtype and slot, the largest error over its bound.
        compared, unbounded: elements that were compared, and those of them that have no bound.
        expected_failures: why a law need not hold, by its id, or by that and a dtype.
        dtypes: those that were asked for, of the parameters.
        notes: what else a reader should know.
        allow_skips: laws of which any number of cases may be skipped.
        usual_dtypes: whether nobody asked for the dtypes, so that all of one may be skipped.
    """

    def __init__(
        self, routine: str, subject: str, items: Sequence[Item], laws: dict[str, str], *,
        largest: dict[str, dict[str, float]], compared: int, unbounded: int, expected_failures: dict[str, str],
        dtypes: Sequence[str] = (), notes: Sequence[str] = (), seconds: float = 0.0,
        allow_skips: Collection[str] = (), usual_dtypes: bool = False,
    ) -> None:  # fmt: skip
        self.allow_skips, self.usual_dtypes = [*allow_skips], usual_dtypes
        self.routine, self.subject, self.items, self.laws = routine, subject, list(items), dict(laws)
        self.largest, self.compared, self.unbounded = largest, compared, unbounded
        self.expected_failures, self.dtypes = dict(expected_failures), list(dtypes)
        self.notes, self.seconds = list(notes), seconds

    def of(self, status: str) -> list[Item]:
        return [item for item in self.items if item.status == status]

    @property
    def failed_laws(self) -> list[str]:
        """The ids of the laws that fail, expected or not."""
        return [law for law in self.laws if any(item.law == law for item in self.of(FAILED))]

    @property
    def wrong(self) -> list[str]:
        """The ids of the laws that fail and are not expected to, and of those that are and hold."""
        failed = [x for x in self.of(FAILED) if reason(self.expected_failures, x.law, x.dtype) is None]
        laws = [x.law for x in failed] + [entry.partition("-")[0] for entry in self._holding]
        return [law for law in self.laws if law in laws]

    @property
    def _holding(self) -> list[str]:
        """What was expected to fail, and holds."""
        tried = {entry: [x for x in self.items if covers(entry, x.law, x.dtype)] for entry in self.expected_failures}
        states = {entry: {x.status for x in items} for entry, items in tried.items()}
        return [entry for entry, outcomes in states.items() if PASSED in outcomes and FAILED not in outcomes]

    @property
    def step_compared(self) -> bool:
        """Whether the step was held to its bound in any dtype."""
        return any(item.law == "L1" and item.status != SKIPPED for item in self.items) and self.compared > 0

    @property
    def ok(self) -> bool:
        """Whether every law holds that is not expected to fail, and what was asked for was compared."""
        return not self.wrong and self.step_compared and not self.unheld

    def raise_if_failed(self) -> None:
        """Raise an AssertionError with the whole report, unless it is ``ok``."""
        __tracebackhide__ = True
        if not self.ok:
            raise AssertionError(str(self))

    @property
    def unheld(self) -> dict[str, float]:
        """The laws of which more than a fifth of what could be asked was skipped, and the share."""
        shares = {}
        held = {item.dtype for item in self.items if item.status != SKIPPED} if self.usual_dtypes else {*self.dtypes}
        for law in self.laws:
            asked = [item for item in self.items if item.law == law and not item.lacks and item.dtype in held]
            skipped = sum(item.status == SKIPPED for item in asked)
            if skipped > SKIPS * len(asked) and law not in self.allow_skips:
                shares[law] = skipped / len(asked)
        return shares

    def script(self, law: str | None = None) -> str:
        """A script that shows a failure on its smallest example without refopt, fit for a report to its authors.

        Args:
            law: whose failure; by default that of the first law that fails.

        Raises:
            ValueError: it does not fail.
        """
        shown = [item for item in self.of(FAILED) if item.smallest and law in (None, item.law)]
        if not shown:
            raise ValueError(f"script: expected a law that fails, of {self.failed_laws}, got {law!r}")
        item = shown[0]
        title = f"{self.subject} as {self.routine}, {item.dtype}: {item.label}."
        return script.of(item.smallest, title)

    def to_json(self) -> str:
        """The report as text of JSON; docs/oracle-reports.md says what is in it."""
        fields: dict[str, Any] = {
            "schema": SCHEMA, "refopt": refopt.__version__, "routine": self.routine, "subject": self.subject,
            "ok": self.ok, "verdict": self._verdict(), "compared_step": self.step_compared, "wrong": self.wrong,
            "failed_laws": self.failed_laws, "laws": self.laws, "dtypes": self.dtypes,
            "expected_failures": self.expected_failures, "largest_ratio": self.largest, "compared": self.compared,
            "unbounded": self.unbounded, "seconds": round(self.seconds, 3), "notes": self.notes,
            "items": [_fields(item) for item in self.items],
        }  # fmt: skip
        return json.dumps(_plain(fields), indent=1)

    def __repr__(self) -> str:
        return f"<Report: {self._verdict()}>"

    def partly(self) -> str:
        """What a verdict says where too much was skipped."""
        shares = ", ".join(f"{_percent(x)} of {law}" for law, x in self.unheld.items())
        return f"NOT ALL COMPARED: skipped {shares}"

    def _verdict(self) -> str:
        if self.ok:
            word = "right, as far as was compared" if not self.failed_laws else "right but for what was expected"
        elif not self.wrong and self.step_compared:
            word = self.partly()
        elif not self.wrong:
            commonest = Counter(item.text for item in self.of(SKIPPED) if item.law == "L1").most_common(1)
            word = "NOT COMPARED" + (f": {commonest[0][0]}" if commonest else ", since the step law was left out")
        else:
            word = f"WRONG, {', '.join(self.wrong)}"
        total, skipped = len(self.items), len(self.of(SKIPPED))
        share = round(100 * skipped / total) if total else 0
        return f"{self.subject} as {self.routine}: {word}; {skipped} of {total} cases skipped ({share} %)"

    def __str__(self) -> str:
        lines = [self._verdict()]
        for law, name in self.laws.items():
            of_law = [item for item in self.items if item.law == law]
            for dtype in dict.fromkeys(item.dtype for item in of_law):
                lines += self._lines(law, name, dtype, [item for item in of_law if item.dtype == dtype])
        for entry in self._holding:
            law, _, dtype = entry.partition("-")
            of = ", ".join(filter(None, [self.laws[law], dtype]))
            lines.append(f"{law} {of}: expected to fail ({self.expected_failures[entry]}), but nothing failed")
        for dtype, ratios in self.largest.items():
            if ratios:
                shown = ", ".join(f"{slot} {ratio:.2g}" for slot, ratio in ratios.items())
                lines.append(f"largest error over its bound, {dtype}: {shown}")
        share = f"; {self.unbounded} have no bound" if self.unbounded else ""
        lines.append(f"{self.compared} elements compared{share}; {self.seconds:.1f} s")
        for text, items in self._skips().items():
            lines.append(f"skipped: {text}: {items}")
        return "\n".join(lines + self.notes)

    def _lines(self, law: str, name: str, dtype: str, items: list[Item]) -> list[str]:
        failed = [item for item in items if item.status == FAILED]
        if not failed:
            return []
        first = max(failed, key=lambda item: item.ratio or 0)
        example = next((item.example for item in failed if item.example), "")
        lines = [f"{law} {name}, {dtype}{self._note(law, dtype)}: {_head(first)}{first.text}"]
        lines += [f"    {line}" for line in example.splitlines() if line.strip() != first.text]
        shown = next((item for item in failed if item.smallest), first)
        if shown.pattern:
            lines.append(f"  where: {shown.pattern}")
        lines += _why(shown.reasons)
        lines.append(f"  fails: {_some([item.label for item in failed])}; {len(failed)} of {len(items)} cases")
        if first.command:
            lines.append(f"  again: {first.command}")
        return lines

    def _note(self, law: str, dtype: str) -> str:
        expected = reason(self.expected_failures, law, dtype)
        return "" if expected is None else f" (expected: {expected})"

    def _skips(self) -> dict[str, str]:
        """What was skipped, by the reason."""
        reasons: dict[str, dict[str, None]] = {}
        for item in self.of(SKIPPED):
            reasons.setdefault(item.text, {})[f"{item.law} {item.label}"] = None
        return {text: _some(list(labels)) for text, labels in reasons.items()}


def _head(item: Item) -> str:
    return f"{item.ratio:.3g} times the bound: " if item.ratio is not None else ""


def _plain(x: Any) -> Any:
    """What JSON has: infinity and NaN become text."""
    if isinstance(x, dict):
        return {name: _plain(value) for name, value in x.items()}
    if isinstance(x, list):
        return [_plain(value) for value in x]
    return str(x) if isinstance(x, float) and not math.isfinite(x) else x


def _fields(item: Item) -> dict[str, Any]:
    fields = item._asdict()
    del fields["smallest"]
    reasons = item.reasons and [{"name": name, "share": share} for name, share in item.reasons]
    return fields | {"reasons": reasons if reasons is not None else item.reasons}


def _why(reasons: tuple[tuple[str, float], ...] | None) -> list[str]:
    """What explains a failure, the best first."""
    if reasons is None:
        return []
    if not reasons:
        return ["  why: none of the hypotheses explains it"]
    if reasons[0][1] < ENOUGH:
        heads = ["  why: nothing explains all of it; in part "] + ["       or in part "] * len(reasons)
    else:
        heads = ["  why: "] + ["       or "] * len(reasons)
    shown = zip(heads, reasons[:MOST], strict=False)
    lines = [f"{head}{name} ({_percent(share)} of the wrong elements)" for head, (name, share) in shown]
    if len(reasons) > MOST:
        lines.append(f"       or {len(reasons) - MOST} more")
    return lines


def _percent(share: float) -> str:
    return "100 %" if share == 1 else f"{min(100 * share, 99.9):.3g} %"


def _some(labels: list[str], most: int = 4) -> str:
    more = f" and {len(labels) - most} more" if len(labels) > most else ""
    return "; ".join(labels[:most]) + more
