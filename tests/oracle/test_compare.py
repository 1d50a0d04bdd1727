"""`compare`: what differs is found, first by bits, and what may differ is told."""

import json
import re
from collections import Counter

import numpy as np
import pytest

from refopt import cli, oracle

FAST = {"dtypes": ["float32"], "process": False}


def loop(params, grads, m, *, lr):
    for p, g, a in zip(params, grads, m, strict=True):
        a[...] = 0.5 * a + g
        p -= (lr * a).astype(p.dtype)


def other_order(params, grads, m, *, lr):
    """The same but for roundings."""
    for p, g, a in zip(params, grads, m, strict=True):
        a[...] = 0.5 * (a + 2 * g)
        p -= (lr * (0.3 * a) + lr * (0.7 * a)).astype(p.dtype)


def other_name(params, grads, buffers, *, lr):
    loop(params, grads, buffers, lr=lr)


def blocks(params, grads, m, *, lr):
    """Whole blocks of 16 are never written."""
    for p, g, a in zip(params, grads, m, strict=True):
        n = p.size if p.size < 300 else p.size // 16 * 16
        loop([p.reshape(-1)[:n]], [g.reshape(-1)[:n]], [a.reshape(-1)[:n]], lr=lr)


def finite(params, grads, m, *, lr):
    loop(params, [np.nan_to_num(g) for g in grads], m, lr=lr)


def later(params, grads, m, *, lr, step):
    loop(params, grads, m, lr=lr if step < 10 else lr / 2)


def flat(params, grads, m, *, lr):
    for p, g, a in zip(params, grads, m, strict=True):
        q, b = p.reshape(-1), a.reshape(-1)
        loop([q], [g.reshape(-1)], [b], lr=lr)


def few(params, grads, m, *, lr):
    loop(params[:110], grads[:110], m[:110], lr=lr)


def tiny(params, grads, m, *, lr):
    loop(params, [np.where(abs(g) < 2.0**-90, 0, g).astype(g.dtype) for g in grads], m, lr=lr)


def scalars_left_out(params, grads, m, *, lr):
    keep = [i for i, p in enumerate(params) if p.ndim]
    loop([params[i] for i in keep], [grads[i] for i in keep], [m[i] for i in keep], lr=lr)


@pytest.mark.parametrize(
    ("step", "part"),
    [(blocks, "C1"), pytest.param(few, "C2", marks=pytest.mark.slow), (scalars_left_out, "C3"), (flat, "C4"),
     (finite, "C5"), (tiny, "C5"), (later, "C6")])
def test_a_difference_is_found_in_its_part(step, part):
    report = oracle.compare(loop, step, parts={"C1", part}, **FAST)
    assert part in report.wrong and not report.ok, str(report)
    assert f"{part} {oracle.PARTS[part]}, float32: " in str(report) and " (0x" in str(report)
    if part not in ("C1", "C5"):
        assert "C1" not in report.wrong


def test_the_same_has_no_difference():
    cases = {"C1": 46, "C2": 3, "C3": 6, "C4": 4, "C5": 9, "C6": 1}
    told = []
    report = oracle.compare(loop, loop, progress=lambda *done: told.append(done), **FAST)
    assert told == [(0, 1, "float32")]
    assert Counter(item.law for item in report.items) == cases and report.compared == 26944
    report = oracle.compare(loop, other_name, dtypes=["bfloat16"], process=False)
    assert report.ok and not report.of("failed") and report.compared > 10_000, str(report)


def test_every_dtype_counts():
    dtypes, options = ["float32", "float64"], {"parts": ["C6"], "process": False}
    each = [oracle.compare(loop, loop, dtypes=[x], **options).compared for x in dtypes]
    assert oracle.compare(loop, loop, dtypes=dtypes, **options).compared == sum(each) > each[0] > 0


def test_by_bits_or_within():
    report = oracle.compare(loop, other_order, parts=["C1"], **FAST)
    assert not report.ok and "ULPs away" in str(report)
    measured = oracle.compare(loop, other_order, within="measured", parts=["C1", "C2"], **FAST)
    assert measured.ok and "within the tolerance" in str(measured), str(measured)
    assert oracle.compare(loop, other_order, within=1e-5, parts=["C1", "C3"], **FAST).ok
    assert not oracle.compare(loop, later, within=1e-5, parts=["C6"], **FAST).ok
    assert not oracle.compare(loop, later, within="measured", parts=["C6"], **FAST).ok


def with_numbers(params, grads, velocities, *, lr, mu):
    for p, g, v in zip(params, grads, velocities, strict=True):
        v[...] = (mu * v + g).astype(v.dtype)
        p -= (lr * v).astype(p.dtype)


def within_one_root_of_it(params, grads, velocities, *, lr, mu):
    with_numbers(params, grads, velocities, lr=lr * (1 + 2.0**-16), mu=mu)


def fused_by_hand(params, grads, velocities, *, lr, mu):
    for p, g, v in zip(params, grads, velocities, strict=True):
        new = (g + v * mu).astype(v.dtype)
        p -= (lr * g + lr * mu * v).astype(p.dtype)
        v[...] = new


def test_nan_is_no_wildcard():
    def lost(params, grads, m, *, lr):
        loop(params, grads, m, lr=lr)
        for p in params:
            p[...] = np.nan

    assert not oracle.compare(loop, lost, within=1e9, parts=["C1"], **FAST).ok
    assert not oracle.compare(lost, loop, within=1e9, parts=["C1"], **FAST).ok


def test_one_that_fails_differs():
    def raising(params, grads, m, *, lr):
        if not all(p.ndim for p in params):
            raise RuntimeError("a scalar")
        loop(params, grads, m, lr=lr)

    for pair in ((loop, raising), (raising, loop)):
        report = oracle.compare(*pair, parts=["C1", "C3"], **FAST)
        assert report.wrong == ["C3"] and "RuntimeError: a scalar" in str(report)
    both = oracle.compare(raising, raising, parts=["C1", "C3"], **FAST)
    assert both.ok and "both fail" in str(both)
    def worse(params, grads, m, *, lr):
        if not all(p.ndim for p in params):
            raise RuntimeError("another reason")
        loop(params, grads, m, lr=lr)

    report = oracle.compare(raising, worse, parts=["C1", "C3"], **FAST)
    assert re.search(r"both fail: .*raising: expected no error, got RuntimeError: a scalar", str(report))


def test_expected_differences():
    report = oracle.compare(loop, later, expected_failures={"C6": "another schedule"}, parts=["C1", "C6"], **FAST)
    assert report.ok and report.failed_laws == ["C6"]


def test_the_command(capsys, tmp_path, monkeypatch):
    source = "def one(params, grads, *, lr):\n    for p, g in zip(params, grads):\n        p -= lr * g\n"
    other = source.replace("one", "two").replace("lr * g", "lr * (0.3 * g) + lr * (0.7 * g)")
    (tmp_path / "steps.py").write_text(source + other)
    monkeypatch.chdir(tmp_path)
    two = ["compare", "steps.py:one", "steps.py:two", "--dtype", "fp32", "--in-place"]
    assert cli.main(["compare", "steps.py:one", "steps.py:one", "--dtype", "fp32"]) == 0
    assert capsys.readouterr().out.startswith("one compared with one: no difference")
    assert cli.main(two) == 1
    out = capsys.readouterr().out
    assert "DIFFERENT, C1" in out and all(len(line) <= 80 for line in out.splitlines())
    assert cli.main([*two, "--within", "measured", "--json", "-"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["ok"] and found["dtypes"] == ["float32"]
    assert cli.main([*two, "--within", "near"]) == 2
