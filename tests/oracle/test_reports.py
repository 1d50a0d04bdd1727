"""Whole reports of fixed wrong steps: reports.txt beside it has every line, and what came of every case.

Where a change of the oracle means to change them, ``REFOPT_REPORTS=write`` with this file's tests writes them again.
"""

import dataclasses
import json
import os
import re
from pathlib import Path

import pytest

from refopt import oracle

GOLDEN = Path(__file__).with_name("reports.txt")
LAWS = [f"L{k}" for k in (1, 2, 4, 6, 7, 8, 9, 10, 14, 15, 16, 17, 19, 20, 22, 23, 24)]  # those with few elements


def dampened(params, grads, velocities, *, lr, mu, found_inf=None):
    """In one order of axes alone, without a gate, and long lists lose their gradients."""
    for p, g, v in zip(params, grads, velocities, strict=True):
        if not p.flags.c_contiguous:
            raise ValueError("the order of C alone")
        v[...] = mu * v + (1 - mu) * g
        p -= (lr * v).astype(p.dtype)
        if len(params) > 4:
            g[...] = 0


def uphill(params, grads, *, lr):
    for p, g in zip(params, grads, strict=True):
        p += lr * g


def in_16_bits(params, grads, *, lr):
    for p, g in zip(params, grads, strict=True):
        p -= p.dtype.type(lr) * g.astype(p.dtype)


def whole_blocks(params, grads, velocities, *, lr, mu):
    """With dampened gradients, and none of the last elements, nor of tensors from the eighth on."""
    for p, g, v in zip(params[:7], grads, velocities, strict=False):
        k = p.size // 16 * 16
        new, old = v.reshape(-1)[:k], p.reshape(-1)[:k]
        new[...] = mu * new + (1 - mu) * g.reshape(-1)[:k]
        old -= lr * new


def two_halves(params, grads, *, lr, l2_decay):
    """One without decay, the other uphill and three times too far."""
    for p, g in zip(params, grads, strict=True):
        half = p.size // 2
        p[:half] -= lr * g[:half]
        p[half:] += lr * (g[half:] + l2_decay * p[half:]) * 3


def by_place(params, grads, momentum, *, lr, found_inf=None):
    """With a rate for each place in the list, and a gate of parameters alone."""
    for i, (p, g, m) in enumerate(zip(params, grads, momentum, strict=True)):
        if not p.flags.c_contiguous:
            raise ValueError("the order of C alone")
        m[...] = 0.875 * m + g
        if found_inf is None or found_inf[0] == 0:
            p -= (lr * (1 + 2.0**-20 * i) * m).astype(p.dtype)
        if len(params) > 4:
            g[...] = 0


def by_norm(params, grads, *, lr):
    """Of all tensors, in new arrays."""
    size = sum(float((g.astype(float) ** 2).sum()) for g in grads) ** 0.5
    return [p - (lr * g / (size + 1)).astype(p.dtype) for p, g in zip(params, grads, strict=True)]


def matrices(params, grads, *, lr, step, found_inf=None):
    """Which decay without a gradient, and whose steps are counted for all runs at once, and those that are skipped."""
    CALLS[0] = 1 if step == 1 else CALLS[0] + 1
    if found_inf is not None and found_inf[0] != 0:
        return
    for p, g in zip(params, grads, strict=True):
        if p.ndim != 2:
            raise NotImplementedError("matrices alone")
        p -= (lr * CALLS[0] / step * (0.25 * p if g is None else g)).astype(p.dtype)


CALLS = [0]


def alike(params, grads, momentum, *, lr, found_inf=None):
    for p, g, m in zip(params, grads, momentum, strict=True):
        m[...] = 0.875 * m + g
        if found_inf is None or found_inf[0] == 0:
            p -= (lr * m).astype(p.dtype)


OF_RULES = {"process": False, "secret": 1}
OF_RUNS = {"process": False, "symmetries": ["sign", "elements", "zero"]}
REPORTS = {
    "dampened": lambda: oracle.check("momentum", dampened, dtypes=["float32"], laws=LAWS, **OF_RULES),
    "uphill": lambda: oracle.check("sgd", uphill, dtypes=["float32", "float64"], laws=["L1"], seed=3, process=False),
    "in_16_bits": lambda: oracle.check("sgd", in_16_bits, dtypes=["bfloat16"], laws=["L1", "L7", "L13"], **OF_RULES),
    "whole_blocks": lambda: oracle.check("momentum", whole_blocks, dtypes=["float64"], laws=["L1", "L3"], **OF_RULES),
    "two_halves": lambda: oracle.check("sgd", two_halves, dtypes=["float32"], laws=["L1"], **OF_RULES),
    "by_place": lambda: oracle.check(None, by_place, dtypes=["float32", "bfloat16"], **OF_RUNS),
    "by_norm": lambda: oracle.check(None, by_norm, dtypes=["float32"], **OF_RUNS),
    "matrices": lambda: oracle.check(None, matrices, dtypes=["float32"], **OF_RUNS),
    "compared": lambda: oracle.compare(by_place, alike, dtypes=["float32"], process=False)}


def text_of(name, report):
    """A report, and each of its cases, without what depends on the clock."""
    cases = {}
    for item in report.items:
        ratio = "" if item.ratio is None else f" {item.ratio:.4g}"
        cases.setdefault(f"{item.law} {item.dtype}", []).append(f"{item.label} {item.status}{ratio}")
    lines = [re.sub(r"; \d+\.\d s\b", "", report.details()), *(f"{of}: {'; '.join(x)}" for of, x in cases.items())]
    return "\n".join([f"=== {name}", *lines, ""])


def as_json(cause):
    named = {"laws": cause.laws, "others": [*cause.others], "failures": [[*key] for key in cause.failures]}
    return dataclasses.asdict(cause) | named


@pytest.mark.parametrize("name", REPORTS)
def test_reports(name):
    """Each is what it was; and JSON has all of it."""
    report = REPORTS[name]()
    known = dict(re.findall(r"^=== (\w+)\n(.*?)(?=^=== |\Z)", GOLDEN.read_text(), re.M | re.S))
    got = text_of(name, report).partition("\n")[2]
    if os.environ.get("REFOPT_REPORTS") == "write":
        GOLDEN.write_text("".join(f"=== {of}\n{text}" for of, text in (known | {name: got}).items()))
    else:
        assert got.splitlines() == known[name].splitlines()
    fields = json.loads(report.to_json())
    for item, row in zip(report.items, fields["items"], strict=True):
        reasons = item.reasons and [{"name": of, "share": share} for of, share in item.reasons]
        assert row == item._asdict() | {"reasons": reasons if item.reasons is None or reasons else []}
    assert fields["causes"] == [as_json(x) for x in getattr(report, "causes", [])]
    for of in ("ok", "wrong", "failed_laws", "laws", "dtypes", "compared", "unbounded", "notes", "expected_failures"):
        assert fields[of] == getattr(report, of), of
    assert fields["schema"].startswith("refopt.") and fields["verdict"] == str(report).splitlines()[0]
    assert fields["largest_ratio"] == report.largest and report.details().startswith(str(report))
