"""The result of a check: each law in each dtype, what is wrong, and the smallest example that shows it."""

import dataclasses
import json
import math
import textwrap
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from typing import Any, NamedTuple

import refopt
from refopt.oracle.diagnosis import ENOUGH, Cause
from refopt.oracle.exceptions import covers, reason

SCHEMA = "refopt.check/2"
PASSED, FAILED, SKIPPED = "passed", "failed", "skipped"
TAKES = "takes no "
LINES = 8  # the most lines of laws without a cause, and of notes, in a short report
MOST = 5  # printed reasons
WIDE = 300  # the most characters of a line in a short report
NONE = "none of the hypotheses explains it"
SKIPS = 0.2  # the largest share of a law's cases that may be skipped in a report that is ok


class Item(NamedTuple):
    """One case of a law in one dtype.

    Attributes:
        text: why it failed or was skipped.
        ratio: the error over the bound, if a bound was exceeded.
        example: the smallest example, for the worst case of a law.
        pattern: which elements are wrong.
        reasons: explanations, each with the share of the wrong elements that it explains; ``None`` if none were looked
            for, empty if none were found.
        command: the command that reproduces it.
        lacks: whether it was skipped on request, or because the subject has no argument for it.
        kind: empty for wrong numbers; otherwise the failure, without numbers that depend on the case.
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
    lacks: bool = False
    kind: str = ""

    @property
    def key(self) -> tuple[str, str, str]:
        """Failures with one key have a line, or a cause, in common."""
        return self.law, self.kind, self.dtype


def by_key(items: Iterable[Item]) -> list[list[Item]]:
    """Items with the same key together."""
    groups: dict[Any, list[Item]] = {}
    for item in items:
        groups.setdefault(item.key, []).append(item)
    return list(groups.values())


def fields_of(item: Item) -> dict[str, Any]:
    """The fields of an item, for JSON."""
    named = None if item.reasons is None else [{"name": name, "share": share} for name, share in item.reasons]
    return item._asdict() | {"reasons": named}


class Report:
    """What `refopt.oracle.check` returns.

    Attributes:
        routine, subject: names; without a routine there are neither bounds nor ratios.
        items: every case of every law, in order.
        laws: the names of the requested laws, by id.
        largest: by dtype and slot, the largest error over its bound.
        compared, unbounded: how many elements were compared, and how many more have no bound.
        expected_failures: why a law need not hold, by its id, or by its id and a dtype.
        dtypes: the requested dtypes of parameters.
        notes: further remarks for the reader.
        causes: explanations of failures, `diagnosis.Cause`, the one that explains most laws first.
        allow_skips: laws of which any number of cases may be skipped.
        usual_dtypes: whether the dtypes are the defaults, so that all cases of one may be skipped.
    """

    def __init__(
        self, routine: str | None, subject: str, items: Sequence[Item], laws: dict[str, str], *,
        compared: int, expected_failures: dict[str, str], largest: dict[str, dict[str, float]] | None = None,
        unbounded: int = 0, dtypes: Sequence[str] = (), notes: Sequence[str] = (), causes: Sequence[Cause] = (),
        seconds: float = 0.0, allow_skips: Collection[str] = (), usual_dtypes: bool = False,
    ) -> None:
        self.allow_skips, self.usual_dtypes = [*allow_skips], usual_dtypes
        self.routine, self.subject, self.items, self.laws = routine or "none", subject, list(items), dict(laws)
        self.formula = routine is not None
        self.right, self.is_wrong = "right" if self.formula else "holds", "WRONG"  # words of the verdict
        self.but = f"{self.right} except for expected failures"
        self.largest, self.compared, self.unbounded = largest or {}, compared, unbounded
        self.expected_failures, self.dtypes = dict(expected_failures), list(dtypes)
        self.notes, self.causes, self.seconds = list(notes), list(causes), seconds

    def of(self, status: str) -> list[Item]:
        return [item for item in self.items if item.status == status]

    @property
    def failed_laws(self) -> list[str]:
        """The ids of the laws that fail, expected or not."""
        return [law for law in self.laws if any(item.law == law for item in self.of(FAILED))]

    @property
    def wrong(self) -> list[str]:
        """The ids of laws that fail unexpectedly, and of those that hold although expected to fail."""
        failed = [x for x in self.of(FAILED) if reason(self.expected_failures, x.law, x.dtype) is None]
        laws = [x.law for x in failed] + [entry.partition("-")[0] for entry in self._holding]
        return [law for law in self.laws if law in laws]

    @property
    def _holding(self) -> list[str]:
        """The entries of ``expected_failures`` whose laws hold."""
        tried = {entry: [x for x in self.items if covers(entry, x.law, x.dtype)] for entry in self.expected_failures}
        states = {entry: {x.status for x in items} for entry, items in tried.items()}
        return [entry for entry, outcomes in states.items() if PASSED in outcomes and FAILED not in outcomes]

    @property
    def step_compared(self) -> bool:
        """Whether the step was checked against its bound in any dtype; without a routine, whether any law was tried."""
        tried = {item.law for item in self.items if item.status != SKIPPED}
        return ("L1" in tried if self.formula else bool(tried)) and self.compared > 0

    @property
    def ok(self) -> bool:
        """Whether every law holds, except expected failures, and enough of the requested cases were compared."""
        return not self.wrong and self.step_compared and not self.unheld

    def raise_if_failed(self) -> None:
        """Raise an AssertionError with the report, unless it is ``ok``."""
        __tracebackhide__ = True
        if not self.ok:
            raise AssertionError(str(self))

    @property
    def unheld(self) -> dict[str, float]:
        """The laws of which more than a fifth of the applicable cases were skipped, with the share."""
        shares = {}
        held = {item.dtype for item in self.items if item.status != SKIPPED} if self.usual_dtypes else {*self.dtypes}
        for law in self.laws:
            asked = [item for item in self.items if item.law == law and not item.lacks and item.dtype in held]
            skipped = sum(item.status == SKIPPED for item in asked)
            if skipped > SKIPS * len(asked) and law not in self.allow_skips:
                shares[law] = skipped / len(asked)
        return shares

    def to_json(self) -> str:
        """The report as JSON text; docs/oracle-bounds.md describes its fields."""
        fields: dict[str, Any] = {
            "schema": SCHEMA, "refopt": refopt.__version__, "routine": self.routine, "subject": self.subject,
            "ok": self.ok, "verdict": self._verdict(), "compared_step": self.step_compared, "wrong": self.wrong,
            "failed_laws": self.failed_laws, "laws": self.laws, "dtypes": self.dtypes,
            "expected_failures": self.expected_failures, "largest_ratio": self.largest, "compared": self.compared,
            "unbounded": self.unbounded, "seconds": round(self.seconds, 3), "notes": self.notes,
            "causes": [dataclasses.asdict(cause) | {"laws": cause.laws} for cause in self.causes],
            "items": [fields_of(item) for item in self.items],
        }
        return json.dumps(_plain(fields), indent=1)

    def __repr__(self) -> str:
        return f"<Report: {self._verdict()}>"

    def _verdict(self) -> str:
        if self.ok:
            word = self.but if self.of(FAILED) else f"{self.right}, as far as was compared"
        elif not self.wrong and self.step_compared:
            shares = ", ".join(f"{percent(x)} of {law}" for law, x in self.unheld.items())
            shell = f"--allow-skips {' '.join(self.unheld)}"
            word = f"NOT ALL COMPARED: skipped {shares} (allow_skips={[*self.unheld]}, or {shell}, accepts this)"
        elif not self.wrong:
            word = f"NOT COMPARED{self._why_not()}"
        else:
            word = f"{self.is_wrong}, {', '.join(self.wrong)}"
        total, skipped = len(self.items), len(self.of(SKIPPED))
        share = round(100 * skipped / total) if total else 0
        return f"{self._heading()}: {word}; {skipped} of {total} cases skipped ({share} %)"

    def _heading(self) -> str:
        return f"{self.subject} as {self.routine}" if self.formula else f"{self.subject}, without a formula"

    def _why_not(self) -> str:
        """Why nothing was compared: the most common reason for skipping cases of the step, or of any law."""
        skipped = Counter(item.text for item in self.of(SKIPPED) if item.law == "L1" or not self.formula)
        return f": {skipped.most_common(1)[0][0]}" if skipped else ", since the step law was left out" * self.formula

    def __str__(self) -> str:
        """One page: the verdict, causes, one smallest example, and the command that reproduces it."""
        lines = [self._verdict()]
        told: set[tuple[str, str, str]] = set()
        for text in dict.fromkeys(x.text for x in self.causes):
            same = [x for x in self.causes if x.text == text]
            cause = same[0]
            lines.append(f"{kind(cause)}: {text}")
            if cause.others:
                word = "or, equivalently: " if cause.share >= ENOUGH else "or in part: "
                lines += [f"    {word}{other}" for other in cause.others[:1]]
            keys = [(*key, x.dtype) for x in same for key in x.failures]
            lines.append(f"  fails: {self._named(keys)}")
            if not told:
                lines += self._example(keys)
            told |= {*keys}
        lines += self._unexplained(told)
        for entry in self._holding:
            law, _, dtype = entry.partition("-")
            of = ", ".join(filter(None, [self.laws[law], dtype]))
            lines.append(f"{law} {of}: expected to fail ({self.expected_failures[entry]}), but nothing failed")
        lines += [short(note) for note in self.notes[:LINES]]
        if skips := self._skips():
            takes = [text.removeprefix(TAKES) for text in skips if text.startswith(TAKES)]
            others = [text for text in skips if not text.startswith(TAKES)]
            lines.append(short(f"skipped, not failed: {'; '.join([TAKES + ', '.join(takes)] * bool(takes) + others)}"))
        why_unbounded = "more have no bound, since correct code may overflow or divide by 0 there"
        share = f"; {self.unbounded} {why_unbounded}" if self.unbounded else ""
        more = "; report.details(), or --verbose, shows everything" if self.wrong or skips else ""
        lines.append(f"{self.compared} elements compared{share}; {self.seconds:.1f} s{more}")
        return "\n".join(lines)

    def _named(self, keys: Sequence[tuple[str, str, str]]) -> str:
        """Laws on one line, grouped by dtype."""
        dtypes: dict[str, list[str]] = {}
        for law, _, dtype in keys:
            dtypes.setdefault(dtype, []).append(law)
        alike: dict[str, list[str]] = {}
        for dtype, laws in dtypes.items():
            of = (f"{law} {self.laws[law]}{self._note(law, dtype)}" for law in self.laws if law in laws)
            text = ", ".join(of)
            alike.setdefault(text, []).append(dtype)
        return "; ".join(f"{text}, {' '.join(of)}" for text, of in alike.items())

    def _example(self, keys: Sequence[tuple[str, str, str]]) -> list[str]:
        """The smallest example of some failures, which elements are wrong, and the command that reproduces it."""
        shown = [x for x in self.of(FAILED) if x.key in keys]
        item = min(shown, key=lambda x: (not x.example, "1 tensor of 1 element" not in x.example))
        lines = [f"  {line}" for line in item.example.splitlines() if line.strip() != item.text]
        lines += [f"  where: {item.pattern}"] if item.pattern else []
        return lines + ([f"  again: {item.command}"] if item.command else [])

    def _unexplained(self, told: set[tuple[str, str, str]]) -> list[str]:
        """A line for each kind of failure without a cause, and an example if there is none yet."""
        groups: dict[str, list[Item]] = {}
        failed = self.of(FAILED)
        for mine in by_key(x for x in failed if x.key not in told):
            first = max(mine, key=lambda item: item.ratio or 0)
            same = first.kind or (first.text if first.ratio is None else "")
            groups.setdefault(same, []).extend(mine if first.kind else [first])
        lines: list[str] = []
        for items in groups.values():
            first = max(items, key=lambda item: item.ratio or 0)
            keys = [x.key for x in items]
            labels = some([repr(x.label) for x in items], 1)
            where = f", in {labels}" if first.kind else ""
            lines.append(f"{self._named(keys)}{where}: {head(first.ratio)}{short(first.text)}")
            if len(lines) == 1 and not told:
                lines += self._example(keys)
                looked = [x.reasons for x in failed if x.key in keys and x.reasons is not None]
                lines += [f"  why: {NONE}"] if looked and not any(looked) else []
        more = len(lines) - LINES - 12
        return [*lines[: LINES + 12], f"and {more} more"] if more > 0 else lines

    def details(self) -> str:
        """Every failure of every law, with its example and explanations, and everything that was skipped."""
        lines = [self._verdict()]
        for failed in sorted(by_key(self.of(FAILED)), key=lambda x: [*self.laws].index(x[0].law)):
            lines += self._lines(failed)
        for dtype, ratios in self.largest.items():
            if ratios:
                shown = ", ".join(f"{slot} {ratio:.2g}" for slot, ratio in ratios.items())
                lines.append(f"largest error over its bound, {dtype}: {shown}")
        lines += [f"skipped: {text}: {items}" for text, items in self._skips().items()]
        return "\n".join([str(self), "", *lines[1:], *self.notes[LINES:]])

    def _lines(self, failed: list[Item]) -> list[str]:
        first = max(failed, key=lambda item: item.ratio or 0)
        shown = next((item for item in failed if item.example), first)
        law, _, dtype = first.key
        total = sum((x.law, x.dtype) == (law, dtype) for x in self.items)
        lines = [f"{law} {self.laws[law]}, {dtype}{self._note(law, dtype)}: {head(first.ratio)}{first.text}"]
        lines += [f"    {line}" for line in shown.example.splitlines() if line.strip() != first.text]
        if shown.pattern:
            lines.append(f"  where: {shown.pattern}")
        lines += why(shown.reasons)
        lines.append(f"  fails: {some([item.label for item in failed])}; {len(failed)} of {total} cases")
        if first.command:
            lines.append(f"  again: {first.command}")
        return lines

    def _note(self, law: str, dtype: str) -> str:
        expected = reason(self.expected_failures, law, dtype)
        return "" if expected is None else f" (expected: {expected})"

    def _skips(self) -> dict[str, str]:
        """The skipped cases, by reason."""
        reasons: dict[str, dict[str, None]] = {}
        for item in self.of(SKIPPED):
            reasons.setdefault(item.text, {})[f"{item.law} {item.label}"] = None
        return {text: some(list(labels)) for text, labels in reasons.items()}


def _plain(x: Any) -> Any:
    """A value that JSON can hold: infinity and NaN become text."""
    if isinstance(x, dict):
        return {name: _plain(value) for name, value in x.items()}
    if isinstance(x, list):
        return [_plain(value) for value in x]
    return str(x) if isinstance(x, float) and not math.isfinite(x) else x


def head(ratio: float | None) -> str:
    """The size of an error, as the start of a line."""
    return f"{ratio:.3g} times the bound: " if ratio is not None else ""


def kind(cause: Cause) -> str:
    """How sure a cause is."""
    return "cause" if cause.certain else "possibly" if cause.share >= ENOUGH else f"in part ({percent(cause.share)})"


def short(line: str) -> str:
    """A line, shortened if it is too long."""
    return line if len(line) <= WIDE else textwrap.shorten(line, WIDE, placeholder=" ...")


def why(reasons: tuple[tuple[str, float], ...] | None) -> list[str]:
    """Explanations of a failure, the best first."""
    if reasons is None:
        return []
    if not reasons:
        return [f"  why: {NONE}"]
    return [f"  why: {name} ({percent(share)} of the wrong elements)" for name, share in reasons[:MOST]]


def percent(share: float) -> str:
    """A share of elements, 100 % only if it is all of them."""
    return "100 %" if share == 1 else f"{min(100 * share, 99.9):.3g} %"


def some(labels: list[str], most: int = 4) -> str:
    """The first labels, and how many more there are."""
    more = f" and {len(labels) - most} more" if len(labels) > most else ""
    return "; ".join(labels[:most]) + more
