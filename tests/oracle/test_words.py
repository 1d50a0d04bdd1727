"""A right report has no words of failure."""

import pytest

from refopt import oracle
from refopt.oracle.item import Item
from refopt.oracle.report import Report


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


@pytest.mark.parametrize(("skipped", "allowed", "share"), [
    (1, [], None), (2, [], 0.4), (2, ["L4"], None), (2, ["L2"], 0.4)])
def test_a_fifth_of_a_laws_cases_may_be_skipped_or_any_that_are_allowed(skipped, allowed, share):
    items = [Item("L1", "float32", "x", "passed")]
    items += [Item("L4", "float32", "y", "skipped" if k < skipped else "passed") for k in range(5)]
    report = Report("sgd", "step", items, {"L1": "step", "L4": "layouts"}, compared=3, expected_failures={},
                    dtypes=["float32"], allow_skips=allowed)
    assert report.unheld == ({} if share is None else {"L4": share}) and report.ok == (share is None)
