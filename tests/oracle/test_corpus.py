"""The causes of planted bugs are true, and a report is a page."""

from collections import Counter

import numpy as np
import pytest

from oracle.bugs import DECAY, SECOND_SET, step_of
from oracle.corpus import NEW, PLANTED, headline, held, verdict
from refopt import cpu, oracle
from refopt.catalog import ROUTINES
from refopt.cli.check import readable
from refopt.oracle import shrink
from refopt.oracle.diagnosis import explain
from refopt.oracle.diagnosis.situation import Hypothesis
from refopt.oracle.subjects.function import Function
from refopt.oracle.trial import Trial

BY_NAME = {planted.name: planted for planted in PLANTED}
FAST = ["index of 16 bits", "states of the gradient"]


def test_there_are_enough():
    assert len(BY_NAME) == len(PLANTED) >= 60 and NEW.keys() <= BY_NAME.keys()


@pytest.mark.parametrize("name", [pytest.param(x, marks=[pytest.mark.slow] * (x not in FAST)) for x in [
    *NEW, *(x for x in FAST if x not in NEW)]])
def test_a_cause_is_true(name):
    """For each kind of cause a bug that nothing else explains: what comes to the same is of that kind."""
    report = held(BY_NAME[name])
    assert verdict(BY_NAME[name], report) == "true", str(report)
    assert all(0 < cause.share <= 1 for cause in report.causes), report.causes
    assert len(readable(report).splitlines()) <= 45


@pytest.mark.slow
def test_nine_in_ten_are_true():
    """With those above, which are."""
    found = Counter(verdict(planted, held(planted)) for planted in PLANTED if planted.name not in NEW)
    assert found["true"] + len(NEW) >= 0.9 * len(PLANTED) and found["false"] <= len(PLANTED) / 60, found


without_decay = step_of("adamw", {DECAY: "pass"})


@pytest.mark.parametrize("laws", [["L1"], ["L4"], ["L2", "L16"]])
def test_a_cause_does_not_depend_on_the_law(laws):
    report = oracle.check("adamw", without_decay, dtypes=["float32"], laws=laws, process=False)
    assert headline(report) == ("coeff ignored: taken as 0", True), str(report)


def adamw_scaled(factor):
    return step_of("adamw", {"p -= real(lr / first)": f"p -= real({factor!r}) * real(lr / first)"})


@pytest.mark.parametrize(("factor", "ok"), [
    (1.0, True), (1 + 4e-6, False), pytest.param(1 - 4e-6, False, marks=pytest.mark.slow)])
def test_a_factor_of_a_few_ulps_shows_and_has_no_false_cause(factor, ok):
    report = oracle.check("adamw", adamw_scaled(factor), dtypes=["float32"], laws=["L1"], process=False)
    assert report.ok is ok and "\ncause: " not in str(report), str(report)


def test_betas_that_are_captured_are_told_by_a_schedule_alone():
    report = held(BY_NAME["betas of the first call"], laws=["L16"])
    assert "cause: beta1 and beta2 of the first call in every later one" in str(report), str(report)


def test_the_first_wrong_step_is_told(monkeypatch):
    monkeypatch.setattr(shrink, "SECONDS", 60.0)
    report = held(BY_NAME["counter in bf16"], laws=["L16"])
    assert "bias correction sticks at step 256, as a counter in bfloat16 does" in str(report)
    assert "step 257, the first that is wrong: step 256 is right" in str(report)


def test_the_cause_has_the_first_wrong_step():
    step = step_of("adamw", SECOND_SET["adamw"]["correction of ten steps alone"][0])
    report = oracle.check("adamw", step, dtypes=["float32"], laws=["L1"], process=False)
    assert headline(report)[0] == "no bias correction, from step 11 on" and "step 11, the first that" in str(report)


