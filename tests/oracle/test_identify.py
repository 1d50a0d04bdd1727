"""`identify`: every routine is itself, in every choice, and what is none is none."""

import importlib
import sys
from functools import partial

import numpy as np
import pytest

from refopt import cli, cpu, oracle
from refopt.catalog import ROUTINES
from refopt.oracle.identity.candidates import LEFT_OUT

CHOSEN = [
    pytest.param(name, choice, value, marks=[pytest.mark.slow] * (name not in ("adam", "lars_momentum", "novograd")))
    for name, row in ROUTINES.items() for choice, values in row.choices.items() for value in values
    if choice not in LEFT_OUT]


@pytest.mark.parametrize("name", [
    pytest.param(x, marks=[pytest.mark.slow] * (x not in ("sgd", "adam", "radam", "lamb"))) for x in ROUTINES])
def test_a_routine_is_itself(name):
    found = oracle.identify(getattr(cpu, ROUTINES[name].merged_name))
    assert name in {match.routine for match in found.matches}, str(found)
    assert found.routine == name or found.ambiguous
    assert found.matches[0].off < 1e-8 and found.dtype == "float64"


@pytest.mark.parametrize(("name", "choice", "value"), CHOSEN)
def test_in_every_choice(name, choice, value):
    """Other values are ruled out, but for a choice that matters with a number alone that is 0 here."""
    found = oracle.identify(partial(getattr(cpu, ROUTINES[name].merged_name), **{choice: value}))
    matches = [match for match in found.matches if match.routine == name]
    assert matches and any(match.choices.get(choice, value) == value for match in matches), str(found)


def test_a_choice_that_matters_is_told_from_others():
    for value in ("corrected", "uncorrected"):
        found = oracle.identify(partial(cpu.merged_adam, epsilon_at=value))
        assert found.choices["epsilon_at"] == value
        assert all(match.choices["epsilon_at"] == value for match in found.matches if match.routine == "adam")


def test_ml_dtypes_is_not_needed(monkeypatch):
    """Not by Muon either, whose matrices are tried for what no formula of vectors explains."""
    monkeypatch.setitem(sys.modules, "ml_dtypes", None)
    with pytest.raises(ImportError):
        importlib.import_module("ml_dtypes")


    def cubic(params, grads, *, lr):
        for p, g in zip(params, grads, strict=True):
            p -= lr * g**3

    found = oracle.identify(cubic)
    assert found.routine is None and found.nearest is not None


@pytest.mark.parametrize("compute", ["float32", "float64"])
@pytest.mark.parametrize("nesterov", [True, False])
def test_muon_in_every_precision(compute, nesterov):
    """What is nearest by far is what it is, though others are within the tolerance for iterations in 16 bits."""
    found = oracle.identify(partial(cpu.merged_muon, compute=compute, use_nesterov=nesterov))
    assert found.routine == "muon" and found.choices["use_nesterov"] is nesterov and found.matches[0].off < 1e-5


def constant(params, grads, velocities, *, lr):
    for p, g, v in zip(params, grads, velocities, strict=True):
        v[...] = 0.75 * v + g
        p -= lr * v


@pytest.mark.parametrize(("exponent", "routine"), [(-14, None), (-20, "sgd")])
def test_how_near_a_formula_has_to_come(exponent, routine):
    def step(params, grads, *, lr):
        for p, g in zip(params, grads, strict=True):
            p -= lr * (1 + 2.0**exponent) * g

    assert oracle.identify(step).routine == routine


def test_numbers_in_the_code_are_told():
    assert oracle.identify(constant, set={"mu": 0.75}).routine == "momentum"
    none = oracle.identify(constant, set={"mu": 0.5})
    assert none.routine is None and none.nearest is not None and "the nearest, " in str(none)
    assert str(none).endswith("check it as the routine that it is meant to be, to see what is wrong")


def test_the_nearest_agrees_for_the_most_steps():
    """However far it is off then."""
    def step(params, grads, velocities, *, lr, mu, step):
        for p, g, v in zip(params, grads, velocities, strict=True):
            v[...] = mu * v + g
            p -= lr * (1 if step < 6 else 100) * v

    found = oracle.identify(step)
    assert found.routine is None and found.agreed == 5, str(found)


def test_names():
    def step(params, grads, velocities, *, lr, beta=0.75):
        for p, g, v in zip(params, grads, velocities, strict=True):
            v[...] = beta * v + g
            p -= lr * v

    found = oracle.identify(step, names={"mu": "beta"})
    assert (found.routine, found.nearest, found.agreed) == ("momentum", None, 0)
    assert oracle.identify(step).routine is None


def test_none():
    def cubes(params, grads, *, lr):
        for p, g in zip(params, grads, strict=True):
            p -= lr * g**3

    found = oracle.identify(cubes)
    assert found.routine is None and not found.choices and ": none of " in str(found)

    def raising(params, grads, *, lr):
        raise RuntimeError("no such luck")

    assert "raising: expected no error, got RuntimeError: no such luck" in str(oracle.identify(raising))

    def endless(params, grads, *, lr):
        for p in params:
            p[...] = np.inf

    assert "not finite" in str(oracle.identify(endless))


def test_arithmetic_in_fp32_is_identified_all_the_same():
    def narrow(params, grads, *, lr):
        for p, g in zip(params, grads, strict=True):
            p -= (np.float32(lr) * g.astype(np.float32)).astype(p.dtype)

    found = oracle.identify(narrow)
    assert found.routine == "sgd" and 1e-9 < found.matches[0].off < 1e-5


def test_the_command(capsys, tmp_path, monkeypatch):
    (tmp_path / "mine.py").write_text(
        "def step(params, grads, *, lr):\n    for p, g in zip(params, grads):\n        p -= lr * g\n")
    monkeypatch.chdir(tmp_path)
    assert cli.main(["check", "--identify", "mine.py:step"]) == 0
    assert capsys.readouterr().out.startswith("step: sgd\n")
    assert cli.main(["check", "--identify", "mine.py:step", "--set", "nu=1"]) == 2
