"""Right steps pass, whatever order of operations they have."""

import pytest

from oracle.bugs import TEXTS, step_of
from refopt import cpu, oracle
from refopt.catalog import ROUTINES
from refopt.oracle.laws import LAWS

pytestmark = pytest.mark.clause("N13")


# One elementwise routine that carries no scalars, one that does, and two with norms; make test-long has all, and bf16.
OFTEN = "sgd", "adamw", "lars_momentum", "novograd"
ALL = [pytest.param(routine, marks=[pytest.mark.slow] * (routine not in OFTEN)) for routine in ROUTINES]


@pytest.mark.parametrize("dtype", ["float32", pytest.param("bfloat16", marks=pytest.mark.slow)])
@pytest.mark.parametrize("routine", ALL)
def test_the_reference_is_right(routine, dtype):
    """Nothing is skipped, nothing is without a bound but what cannot have one, and the bound is no wide one."""
    report = oracle.check(routine, getattr(cpu, f"merged_{routine}"), dtypes=[dtype])
    assert report.ok, str(report)
    assert not report.of("skipped") and report.unbounded < report.compared / 1000
    assert report.compared > 5 * 10**5 and list(report.laws) == [law for law in LAWS if law != "L18"]
    # NAdam's comes nearest, where beta1 is near 1.
    assert dtype != "float32" or 0.1 < report.largest[dtype]["params"] < (1 if routine == "nadam" else 0.75)


@pytest.mark.parametrize(
    "laws", [["L1", "L7", "L10", "L11"], pytest.param(["L1", "L3"], marks=pytest.mark.slow)], ids=" ".join
)
@pytest.mark.parametrize("routine", ALL)
def test_it_is_right_in_other_precisions(routine, laws):
    report = oracle.check(routine, getattr(cpu, f"merged_{routine}"), dtypes=["float64", "float16"], laws=laws)
    assert report.ok, str(report)
    assert not report.of("skipped") and 0.1 < report.largest["float64"]["params"] < 0.75


@pytest.mark.parametrize("laws", [["L1", "L4"], pytest.param(None, marks=pytest.mark.slow)], ids=str)
@pytest.mark.parametrize("routine", TEXTS)
def test_other_orders_are_right(routine, laws):
    """Of steps that somebody may write, by loops over tensors."""
    report = oracle.check(routine, step_of(routine, {}), dtypes=["float32", "float64"], laws=laws)
    assert report.ok, str(report)
    assert report.step_compared and 0.05 < report.largest["float32"]["params"] <= 1
