"""L17 and L18: a bit that is another in one call of many, or in one tensor of several, breaks the case that has it."""

import collections
import itertools
from types import SimpleNamespace

import numpy as np
import pytest

from refopt import cpu, oracle
from refopt.catalog import ROUTINES
from refopt.oracle.subjects.function import Function


def one_unit_up(x):
    x.reshape(-1)[-1] = np.nextafter(x.reshape(-1)[-1], np.float32(9))


@pytest.mark.parametrize(("elements", "call", "label"), [
    (45, 15, "the same steps, five times"), (100_003, 9, "a large tensor"), (45, 20, "two runs that take turns")])
def test_one_call_of_many(elements, call, label):
    """The last of five times three steps, of three times three, and of three that take turns with another run's."""
    calls = collections.Counter()

    def step(params, grads, *, lr):
        calls[params[0].size, len(params) > 2] += 1
        for p, g in zip(params, grads, strict=True):
            p -= lr * np.sign(g)
        if params[0].size == elements and calls[elements, elements == 45] == call:
            one_unit_up(params[-1])

    report = oracle.check(None, step, laws=["L17"], dtypes=["float32"], process=False)
    assert [item.label for item in report.of("failed")] == [label]


@pytest.mark.parametrize("size", [1, 300, 2100])
def test_one_tensor_of_several(size):
    """Of one element, of less than a tile, and of more."""

    def step(params, grads, **numbers):
        cpu.merged_sgd(params, grads, **numbers)
        for p in params:
            if p.size == size:
                one_unit_up(p)

    report = oracle.check("sgd", step, laws=["L18"], exact=True, dtypes=["float32"], diagnose=False, process=False)
    assert {"step 1", "step 2", "step 7"} <= {item.label for item in report.of("failed")}


def plain(params, grads, *, lr, l2_decay=0.0):
    for p, g in zip(params, grads, strict=True):
        p -= lr * g


def test_a_list_that_is_compiled_has_no_more_than_111_tensors():
    step = Function(None, plain)
    step.recompiled = True
    report = oracle.check(None, step, laws=["L3"], dtypes=["float32"], process=False)
    counts = [int(item.label.split()[0]) for item in report.items if item.label.endswith("0 tensors")]
    assert report.ok and counts == [0, 60, 110] and "111 tensors" in {item.label for item in report.items}


def test_what_has_no_runs_is_called_five_times():
    """With the same case, as a subject of no more than cases is."""
    subject = Function(ROUTINES["sgd"], plain)
    cases = SimpleNamespace(calls=0, name="of cases", takes=subject.takes)

    def run(case):
        cases.calls += 1
        return subject.run(case)

    cases.run = run
    report = oracle.check("sgd", cases, laws=["L17"], dtypes=["float32"], process=False, set={"l2_decay": 0.0})
    assert {item.label for item in report.of("passed")} == {"the same step, five times"} and cases.calls == 5


def by_chance(random, too_often=0.0):
    """The report on a step that rounds up where ``random(seed, shape)`` is below the fraction and ``too_often``."""

    def step(params, grads, *, lr, rounding="nearest", seed=0):
        for p, g in zip(params, grads, strict=True):
            exact = p.astype(np.float32) - np.float32(lr) * g
            low = (exact.view(np.uint32) & 0xFFFF0000).view(np.float32)
            unit = np.spacing(low.astype(p.dtype)).astype(np.float32)
            low = np.where(exact < low, low - abs(unit), low)
            up = random(seed, p.shape) < (exact - low) / abs(unit) + too_often
            p[...] = np.where(up & (exact != low), low + abs(unit), low)

    named = dict(laws=["L13"], dtypes=["bfloat16"], diagnose=False, process=False)
    return oracle.check("sgd", step, set={"l2_decay": 0.0}, **named)


CALLS = itertools.count()


def seeded(seed, shape):
    return np.random.default_rng(seed).random(shape)


@pytest.mark.parametrize(("too_often", "found"), [(0.009, False), (0.03, True)])
def test_rounding_by_chance_has_a_mean_within_six_deviations(too_often, found):
    """Of 20,000 numbers that are rounded up too often, by this share."""
    report = by_chance(seeded, too_often)
    assert ("unbiased" in {item.label for item in report.of("failed")}) == found, str(report)
    assert {"unbiased", "another seed"} - {item.label for item in report.of("failed")} <= {
        item.label for item in report.of("passed")}


@pytest.mark.parametrize(("random", "words"), [
    (lambda seed, shape: seeded(0, shape), "other bits with another seed, got the same"),
    (lambda seed, shape: seeded((seed, next(CALLS)), shape), "the same bits with the same seed, got others")])
def test_chance_follows_from_the_seed(random, words):
    assert words in str(by_chance(random))
