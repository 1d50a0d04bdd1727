"""What explains the differences that a sweep finds, and what has changed from one sweep to the next.

The files of `known/` have an entry for each explanation: a title, the kind, the optimizers and laws that it explains,
the text with commands and what they show, and where it has been reported, or the report that is ready.
"""

import tomllib
from collections.abc import Iterator, Mapping
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

FOLDER = Path(__file__).parent / "known"
KINDS = {
    "defect": "Defects",
    "limit": "Limits",
    "rounding": "Rounding",
    "formula": "Other formulas",
    "design": "By design",
}
# Ids of laws in older records.
FORMER = {"R1": "L2", "R2": "L2", "R3": "L3", "R4": "L15", "R5": "L4", "R6": "L4", "R7": "L17", "R8": "L16", "R9": "L8"}


class Known(NamedTuple):
    """An explanation.

    Attributes:
        kind: of `KINDS`.
        explains: patterns of optimizers, each with the laws, as ``"torch.optim.SGD, fused=True": ["L4", "sgd L1"]``; a
            law of a formula has the routine before it, or ``*``. On a GPU names end in ``" on cuda"``.
        upstream: where it has been reported; empty if no report was found.
        report: the file of docs/reports that is ready to be sent; empty if there is none.
    """

    title: str
    kind: str
    explains: Mapping[str, list[str]]
    text: str
    upstream: str = ""
    report: str = ""

    def covers(self, subject: str, routine: str, law: str) -> bool:
        """Whether it explains why a law does not hold."""
        named = law if routine == "none" else f"{routine} {law}"
        laws = [law for pattern, laws in self.explains.items() if fnmatchcase(subject, pattern) for law in laws]
        return any(fnmatchcase(named, pattern) for pattern in laws)


@cache
def known() -> list[Known]:
    """Every explanation, PyTorch's first."""
    found = []
    for path in sorted(FOLDER.glob("*.toml"), key=lambda path: (path.stem != "torch", path.stem)):
        for entry in tomllib.loads(path.read_text())["finding"]:
            one = Known(**entry)
            if one.kind not in KINDS:
                expected = f"expected one of {', '.join(KINDS)}, got {one.kind!r}"
                raise ValueError(f"{path.name}: {one.title}: kind: {expected}")
            found.append(one)
    return found


def differences(report: Mapping[str, Any]) -> Iterator[tuple[str, str, str, str]]:
    """Of every law that does not hold: the optimizer, as what, the law, and the report's words."""
    for row in report["rows"]:
        if "error" in row:
            yield row["subject"], "none", "error", row["error"]
        for check in row.get("checks", ()):
            for law, failure in failures(check).items():
                yield row["subject"], check["as"], law, failure["text"]


def failures(check: Mapping[str, Any]) -> dict[str, Any]:
    """What does not hold, by the ids that laws have now; of two that are one by now, the first."""
    found: dict[str, Any] = {}
    for law, failure in check["failed"].items():
        found.setdefault(FORMER.get(law, law), failure)
    return found


def unexplained(report: Mapping[str, Any]) -> Iterator[tuple[str, str, str, str]]:
    """Those that no entry explains."""
    for subject, routine, law, text in differences(report):
        if not any(entry.covers(subject, routine, law) for entry in known()):
            yield subject, routine, law, text


def changes(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[str]:
    """In words, what holds now and did not, or does no more, of the optimizers in both; versions; what is new."""
    said = []
    for name, version in after["versions"].items():
        if (old := before["versions"].get(name)) not in (None, version):
            said.append(f"{name} {old} is {version}")
    was, here = ({row["subject"] for row in report["rows"]} for report in (before, after))
    said += [f"{name}: new" for name in sorted(here - was)] + [f"{name}: gone" for name in sorted(was - here)]
    old, new = ({(x[0], x[1], x[2]) for x in differences(report)} for report in (before, after))
    said += [f"{x[0]} as {x[1]}: {x[2]} does not hold any more" for x in sorted(new - old) if x[0] in was]
    return said + [f"{x[0]} as {x[1]}: {x[2]} holds now" for x in sorted(old - new) if x[0] in here]
