"""The parts of docs/findings.md that are made of records and explanations."""

import json
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any

from benchmarks.findings.known import KINDS, Known, differences, failures, known
from benchmarks.record import RESULTS
from benchmarks.sections import figures, table, with_section

Record = Mapping[str, Any]


def records() -> list[Record]:
    """Every record of a sweep, the newest PyTorch last."""
    found = [json.loads(path.read_text()) for path in RESULTS.glob("findings-*.json")]
    return sorted(found, key=lambda report: (report["on"], _parts(report["versions"].get("torch", "0"))))


def _parts(version: str) -> list[int]:
    return [int(part) for part in version.partition("+")[0].split(".")]


def with_findings(page: str) -> str:
    """docs/findings.md."""
    heads = ["library", "optimizers", "no difference", "differences", "not taken"]
    page = with_section(page, "libraries", figures(heads, libraries()))
    page = with_section(page, "explained", "\n".join(explained()))
    page = with_section(page, "swept", "\n".join(on_gpu()))
    page = with_section(page, "changes", "\n".join(changed()))
    return with_section(page, "optimizers", "\n".join(optimizers()))


def libraries() -> Iterator[list[str]]:
    """How many optimizers of each library were tried, and what came of it."""
    for report in records():
        by_library: dict[str, Counter] = {}
        for row in report["rows"]:
            by_library.setdefault(row["library"], Counter())[_outcome(row)] += 1
        for library, counts in by_library.items():
            each = counts["right"], counts["different"], counts["not taken"]
            yield [_heading(report, library), str(sum(counts.values())), *map(str, each)]


def _heading(report: Record, library: str) -> str:
    """A library, its version, and where it was tried."""
    return f"{library} {report['versions'].get(library, '')}" + (" on CUDA" if report["on"] == "cuda" else "")


def _outcome(row: Mapping[str, Any]) -> str:
    if "not_taken" in row:
        return "not taken"
    return "different" if "error" in row or any(check["failed"] for check in row["checks"]) else "right"


def explained() -> Iterator[str]:
    """Every explanation that a record bears out, by kind."""
    tried = [(report, list(differences(report))) for report in records()]
    for kind, heading in KINDS.items():
        if entries := [entry for entry in known() if entry.kind == kind]:
            yield f"## {heading}\n"
        for entry in entries:
            yield from _entry(entry, tried)


def _entry(entry: Known, tried: Sequence[tuple[Record, Sequence[tuple[str, str, str, str]]]]) -> Iterator[str]:
    text = entry.text.strip("\n")
    yield f"**{entry.title}**\n\n{text}\n"
    optimizers: dict[str, dict[str, set[str]]] = {}
    for _, found in tried:
        for subject, routine, law, _ in found:
            if entry.covers(subject, routine, law):
                optimizers.setdefault(subject, {}).setdefault(routine, set()).add(law)
    if optimizers:
        by_laws: dict[str, list[str]] = {}
        for name, laws in list(optimizers.items())[:MOST]:
            said = (in_short(laws[as_]) + ("" if as_ == "none" else f" as {as_}") for as_ in laws)
            by_laws.setdefault("; ".join(said), []).append(f"`{name}`")
        those = "; ".join(f"{', '.join(names)}: {said}" for said, names in by_laws.items())
        more = f"; and {len(optimizers) - MOST} more" if len(optimizers) > MOST else ""
        yield f"*Fails:* {those}{more}.\n"
    if entry.upstream or entry.report:
        where = [f"*Reported:* {entry.upstream}." if entry.upstream else ""]
        where += [f"*A report:* [{entry.report}](reports/{entry.report}.md)." if entry.report else ""]
        yield " ".join(filter(None, where)) + "\n"


MOST = 6  # optimizers that are named with an explanation


def in_short(laws: Collection[str]) -> str:
    """Ids of laws in order, those that follow one another by the first and the last: L1 to L4, L7."""
    numbers = sorted({int(law.removeprefix("L")) for law in laws if law != "error"})
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    said = [f"L{run[0]} to L{run[-1]}" if len(run) > 2 else ", ".join(f"L{x}" for x in run) for run in runs]
    return ", ".join(said + ["error"] * ("error" in laws))


def on_gpu() -> Iterator[str]:
    """The explanations of what a sweep on a GPU has found, and of which optimizers."""
    found = [x for report in records() if report["on"] == "cuda" for x in differences(report)]
    for entry in known():
        subjects = [subject.removesuffix(" on cuda") for subject, *what, _ in found if entry.covers(subject, *what)]
        if subjects:
            yield f"- {entry.title.rstrip('.')}: {', '.join(f'`{name}`' for name in dict.fromkeys(subjects))}"


def changed() -> Iterator[str]:
    """What the last sweep of each kind found otherwise than the one before, and one version from another."""
    for report in records():
        for change in report.get("changes", ()):
            yield f"- {change}"
    of_torch = [report for report in records() if report["on"] == "cpu"]
    for old, new in pairwise(of_torch):
        was, now = (
            {tuple(x[:3]) for x in differences(report) if x[0].startswith("torch.optim.")} for report in (old, new)
        )
        yield f"- From PyTorch {old['versions']['torch']} to {new['versions']['torch']}:"
        yield from _by_optimizer(was - now, "holds now")
        yield from _by_optimizer(now - was, "does not hold any more")


def _by_optimizer(laws: set[tuple[str, ...]], what: str) -> Iterator[str]:
    """A line for each optimizer and formula with the laws of which something is said."""
    by_name: dict[tuple[str, str], list[str]] = {}
    for subject, routine, law in sorted(laws):
        by_name.setdefault((subject, routine), []).append(law)
    for (subject, routine), names in by_name.items():
        of = "" if routine == "none" else f" as {routine}"
        yield f"  - `{subject}`{of}, {what}: {in_short(names)}"


def optimizers() -> Iterator[str]:
    """A table by library, with a row for each optimizer."""
    for report in records():
        libraries = dict.fromkeys(row["library"] for row in report["rows"])
        for library in libraries:
            yield f"### {_heading(report, library)}\n"
            lines = [["optimizer", "formula", "fails"], ["---"] * 3]
            for row in report["rows"]:
                if row["library"] == library:
                    lines.append([f"`{row['subject']}`", row.get("identity") or "", _said(row)])
            yield table(lines) + "\n"


def _said(row: Mapping[str, Any]) -> str:
    if "error" in row:
        return str(row["error"])
    if "not_taken" in row:
        return f"not taken: {row['not_taken'][:MOST_TEXT].replace('|', ' ').replace('<', ' ')}"
    said: dict[str, list[str]] = {}  # what follows the laws, and these
    for check in row["checks"]:
        for law, failure in failures(check).items():
            of = ", ".join(failure["dtypes"]) if check["as"] == "none" else f"as {check['as']}"
            said.setdefault(of, []).append(law)
    return "; ".join(f"{in_short(laws)} {of}" for of, laws in said.items())


MOST_TEXT = 120
