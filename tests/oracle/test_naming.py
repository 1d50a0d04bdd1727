"""Bugs that were written before anybody knew what hypotheses there would be: how many of them are named.

When they were written, 32 of the 60 of the first set were named by the hypotheses of that time, 28 of the 40 of the
second one by those that were made for the first, 16 of the 25 of the third by those for both. Beside each is what names
it today; nothing, if nothing does.
"""

import numpy as np
import pytest

from oracle.bugs_more import FIRST, SECOND_SET, THIRD_SET, replaced
from refopt import oracle

SETS = {"first": FIRST, "second": SECOND_SET, "third": THIRD_SET}
ALL = [
    (f"{of}, {routine}: {name}", routine, text, reason, changes)
    for of, routines in SETS.items() for routine, (text, bugs) in routines.items()
    for name, (reason, changes) in bugs.items()
]  # fmt: skip


def step_of(text, changes):
    names = {"np": np}
    exec(replaced(text, changes), names)
    return names["step"]


def test_most_have_a_name():
    named = [bool(reason) for *_, reason, _ in ALL]
    assert len(ALL) >= 120 and sum(named) >= 0.9 * len(ALL)


@pytest.mark.parametrize(
    ("routine", "text", "reason", "changes"),
    [pytest.param(*x, id=label, marks=pytest.mark.slow if k % 8 else ()) for k, (label, *x) in enumerate(ALL)],
)
def test_it_is_named(routine, text, reason, changes):
    """Among the first reasons; lost elements are named by the pattern, which the reason refers to."""
    between = "tensor" in reason or any(text in str(changes) for text in ("enumerate", "last = None"))
    laws = ["L1", "L3"] if between else ["L1"]  # of one tensor, and of several
    report = oracle.check(routine, step_of(text, changes), dtypes=["float32"], laws=laws, examples=0)
    assert not report.ok
    item = next(item for item in report.items if item.reasons is not None)
    full = [text for text, share in item.reasons if share >= 0.9995][:5]
    assert not reason or reason in full, item.reasons
