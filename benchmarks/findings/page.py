"""The parts of docs/findings.md that are made of records and explanations."""

import json
import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from textwrap import shorten
from typing import Any

from benchmarks.findings.known import KINDS, Known, differences, failures, known
from benchmarks.record import RESULTS
from benchmarks.sections import figures, with_section

Record = Mapping[str, Any]


def records() -> list[Record]:
    """Every record of a sweep, the newest PyTorch last."""
    found = [json.loads(path.read_text()) for path in RESULTS.glob("findings-*.json")]
    return sorted(found, key=lambda report: (report["on"], _parts(report["versions"].get("torch", "0"))))


def _parts(version: str) -> list[int]:
    return [int(part) for part in version.partition("+")[0].split(".")]


def with_findings(page: str) -> str:
    """docs/findings.md."""
    heads = ["library", "optimizers", "no difference", "differences", "not checked"]
    page = with_section(page, "libraries", figures(heads, libraries()))
    page = with_section(page, "explained", "\n".join(explained()))
    page = with_section(page, "changes", "\n".join(changed()))
    return with_section(page, "optimizers", "\n".join(optimizers()))


def libraries() -> Iterator[list[str]]:
    """How many optimizers of each library were tried, and what came of it."""
    for report in records():
        by_library: dict[str, Counter] = {}
        for row in report["rows"]:
            by_library.setdefault(row["library"], Counter())[_outcome(row)] += 1
        for library, counts in by_library.items():
            yield [_heading(report, library), str(counts.total()), *(str(counts[x]) for x in OUTCOMES)]


def _heading(report: Record, library: str) -> str:
    """A library, its version, and where it was tried."""
    return f"{library} {report['versions'].get(library, '')}" + (" on CUDA" if report["on"] == "cuda" else "")


def _outcome(row: Mapping[str, Any]) -> str:
    if "not_taken" in row:
        return "not checked"
    return "different" if "error" in row or any(check["failed"] for check in row["checks"]) else "right"


def explained() -> Iterator[str]:
    """Every explanation that a record bears out, by kind."""
    tried = [difference for report in records() for difference in differences(report)]
    for kind, heading in KINDS.items():
        if entries := [entry for entry in known() if entry.kind == kind]:
            yield f"## {heading}\n"
        for entry in entries:
            yield from _entry(entry, tried)


def _entry(entry: Known, tried: Sequence[tuple[str, str, str, str]]) -> Iterator[str]:
    yield "\n\n".join([f"**{entry.title}**", entry.text.strip("\n")]) + "\n"
    optimizers: dict[str, dict[str, set[str]]] = {}
    for subject, routine, law, _ in tried:
        if entry.covers(subject, routine, law):
            optimizers.setdefault(_class(subject), {}).setdefault(routine, set()).add(law)
    if optimizers:
        by_laws: dict[str, list[str]] = {}
        for name, laws in list(optimizers.items())[:MOST]:
            said = (in_short(laws[as_]) + ("" if as_ == "none" else f" as {as_}") for as_ in laws)
            by_laws.setdefault("; ".join(said), []).append(f"`{name}`")
        those = "; ".join(f"{', '.join(names)}: {said}" for said, names in by_laws.items())
        more = f"; and {len(optimizers) - MOST} more" if len(optimizers) > MOST else ""
        yield f"*Fails:* {those}{more}.\n"
    where = [f"*Reported:* {entry.upstream}."] * bool(entry.upstream)
    where += [f"*A report:* [{entry.report}](reports/{entry.report}.md)."] * bool(entry.report)
    yield from [" ".join(where) + "\n"] * bool(where)


def _class(subject: str) -> str:
    """An optimizer without its options, and without where it ran."""
    return re.sub("(,| on cuda| as ).*", "", subject)


MOST, OUTCOMES = 6, ("right", "different", "not checked")  # optimizers that are named with an explanation; of a row


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


def changed() -> Iterator[str]:
    """What the last sweep of each kind found otherwise than the one before, and one version from another."""
    by_change: dict[str, list[str]] = {}
    for change in (change for report in records() for change in report.get("changes", ())):
        name, is_of_one, what = change.rpartition(": ")
        by_change.setdefault(what, []).extend([f"`{_class(name)}`"] * bool(is_of_one))
    for what, names in by_change.items():
        yield f"- {what}" + (f": {', '.join(dict.fromkeys(names))}" if names else "")
    for old, new in pairwise(report for report in records() if report["on"] == "cpu"):
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
        yield f"  - `{subject}`{f' as {routine}' * (routine != 'none')}, {what}: {in_short(names)}"


def optimizers() -> Iterator[str]:
    """The optimizers of each library by what was found, and by the formula that they are.

    Of a library that was tried in two versions, only what the second one changes.
    """
    before: dict[tuple[str, str], list[tuple[str, str, str]]] = {}
    for report in records():
        for library in dict.fromkeys(row["library"] for row in report["rows"]):
            found = [(_said(row), row.get("identity") or "", _name(row["subject"]))
                     for row in report["rows"] if row["library"] == library]
            yield f"### {_heading(report, library)}\n"
            same = before.get((library, report["on"]), [])
            before[library, report["on"]] = found
            yield from (*_by_result(x for x in found if x not in same), "- the others as before\n" * bool(same))


def _name(subject: str) -> str:
    """An optimizer without its module, and without where it ran."""
    return re.sub(r"^(\w+\.)+| on cuda$", "", subject)


def _by_result(found: Iterable[tuple[str, str, str]]) -> Iterator[str]:
    results: dict[str, dict[str, list[str]]] = {}
    for result, formula, name in sorted(found, key=lambda x: (x[0] != "", x[0].startswith("not checked"), x)):
        results.setdefault(result, {}).setdefault(formula, []).append(f"`{name}`")
    for result, formulas in results.items():
        each = (f"*{formula}:* " * bool(formula) + ", ".join(names) for formula, names in formulas.items())
        yield f"- {result or 'no difference'}: {'; '.join(each)}"


def _said(row: Mapping[str, Any]) -> str:
    if "error" in row:
        return str(row["error"])
    if "not_taken" in row:
        why = re.sub(r"\S+\(\) ", "", row["not_taken"].rpartition(" got ")[2])
        return "not checked, " + shorten(re.sub("[|<>`]", " ", why), 64, placeholder=" ...").replace("_", r"\_")
    said: dict[str, list[str]] = {}  # what follows the laws, and these
    for check in row["checks"]:
        for law, failure in failures(check).items():
            of = "" if failure["dtypes"] == check["dtypes"] else f" in {', '.join(failure['dtypes'])}"
            said.setdefault(of if check["as"] == "none" else f" as {check['as']}", []).append(law)
    return "; ".join(f"{in_short(laws)}{of}" for of, laws in said.items())
