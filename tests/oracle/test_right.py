"""Right steps pass, whatever order of operations they have."""

import pytest
from oracle.steps import RIGHT

from refopt import cpu, oracle
from refopt.catalog import ROUTINES

pytestmark = pytest.mark.clause("N13")


@pytest.mark.parametrize("routine", ROUTINES)
def test_the_reference_is_right(routine):
    """In every dtype; nothing is skipped, and nothing is without a bound but what cannot have one."""
    report = oracle.check(routine, getattr(cpu, f"merged_{routine}"))
    assert report.ok, str(report)
    assert not report.of("skipped") and report.unbounded < report.compared / 100
    assert report.compared > 20000
    for dtype in ("float32", "float64"):
        assert 0.125 < max(report.largest[dtype].values()) < 0.75


ORDERS = [pytest.param(routine, step, id=step.__qualname__) for routine, steps in RIGHT.items() for step in steps]


@pytest.mark.parametrize(("routine", "step"), ORDERS)
def test_other_orders_are_right(routine, step):
    report = oracle.check(routine, step)
    assert report.ok, str(report)
    assert report.step_compared and 0.1 < report.largest["float32"]["params"] <= 1
    assert all(item.status == "skipped" for item in report.items if item.dtype in ("float16", "bfloat16"))

