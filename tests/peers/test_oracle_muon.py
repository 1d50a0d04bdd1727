"""Muon of other libraries, held to the oracle's laws: right where it is right, and what is known to be wrong found."""

import importlib.util

import pytest

from benchmarks.findings.imports import optimizers_of_timm
from refopt import oracle

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.usefixtures("one_thread")
COEFFICIENTS = 3.4445, -4.7750, 2.0315


def iterated(u, steps=5):
    """Keller Jordan's `zeropower_via_newtonschulz5`, each operation of which is rounded to bf16."""
    a, b, c = COEFFICIENTS
    x = u.bfloat16()
    if u.size(-2) > u.size(-1):
        x = x.mT
    x = x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    for _ in range(steps):
        square = x @ x.mT
        x = a * x + (b * square + c * square @ square) @ x
    return x.mT if u.size(-2) > u.size(-1) else x


def jordans(params, grads, velocities, *, lr, mu, weight_decay, ahead=torch.lerp, of=iterated):
    """His step (github.com/KellerJordan/Muon), but for what it writes of gradients."""
    for p, g, v in zip(params, grads, velocities, strict=True):
        v.lerp_(g, 1 - mu)
        update = of(ahead(g, v, mu)) * max(1, g.size(-2) / g.size(-1)) ** 0.5
        p.mul_(1 - lr * weight_decay)
        p.add_(update.to(p.dtype), alpha=-lr)


def groups(params):
    """Groups that are told to be matrices, however small."""
    every = [x if isinstance(x, dict) else {"params": [x]} for x in params]
    return [{**group, "use_muon": True} for group in every]


def timms(params, *, lr, momentum, weight_decay, nesterov, eps, ns_steps):
    named = dict(lr=lr, momentum=momentum, weight_decay=weight_decay, nesterov=nesterov, eps=eps, ns_steps=ns_steps)
    return optimizers_of_timm()["Muon"](groups(params), ns_coefficients=COEFFICIENTS, adjust_lr_fn="original", **named)


def pytorch_optimizers(params, *, lr, momentum, weight_decay, nesterov):
    muon = pytest.importorskip("pytorch_optimizer").Muon
    return muon(groups(params), lr=lr, momentum=momentum, weight_decay=weight_decay, nesterov=nesterov)


def held(step, *laws, dtypes=("float32",), **named):
    return oracle.check("muon", step, laws=laws or None, dtypes=dtypes, process=False, diagnose=False, **named)


def test_pytorchs_is_right():
    report = held(torch.optim.Muon, "L1", examples=1)
    assert report.ok and 0.1 < report.largest["float32"]["params"] < 0.7, report


@pytest.mark.slow
def test_pytorchs_is_right_by_every_law():
    report = oracle.check("muon", torch.optim.Muon, process=False)
    assert report.ok and report.dtypes == ["float32", "float64"], report


@pytest.mark.parametrize("step", [pytest.param(timms, marks=pytest.mark.slow), pytorch_optimizers])
def test_those_of_other_libraries_are_right(step):
    if step is timms and importlib.util.find_spec("timm") is None:
        pytest.skip("timm is not installed")
    report = held(step, "L1", "L2", examples=1, set={"adjust_lr": "original"})
    assert report.ok, report


def test_jordans_is_right():
    """As far as epsilon goes, which he adds."""
    report = held(jordans, "L1", examples=1, arrays="torch", set={"epsilon_is": "added"})
    assert report.ok and report.largest["float32"]["params"] > 0.3, report


def test_a_gradient_that_is_written_is_found():
    """As in his own, which looks ahead in place."""

    def in_place(params, grads, velocities, *, lr, mu, weight_decay):
        jordans(params, grads, velocities, lr=lr, mu=mu, weight_decay=weight_decay, ahead=torch.Tensor.lerp_)

    named = dict(arrays="torch", set={"epsilon_is": "added"}, examples=0)
    assert held(in_place, "L1", "L4", **named).failed_laws == ["L4"]


@pytest.mark.slow
def test_optaxs_is_right():
    """Of corrected momentum, with an epsilon that is added, and outputs along columns."""
    muon = pytest.importorskip("optax.contrib").muon
    report = held(muon, "L1", examples=1)
    assert report.ok, report
    found = oracle.identify(muon)
    assert found.routine == "muon" and found.choices["outputs"] == "columns"


def test_pytorchs_is_identified():
    found = oracle.identify(torch.optim.Muon)
    assert found.routine == "muon" and found.choices["use_nesterov"] and found.choices["outputs"] == "rows", found
