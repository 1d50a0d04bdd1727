"""The smallest example of a failure: how long it is looked for, what is rounded, and what of it is shown."""

import functools
import math

import numpy as np
import pytest

from refopt.catalog import ROUTINES
from refopt.oracle import shrink
from refopt.oracle.broken import Broken, Crashed, Misconduct, Where
from refopt.oracle.cases import alike, draw


def case_of(*shapes, count=1):
    numbers = {"lr": 0.5, "l2_decay": 0.0, "rescale_grad": 1.0}
    return draw(ROUTINES["sgd"], shapes, [alike("float32")] * len(shapes), seed=1, numbers=numbers, choices={},
                count=count)


def broken(ratio=4.0, error=0.01):
    return Broken("wrong", ratio, Where("params", 0, 0, 1 / 3, error, 0.1, np.ones(1, bool)))


def test_a_law_is_tried_150_times(monkeypatch):
    monkeypatch.setattr(shrink, "SECONDS", 600.0)
    tried = []
    search = shrink.Search(case_of(*[(16,)] * 200), tried.append, broken())
    search.smaller(math.inf)
    assert len(tried) == 150 and len(search.case) == 200


def test_a_smaller_case_breaks_the_law_in_the_same_way():
    """Two tensors with wrong numbers; one alone ends in an error, which is another failure."""
    def holds(case):
        raise broken() if len(case) > 1 else Misconduct("expected two tensors")

    search = shrink.Search(case_of((16,), (16,)), holds, broken())
    search.run(math.inf)
    assert len(search.case) == 2 and search.broken.kind == ""


@pytest.mark.parametrize(("size", "count", "tries"), [(16, 1, 0), (16, 1, 1), (1, 1, 0), (16, 9, 0)])
def test_where_a_smaller_case_ends_its_process_the_last_one_is_shown(size, count, tries):
    """One of fewer elements, of rounded numbers or of an earlier step."""
    broke = []

    def holds(case):
        if len(broke) == tries:
            raise Crashed("the process ended")
        broke.append(case)
        raise broken()

    case = case_of((size,), count=count)
    search = shrink.Search(case, holds, broken())
    search.run(math.inf)
    assert search.case is [case, *broke][-1] and search.broken.kind == "" and search.since is None
    assert (search.case.params[0].size < size) == tries


def test_scalars_of_the_step_are_those_of_its_number():
    """At every step that is tried, and where numbers are rounded."""
    seen = {}
    numbers = {"lr": 0.5, "beta1": 0.875, "beta2": 0.75, "epsilon": 0.5}
    make = functools.partial(draw, ROUTINES["adam"], [(1,)], [alike("float32")], seed=1, numbers=numbers, choices={})

    def holds(case):
        seen[case.count] = [case.slots[name][0].item() for name in ("beta1_pow", "beta2_pow")]
        if case.count >= 5:
            raise broken()

    shrink.Search(make(count=9), holds, broken()).run(math.inf)
    assert len(seen) > 2
    for count, scalars in seen.items():
        assert scalars == [make(count=count).slots[name][0].item() for name in ("beta1_pow", "beta2_pow")]


@pytest.mark.parametrize(("ratio", "rounded"), [(1.9, False), (2.1, True)])
def test_numbers_are_rounded_where_the_error_is_still_twice_the_bound(ratio, rounded):
    case = case_of((1,))

    def holds(rounder):
        raise broken(ratio)

    search = shrink.Search(case, holds, broken())
    search.run(math.inf)
    found = search.case
    assert (found is not case) == rounded and search.broken.ratio == (ratio if rounded else 4.0)
    assert not rounded or set(np.abs(np.frexp([found.params[0], found.grads[0]])[0]).ravel()) == {0.5}


@pytest.mark.parametrize(("count", "since"), [(4096, 700), (4097, None)])
def test_the_first_wrong_step_is_looked_for_among_4096(count, since):
    def holds(case):
        if case.count >= 700:
            raise broken()

    search = shrink.Search(case_of((1,)).replace(count=count), holds, broken())
    search.first_step()
    assert search.since == since and search.case.count == (since or count)


def test_six_shapes_are_shown():
    shown = shrink.shown(case_of(*[(2, k) for k in range(1, 9)]), broken())
    told = ", ".join(f"params[{k}] of shape (2, {k + 1})" for k in range(6))
    assert f"    {told}, ...\n" in shown and "params[6]" not in shown


@pytest.mark.parametrize(("error", "numbers"), [
    (3e-11, "expected 0.33333333333333331 within 3e-11, got 0.10000000000000001"),
    (4e-11, "expected 0.333333333 within 4e-11, got 0.1")])
def test_a_number_has_as_many_digits_as_its_bound_asks_for(error, numbers):
    assert shrink.told(broken(error=error)) == f"params[0], element 0 of 1: {numbers}: 4 times the bound"