def test_the_same_states_at_another_step_have_the_running_powers():
    """Each step rounds a power once more, which the bound of what a step makes of them allows for."""
    row = ROUTINES["adam"]
    case = Trial(row, Function(row, cpu.merged_adam), "float32", 0, {}).case([3, 2], count=5)
    for name in ("beta1_pow", "beta2_pow"):
        products = np.multiply.accumulate(np.full(400, case.steps[0][name[:5]], np.float32))
        assert [x[0] for x in shrink.at_step(case, 400).slots[name]] == [products[-1]] * 2
    trial = Trial(ROUTINES["nadam"], Function(ROUTINES["nadam"], cpu.merged_nadam), "float32", 0, {})
    there, here = shrink.at_step(trial.case([3], count=9), 5), trial.case([3], count=5)
    assert np.allclose(there.slots["mu_product"][0], here.slots["mu_product"][0], rtol=1e-5, atol=0)


def only(monkeypatch, kind):
    """Let named hypotheses of a kind be all that are tried."""
    named = explain.named
    monkeypatch.setattr(explain, "named", lambda row: [x for x in named(row) if x.kind == kind])
    monkeypatch.setattr(explain.edits, "of_rule", lambda row: ())
    monkeypatch.setattr(explain.operands, "of_rule", lambda row: ())
    monkeypatch.setattr(explain.Explainer, "_pairs", lambda self: ())


def test_errors_of_one_sign_are_no_fast_reciprocal(monkeypatch):
    only(monkeypatch, "rough")
    step = step_of("adamw", {"np.sqrt(v)": "np.sqrt(np.maximum(v, real(1e-12)))"})
    report = oracle.check("adamw", step, dtypes=["float32"], laws=["L1"], process=False)
    assert not report.ok and "fast reciprocal" not in str(report), str(report)


def test_what_explains_one_slot_alone_is_of_the_law(monkeypatch):
    def step(params, grads, moment1, moment2, beta1_pow, beta2_pow, **numbers):
        cpu.merged_adam(params, grads, moment1, moment2, beta1_pow, beta2_pow, **numbers)
        for p, m in zip(params, moment1, strict=True):
            m[...] = m.astype(np.float16)
            p += np.float32(0.125) * np.sin(p) ** 3

    only(monkeypatch, "narrow")
    monkeypatch.setattr(explain, "_partly", lambda explanations: explanations[-1:])  # the last is that of slots
    report = oracle.check("adam", step, dtypes=["float32"], laws=["L1"], process=False)
    assert report.causes[0].text.startswith("moment1: ") and "in part (" in str(report), str(report)


def test_an_optional_state_needs_a_default():
    def step(params, grads, velocities, master_params, *, lr, mu):
        for p, v, g, _ in zip(params, velocities, grads, master_params, strict=True):
            v[...] = mu * v + g
            p -= lr * v

    report = oracle.check("momentum", step, dtypes=["float32"], process=False)
    assert "give master_params a default, master_params=None" in str(report)
    assert len(readable(report).splitlines()) <= 25 and len(report.failed_laws) > 10


def test_a_hypothesis_that_fails_is_none(monkeypatch):
    def fails(situation):
        raise IndexError("index 1 is out of bounds for axis 0 with size 1")

    named = explain.named
    monkeypatch.setattr(explain, "named", lambda row: (Hypothesis("one that fails", fails, "rule"), *named(row)))
    report = oracle.check("adamw", without_decay, dtypes=["float32"], laws=["L1"], process=False)
    assert headline(report)[0] == "coeff ignored: taken as 0"
    monkeypatch.setattr(explain.Explainer, "explanations", fails)
    report = oracle.check("adamw", without_decay, dtypes=["float32"], laws=["L1"], process=False)
    assert not report.ok and not report.causes and "smallest example" in str(report)


def test_what_a_few_elements_tell_is_a_possibility():
    report = held(BY_NAME["flush to zero"], laws=["L1", "L7"])
    assert report.failed_laws == ["L7"] and not headline(report)[1]
    assert "\npossibly: subnormal numbers flushed to zero" in str(report)
