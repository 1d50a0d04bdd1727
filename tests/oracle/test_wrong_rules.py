"""Formulas that are wrong in one place: each is found."""

import functools

import numpy as np
import pytest

from refopt import cpu, oracle
from refopt.catalog import KNOWN, ROUTINES
from refopt.cpu.adam import descend
from refopt.cpu.merged import merged
from refopt.oracle import shrink
from refopt.oracle.source import rewritten, substituted
from refopt.oracle.wrong import OF, Wrong


def step_of(routine, rule, **built_in):
    row = KNOWN[routine]

    @functools.wraps(getattr(cpu, row.merged_name))
    def step(*lists, grad_factor=None, found_inf=None, **named):
        slots = dict(zip((slot.name for slot in row.slots if not slot.optional), lists, strict=True))
        slots |= {slot.name: named.pop(slot.name, None) for slot in row.slots if slot.optional}
        numbers, own = row.parted(named | built_in)
        merged(row, rule, slots, numbers, grad_factor, found_inf, own)

    return step


@pytest.mark.parametrize("routine", [
    pytest.param(x, marks=[pytest.mark.slow] * (x not in ("sgd", "lion", "lars_momentum", "novograd"))) for x in OF])
def test_wrong_formulas_are_found(routine, monkeypatch):
    """By far, or where the bound is one of random roundings by much; nobody asks for the smallest example."""
    far = 5 if KNOWN[routine].matrix_arguments else 20
    monkeypatch.setattr(shrink.Search, "run", lambda search, until: None)
    for name, wrong in OF[routine].items():
        rule = wrong.of(KNOWN[routine].rule)
        named = dict(dtypes=["float32"], laws=["L1"], examples=0, diagnose=False, process=False)
        built_in = {"restarts": (2,), "compute": "float16"} if wrong.needs else {}
        report = oracle.check(routine, step_of(routine, rule, **built_in), set=built_in, **named)
        assert report.failed_laws == ["L1"], f"{name}: {report}"
        assert max(item.ratio or far for item in report.of("failed")) >= far, f"{name}: {report}"


def test_text_that_is_nowhere_is_refused():
    with pytest.raises(ValueError, match=r"sgd: expected 'p \+ lr \* g' in the source of its rule, got none"):
        rewritten(ROUTINES["sgd"].rule, {"p - lr * g": "p + 2 * lr * g", "p + lr * g": "p"})


def test_a_rule_is_rewritten_in_what_it_calls_and_nowhere_else():
    """Names that its module lacks may be told; the functions that others call stay as they are."""
    row, states = ROUTINES["sgd"], (np.ones(2), np.ones(2))
    numbers = dict(lr=0.5, l2_decay=0.0, maximize=False)
    twice = rewritten(row.rule, {"p - lr * g": "p - factor * lr * g"}, factor=2)
    assert twice(*states, **numbers)[0].tolist() == [0, 0] and row.rule(*states, **numbers)[0].tolist() == [0.5, 0.5]
    uphill = Wrong("uphill", lambda p, g, **_: (p + g,))
    assert uphill.of(row.rule)(*states)[0].tolist() == [2, 2]


def test_what_is_in_place_of_a_function_may_call_that():
    """By way of another one, too: it is not put in its own place again."""
    rule, update = ROUTINES["adam"].rule, ROUTINES["adam"].rule.__globals__["update"]
    changed = substituted(rule, {descend: rule})
    inner = changed.__globals__["update"].__globals__["descend"]
    assert inner.__code__ is rule.__code__ and inner.__globals__["update"] is update


def test_a_parameter_that_a_tie_rounds_towards_zero_is_found():
    """Of ties, every second one has an even neighbour there."""

    def step(params, grads, *, lr, l2_decay, rescale_grad, master_params):
        numbers = dict(lr=lr, l2_decay=l2_decay, rescale_grad=rescale_grad)
        cpu.merged_sgd(params, grads, master_params=master_params, **numbers)
        for p, m in zip(params, master_params, strict=True):
            down = np.nextafter(p, np.float16(0))
            p[...] = np.where((abs(p) > abs(m)) & (p - m == m - down), down, p)

    report = oracle.check("sgd", step, dtypes=["float16"], laws=["L11"], diagnose=False, process=False)
    assert [item.label for item in report.of("failed")] == ["masters halfway between two parameters"]
