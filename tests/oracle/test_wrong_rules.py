"""Formulas that are wrong in one place: each is found, but for those that only round in another way."""

import functools

import numpy as np
import pytest

from refopt import cpu, oracle
from refopt.catalog import KNOWN
from refopt.cpu.merged import merged
from refopt.oracle import shrink
from refopt.oracle.wrong import RULES

# The same formula in another order of operations, or with another convention for -0 or for NaN in a norm.
RIGHT = {"sgd": {"DecayDecoupled", "Distributed"}, "adam": {"SquareFirst", "StepRegrouped"},
         "adamw": {"DecaySubtracted"}, "adagrad": {"StepRegrouped", "TimesTheReciprocal"},
         "rmsprop": {"SquareFirst", "VarianceClamped", "StepRegrouped"},
         "lion": {"SignOfZeroIsPlusZero", "DecaySubtracted"},
         "adadelta": {"RootsDivided", "SquareFirst", "StepRegrouped"}, "adamax": {"NormTakesNan", "NormLosesNan"},
         "radam": {"ThresholdReached"},
         "lamb": {"RootsDivided", "StepPrepared", "SumByNumPy", "SumInIndexOrder", "StepRegrouped"},
         "novograd": {"TimesTheReciprocal", "SumByNumPy", "SumInIndexOrder"}, "muon": {"DecaySubtracted"}}


def step_of(routine, rule):
    row = KNOWN[routine]

    @functools.wraps(getattr(cpu, row.merged_name))
    def step(*lists, grad_factor=None, found_inf=None, **named):
        slots = dict(zip((slot.name for slot in row.slots if not slot.optional), lists, strict=True))
        slots |= {slot.name: named.pop(slot.name, None) for slot in row.slots if slot.optional}
        merged(row, rule, slots, named, grad_factor, found_inf)

    return step


@pytest.mark.parametrize("routine", [
    pytest.param(x, marks=[pytest.mark.slow] * (x not in ("sgd", "lion", "lars_momentum", "novograd"))) for x in RULES])
def test_wrong_formulas_are_found(routine, monkeypatch):
    """By far, or where the bound is one of random roundings by much; nobody asks for the smallest example."""
    far = 5 if KNOWN[routine].shaped else 20
    monkeypatch.setattr(shrink, "smallest", lambda case, holds, broken, until: (case, broken))
    for name, rule in RULES[routine].items():
        laws = ["L6"] if name == "NanTakenForZero" else ["L1"]
        named = dict(dtypes=["float32"], laws={"L1", *laws}, examples=0, diagnose=False, process=False)
        report = oracle.check(routine, step_of(routine, rule), **named)
        assert report.failed_laws == ([] if name in RIGHT.get(routine, ()) else laws), f"{name}: {report}"
        largest = max((item.ratio or far for item in report.of("failed")), default=far)
        assert largest >= far, f"{name}: {report}"


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
