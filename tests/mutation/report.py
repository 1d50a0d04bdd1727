"""What was killed, by part of the package: as a table, and as the record."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from typing import Any

from mutation.sample import PARTS, key_of, part_of
from mutation.trial import Outcome

COUNTED = ("killed", "survived", "uncovered")  # a time-out shows a change too, but by no assertion: it counts apart


def rate(verdicts: Counter[str]) -> float:
    """The share killed of what was killed, survived or ran in no test."""
    counted = sum(verdicts[verdict] for verdict in COUNTED)
    return verdicts["killed"] / counted if counted else 1.0


def by_part(outcomes: Iterable[Outcome], known: Mapping[str, str]) -> dict[str, Counter[str]]:
    """How often each verdict was reached, by part and in all; a survivor that changes nothing is "equivalent"."""
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    for outcome in outcomes:
        verdict = outcome.verdict
        if verdict in ("survived", "uncovered") and key_of(outcome.edit.key()) in known:
            verdict = "equivalent"
        counts[part_of(outcome.edit.file)][verdict] += 1
        counts["all"][verdict] += 1
    return {part: counts[part] for part in (*PARTS, "all") if part in counts}


def table(counts: Mapping[str, Counter[str]]) -> str:
    """A line for each part."""
    columns = ("killed", "survived", "uncovered", "timed out", "equivalent")
    rows = [f"{'part':<14}" + "".join(f"{column:>12}" for column in columns) + f"{'rate':>8}"]
    for part, verdicts in counts.items():
        numbers = "".join(f"{verdicts[column]:>12}" for column in columns)
        rows.append(f"{part:<14}{numbers}{rate(verdicts):>8.1%}")
    return "\n".join(rows)


def record(outcomes: Iterable[Outcome], known: Mapping[str, str]) -> dict[str, Any]:
    """Counts and rates, then each change that no test saw: where it stands, and why it need not be seen if so."""
    outcomes = list(outcomes)
    counts = by_part(outcomes, known)
    lived = [{"part": part_of(outcome.edit.file), "verdict": outcome.verdict, **outcome.edit.key(),
              "line": outcome.edit.lines[0], "tests": outcome.tests,
              "equivalent because": known.get(key_of(outcome.edit.key()), "")}
             for outcome in outcomes if outcome.verdict != "killed"]
    return {"counts": {part: dict(verdicts) for part, verdicts in counts.items()},
            "rates": {part: round(rate(verdicts), 4) for part, verdicts in counts.items()}, "not killed": lived,
            "killed by": Counter(outcome.by.partition("[")[0] for outcome in outcomes if outcome.verdict == "killed")}
