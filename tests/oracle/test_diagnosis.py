"""Planted bugs are found, and the diagnosis names them."""

import re
import time

import numpy as np
import pytest

from oracle.bugs import BUGS, with_bug
from refopt import cpu, oracle
from refopt.catalog import ROUTINES
from refopt.oracle.bound.evaluate import PRIMITIVES, rebound
from refopt.oracle.diagnosis import edits, operands
from refopt.oracle.diagnosis.explain import NO_RULE, Explainer
from refopt.oracle.diagnosis.hypotheses import base_rule, named
from refopt.oracle.diagnosis.situation import Unanswered
from refopt.oracle.subject import Function
from refopt.oracle.trial import Trial
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


@pytest.mark.parametrize("routine", ROUTINES)
def test_hypotheses_do_not_break(routine):
    """What they raise has a reason: a state that does not matter, or a changed rule that is none any more."""
    row = ROUTINES[routine]
    trial = Trial(row, Function(row, getattr(cpu, row.merged_name)), "float32", 0, {})
    optional = [slot.name for slot in row.slots if slot.optional and slot.name != "master_params"]
    case = trial.case([40], count=3, optional=optional)
    explainer = Explainer(trial, [(case, 0)], [])
    tensor, broken, changes = explainer.right[0], {}, [*edits.of_rule(row), *operands.of_rule(row)]
    hypotheses = [*named(row), *changes[:: max(1, len(changes) // 400)]]
    for hypothesis in hypotheses:
        changed = explainer._changed(tensor, (hypothesis,))
        for way in (changed.plain, changed.expected) if changed else ():
            try:
                with np.errstate(all="ignore"):
                    way()
            except Exception as error:
                broken[hypothesis.name, hypothesis.kind] = error
    for (name, kind), error in broken.items():
        if kind == "edit":
            assert isinstance(error, NO_RULE), (name, error)
        else:
            assert isinstance(error, Unanswered), (name, error)
            assert str(error) == "the old state does not matter", name
    assert len(broken) < len(hypotheses) / 4


def random_changes(p, g, v, mu, seed):
    """Something that nobody would write."""
    r = np.random.default_rng(seed).uniform(0.2, 0.8, 3)
    v[...] = mu * v + np.cos(g * r[0]) * g + np.sin(r[1] + p) * r[2]
    return v * (1 + r[0] * g * g) + np.tanh(p) * r[2]


@pytest.mark.parametrize("seed", range(3))
def test_unrelated_changes_get_no_name(seed):
    def step(params, grads, velocities, *, lr, mu):
        for p, g, v in zip(params, grads, velocities, strict=True):
            p -= (lr * random_changes(p, g, v, mu, seed)).astype(p.dtype)

    assert all(share < 0.9995 for _, share in why(oracle.check("momentum", step, **NAMED)))


# By routine, two steps that take long to explain, and are wrong in large tensors as well.
SLOW = [
    ("adamw", "p -= real(lr / first) * m / denominator", "p -= real(lr / first) * np.tanh(m * 3) / denominator"),
    ("lamb", "p -= real(lr) * ratio * r", "p -= real(lr) * np.tanh(ratio) * r"),
    ("lars_momentum", "local * (g + wd * p)", "np.sin(local) * (g + wd * p)"),
    ("lars_momentum", "np.linalg.norm(g.ravel())", "np.linalg.norm(g.ravel()[:65536])"),
    ("novograd", "np.sqrt(v) + real(epsilon)", "np.sqrt(v) + np.tanh(v)"),
    ("momentum", "v += g", "v += np.tanh(g)"),
]


@pytest.mark.slow
@pytest.mark.parametrize(("routine", "old", "new"), SLOW)
def test_a_verdict_is_soon_there(routine, old, new):
    """In seconds of this thread's: a routine in fp32, right or wrong; other work and BLAS's threads do not count."""
    text, _ = BUGS[routine]
    assert old in text
    names = {"np": np}
    exec(text.replace(old, new), names)
    started = time.thread_time()
    assert not oracle.check(routine, names["step"], dtypes=["float32"]).ok
    assert time.thread_time() - started < 20  # as 20 s would be too long, and 10 s are asked of a quiet machine


def test_the_first_error_is_the_worst_over_its_bound():
    report = oracle.check("sgd", with_sign, dtypes=["float32"], laws=["L1"])
    lines = str(report).splitlines()
    order = [next(i for i, line in enumerate(lines) if text in line) for text in
             ("times the bound", "smallest example", "  where: ", "  why: ", "  again: ")]  # fmt: skip
    assert order == sorted(order)


def with_sign(params, grads, *, lr):
    for p, g in zip(params, grads, strict=True):
        p -= lr * np.sign(g)
