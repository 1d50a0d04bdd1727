"""Defects of implementations, planted one at a time: each is found by the law that is about it."""

import numpy as np
import pytest

from oracle.planted import PLANTED
from oracle.steps import adamw_in_pytorchs_order
from refopt import oracle

NAMES = [step.__name__ for *_, step in PLANTED]


def test_there_are_many():
    assert len(set(NAMES)) == len(PLANTED) >= 35
    assert {law for law, *_ in PLANTED} >= {f"L{k}" for k in range(1, 18)} - {"L18"}


@pytest.mark.parametrize(("law", "routine", "dtype", "clean", "step"), PLANTED, ids=NAMES)
def test_a_defect_is_found(law, routine, dtype, clean, step):
    """In its own law, which says where; the step law holds where the defect has nothing to do with it."""
    report = oracle.check(routine, step, dtypes=[dtype], laws={"L1", law}, examples=0, diagnose=False)
    assert law in report.failed_laws, str(report)
    assert report.failed_laws == (["L1", law] if not clean and law != "L1" and "L1" in report.failed_laws else [law])
    assert not report.ok and f"{law} " in str(report) and step.__name__ in str(report).splitlines()[0]


def test_the_smallest_example_is_small():
    """One tensor for what a tensor shows, as many as it takes for what is in their number."""
    by_name = dict(zip(NAMES, PLANTED, strict=True))
    *_, step = by_name["tensors_after_the_110th_dropped"]
    report = oracle.check("adamw", step, dtypes=["float32"], laws=["L3"])
    assert "smallest example: 111 tensors" in str(report)
    *_, step = by_name["only_the_first_row"]
    report = oracle.check("momentum", step, dtypes=["float32"], laws=["L4"])
    assert "smallest example: 1 tensor of" in str(report)


def test_bits_are_compared_by_request():
    report = oracle.check("adamw", adamw_in_pytorchs_order, dtypes=["float32"], laws=["L1", "L18"])
    assert report.failed_laws == ["L18"]
    assert "L18" not in oracle.check("adamw", adamw_in_pytorchs_order, dtypes=["bfloat16"], examples=0).laws


def test_flushing_may_be_declared():
    *_, step = dict(zip(NAMES, PLANTED, strict=True))["subnormal_numbers_are_flushed"]
    named = dict(dtypes=["float32"], laws=["L1", "L7"])
    assert oracle.check("sgd", step, **named).failed_laws == ["L7"]
    assert oracle.check("sgd", step, **named, set={"flush_to_zero": True}).ok
    assert np.float32(1e-40) != 0
