"""Planted bugs are found, and the diagnosis names them."""

import re

import numpy as np
import pytest
from oracle.bugs import BUGS, with_bug

from refopt import oracle
from refopt.catalog import ROUTINES
from refopt.oracle.bound.evaluate import PRIMITIVES, rebound
from refopt.oracle.diagnosis import edits
from refopt.oracle.diagnosis.hypotheses import base_rule, named
from refopt.oracle.wrong import OF

NAMED = dict(dtypes=["float32"], laws=["L1"], examples=0)


def why(report):
    """The reasons of the first failure that any were looked for."""
    return next(item.reasons for item in report.items if item.reasons is not None)


@pytest.mark.parametrize("routine", BUGS)
def test_without_a_bug_a_step_is_right(routine):
    report = oracle.check(routine, with_bug(routine, ""), **NAMED)
    assert report.ok, str(report)


# Each takes seconds: make test names every third, make test-long all of them.
CASES = [
    pytest.param(routine, name, id=f"{routine}: {name}", marks=pytest.mark.slow if k % 3 else ())
    for routine, (_, bugs) in BUGS.items() for k, name in enumerate(bugs)
]  # fmt: skip


@pytest.mark.parametrize(("routine", "name"), CASES)
def test_a_bug_is_named(routine, name):
    report = oracle.check(routine, with_bug(routine, name), **NAMED)
    assert report.failed_laws == ["L1"]
    reasons = why(report)
    wanted = BUGS[routine][1][name].reason
    assert any(share >= 0.99 and re.search(wanted, reason) for reason, share in reasons), reasons
    assert reasons[0][0] in str(report)


def test_nothing_is_made_up():
    """What no hypothesis says is explained by none."""

    def step(params, grads, *, lr, l2_decay):
        for p, g in zip(params, grads, strict=True):
            p -= lr * (g + l2_decay * p) + p.dtype.type(0.001) * np.sin(37 * g).astype(p.dtype)

    report = oracle.check("sgd", step, **NAMED)
    assert why(report) == () and "why: none of the hypotheses explains it" in str(report)


def test_a_part_that_is_explained_has_its_share():
    """Half of the elements by one mistake, the others by another."""

    def step(params, grads, *, lr, l2_decay):
        for p, g in zip(params, grads, strict=True):
            half = p.size // 2
            p[:half] -= lr * g[:half]
            p[half:] += lr * (g[half:] + l2_decay * p[half:]) * 3

    ((reason, share), *_) = why(oracle.check("sgd", step, dtypes=["float32"], laws=["L1"], examples=0))
    assert reason in ("no L2 decay", "l2_decay ignored: taken as 0") and 0.3 < share < 0.55


def test_a_tail_apart_from_a_wrong_formula():
    """Elements that no step was taken for are a pattern; what is wrong with the others is explained."""

    def step(params, grads, velocities, *, lr, mu):
        for p, g, v in zip(params, grads, velocities, strict=True):
            k = p.size // 16 * 16
            v[:k] = mu * v[:k] + (1 - mu) * g[:k]
            p[:k] -= lr * v[:k]

    report = oracle.check("momentum", step, dtypes=["float32"], laws=["L1"], examples=0)
    assert why(report)[0] == ("gradient dampened by 1 - mu, the decay not", 1.0)
    assert "the last 12 of 300 elements, a tail after whole blocks of 16 or 32: unchanged" in str(report)


def test_a_narrow_dtype_is_explained_by_what_is_known():
    """16-bit arithmetic beside the mistake that was found in fp32."""
    report = oracle.check("momentum", with_bug("momentum", "dampened"), dtypes=["float32", "float16"], laws=["L1"])
    last = [item.reasons for item in report.items if item.dtype == "float16" and item.reasons is not None]
    assert any("dampened" in reason for reason, share in last[0] if share >= 0.99), last


def test_the_gradient_of_another_tensor():
    def step(params, grads, *, lr, l2_decay):
        for i, p in enumerate(params):
            p -= lr * (grads[max(i - 1, 0)] + l2_decay * p) if grads[max(i - 1, 0)].shape == p.shape else 0

    named = dict(dtypes=["float32"], laws=["L3"])
    report = oracle.check("sgd", step, **named)
    assert report.failed_laws == ["L3"]


@pytest.mark.parametrize("routine", ROUTINES)
def test_hypotheses_can_be_evaluated(routine):
    """Each named wrong rule runs over bounded numbers, and the names differ."""
    row = ROUTINES[routine]
    names = [hypothesis.name for hypothesis in named(row)]
    assert len(names) > 50 and len(set(names)) >= len(names) - 3
    assert len(edits.of_rule(row)) > 20
    for wrong in OF[routine].values():
        if wrong.name:
            assert rebound(wrong.rule) is not None and wrong.rule not in PRIMITIVES
    assert callable(base_rule(row))


def test_the_first_error_is_the_worst_over_its_bound():
    report = oracle.check("sgd", with_sign, dtypes=["float32"], laws=["L1"])
    lines = str(report).splitlines()
    order = [next(i for i, line in enumerate(lines) if text in line) for text in
             ("times the bound", "smallest example", "  where: ", "  why: ", "  again: ")]  # fmt: skip
    assert order == sorted(order)


def with_sign(params, grads, *, lr):
    for p, g in zip(params, grads, strict=True):
        p -= lr * np.sign(g)
