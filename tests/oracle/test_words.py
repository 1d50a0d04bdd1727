"""A right report has no words of failure."""

import json
import math

import pytest

from refopt import oracle
from refopt.oracle.report import NONE, Item, Report, percent, short, some, why


def test_a_right_report_has_no_words_of_failure():
    def step(params, grads, momentum, *, lr):
        for p, g, m in zip(params, grads, momentum, strict=True):
            m[...] = 0.875 * m + g
            p -= lr * m

    report = oracle.check(None, step, dtypes=["float32"], laws=["L2", "L15", "L16"], process=False)
    assert report.ok and "expected no error" not in report.details()
    skipped = next(line for line in str(report).splitlines() if "skipped, not failed: " in line)
    assert "takes no gradients of None (raises TypeError)" in skipped and "keeps no learning rate" in skipped


def test_elements_without_a_bound_are_explained():
    report = Report("sgd", "step", [Item("L1", "float32", "x", "passed")], {"L1": "step"}, compared=3, unbounded=12,
                    expected_failures={})
    assert "3 elements compared; 12 more have no bound, since correct code may overflow" in str(report)


@pytest.mark.parametrize(("skipped", "of", "allowed", "share"), [
    (1, 5, [], None), (2, 5, [], 0.4), (2, 5, ["L4"], None), (2, 5, ["L2"], 0.4), (2, 9, [], 2 / 9), (2, 10, [], None)])
def test_a_fifth_of_a_laws_cases_may_be_skipped_or_any_that_are_allowed(skipped, of, allowed, share):
    items = [Item("L1", "float32", "x", "passed")]
    items += [Item("L4", "float32", "y", "skipped" if k < skipped else "passed") for k in range(of)]
    report = Report("sgd", "step", items, {"L1": "step", "L4": "layouts"}, compared=3, expected_failures={},
                    dtypes=["float32"], allow_skips=allowed)
    assert report.unheld == ({} if share is None else {"L4": share}) and report.ok == (share is None)


def test_a_page_has_eight_notes_and_twenty_failures():
    """The rest is in the details, or counted."""
    items = [Item("L1", "float32", f"case {k}", "failed", f"text {k}", kind=f"kind {k}") for k in range(23)]
    report = Report("sgd", "step", items, {"L1": "step"}, compared=3, expected_failures={},
                    notes=[f"note {k}." for k in range(10)])
    lines = str(report).splitlines()
    assert [x for x in lines if x.startswith("note ")] == [f"note {k}." for k in range(8)]
    assert sum(line.startswith("L1 step, float32, in 'case ") for line in lines) == 20 and "and 3 more" in lines
    assert {f"note {k}." for k in range(10)} < {*report.details().splitlines()}


def test_json_has_infinity_as_text():
    items = [Item("L1", "float32", "x", "failed", ratio=x) for x in (math.inf, math.nan, 2.0)]
    report = Report("sgd", "step", items, {"L1": "step"}, compared=3, expected_failures={})
    read = json.loads(report.to_json(), parse_constant=pytest.fail)
    assert [item["ratio"] for item in read["items"]] == ["inf", "nan", 2.0]


@pytest.mark.parametrize(("share", "text"), [(1, "100 %"), (1 - 1e-6, "99.9 %"), (0.5, "50 %"), (0.0123, "1.23 %")])
def test_only_all_of_it_is_a_hundred_percent(share, text):
    assert percent(share) == text


def test_a_cause_has_five_reasons_of_300_characters():
    assert len(why(tuple((f"reason {k}", 0.5) for k in range(7)))) == 5
    assert why(()) == [f"  why: {NONE}"] and why(None) == []
    assert short("x" * 300) == "x" * 300 and short("word " * 61) == "word " * 59 + "..."
    assert some(list("abcdef")) == "a; b; c; d and 2 more" and some(list("abcd")) == "a; b; c; d"
