"""The sweep of optimizers, what explains its differences, and the records that the pages are made of."""

import os
import time
from fnmatch import fnmatchcase

import pytest

from benchmarks.findings.known import KINDS, changes, differences, known, unexplained
from benchmarks.findings.page import records
from benchmarks.findings.subjects import Subject
from benchmarks.findings.sweep import sweep
from benchmarks.record import ROOT

REPORTS = ROOT / "docs" / "reports"


def judge(subject):
    """What a check may come to."""
    if subject.name == "leaves":
        os._exit(3)
    if subject.name == "hangs":
        time.sleep(60)
    if subject.name == "raises":
        raise KeyError("nothing")
    return {"library": subject.library, "subject": str(subject), "checks": []}


@pytest.mark.slow  # a clock
def test_a_subject_ends_no_sweep():
    subjects = [Subject("none", "none", name, {"x": True}) for name in ("leaves", "hangs", "raises", "returns")]
    rows = {row["subject"]: row for row in sweep(subjects, 2, limit=20, judge=judge)}
    assert [*rows] and rows["none.returns, x=True"]["checks"] == []
    assert rows["none.leaves, x=True"]["error"] == "the end of its process, with exit code 3"
    assert rows["none.hangs, x=True"]["error"] == "not done in 20 s"
    assert rows["none.raises, x=True"]["error"] == "KeyError: 'nothing'"


def report(*failed, version="1"):
    rows = [{"subject": name, "checks": [{"as": "none", "failed": {law: {"text": "x"} for law in laws}}]}
            for name, laws in failed]
    return {"versions": {"torch": version}, "rows": rows}


def test_what_no_entry_explains_is_said():
    assert [x[0] for x in unexplained(report(("torch.optim.SGD, fused=True", ["R5"]), ("nobody.SGD", ["R5"])))] == [
        "nobody.SGD"]
    assert list(unexplained({"rows": [{"subject": "nobody.SGD", "error": "gone"}]})) == [
        ("nobody.SGD", "none", "error", "gone")]


def test_what_has_changed_is_said():
    before = report(("a", ["R1", "R5", "R6"]), ("gone", []))
    assert changes(before, report(("a", ["R1", "R8"]), ("b", ["R2"]), version="2")) == [
        "torch 1 is 2", "b: new", "gone: gone", "a as none: L16 does not hold any more", "a as none: L4 holds now"]
    assert changes(before, before) == []


def test_there_are_records():
    libraries = {row["library"] for report in records() for row in report["rows"]}
    assert libraries >= {"torch", "timm", "optax", "keras", "bitsandbytes", "pytorch-optimizer"}


def test_every_difference_on_record_is_explained():
    assert [x for report in records() for x in unexplained(report)] == []


@pytest.mark.parametrize("entry", known(), ids=lambda entry: entry.title[:40])
def test_every_explanation_is_of_something(entry):
    """An entry for a law that holds by now is to go; others are of commands that the page has."""
    assert entry.kind in KINDS
    subjects = {row["subject"] for report in records() for row in report["rows"]}
    found = {x[0] for report in records() for x in differences(report) if entry.covers(*x[:3])}
    assert found or not entry.explains
    assert all(any(fnmatchcase(x, pattern) for x in subjects) for pattern in entry.explains), entry.explains
    assert found or "    oracle.check(" in entry.text or "python -m refopt" in entry.text


def test_every_report_is_named():
    assert {entry.report for entry in known() if entry.report} == {path.stem for path in REPORTS.glob("*-*.md")}
