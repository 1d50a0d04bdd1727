"""What each law gives to a step: a seed has the same cases tomorrow, as the call in a report needs it."""

import functools
import hashlib

import numpy as np
import pytest

from oracle.kept import assert_kept, digest
from refopt import cpu, oracle
from refopt.oracle.broken import Skipped
from refopt.oracle.exact.cases import Case, memory
from refopt.oracle.laws import LAWS, SYMMETRIES
from refopt.oracle.subjects import subject_of
from refopt.oracle.trial import Trial
from refopt.oracle.variants import row_for


def plain(params, grads, *, lr, found_inf=None):
    if found_inf is None or found_inf[0] == 0:
        for p, g in zip(params, grads, strict=True):
            if g is not None:
                p -= p.dtype.type(lr) * g.astype(p.dtype)


def wide(params, grads, *, lr):
    """Rounded once, so that it has other bits."""
    for p, g in zip(params, grads, strict=True):
        p[...] = p.astype(float) - lr * g


CHECKS = [
    *((cpu.merged_momentum, "float32", law) for law in [*LAWS][:28] if law not in ("L11", "L12", "L13", "L24")),
    *((plain, "float32", law.id) for law in LAWS.values() if law.runs),
    (plain, "float64", "L2"), (plain, "float64", "L3"),
    (cpu.merged_lars_momentum, "bfloat16", "L5"), (cpu.merged_lars_momentum, "float32", "L1"),
    *((cpu.merged_adamw, "bfloat16", law) for law in ("L10", "L11", "L12", "L13")),
    *((cpu.merged_novograd, "float64", law) for law in ("L1", "L10", "L16", "L22"))]


def shown(x):
    """Arrays with their shapes, strides and numbers."""
    if isinstance(x, np.ndarray):
        return f"{x.dtype}{x.shape}{x.strides}{hashlib.sha256(memory(x).tobytes()).hexdigest()}"
    return f"[{' '.join(map(shown, x))}]" if isinstance(x, list) else repr(x)


def given_to(step, call):
    """What a call of the oracle returns for a step, and a digest of all that the step is given in it."""
    given = hashlib.sha256()

    @functools.wraps(step)
    def noting(*lists, **named):
        given.update(" ".join(map(shown, [*lists, *(x for pair in sorted(named.items()) for x in pair)])).encode())
        step(*lists, **named)

    return call(noting), given.hexdigest()[:16]


def given_by(step, dtype, law):
    """How many cases and elements a law has, and a digest of what a step is given in them."""
    routine, named = (None, {"symmetries": SYMMETRIES}) if step is plain else (step.__name__[7:], {"secret": 1})
    named |= {"dtypes": [dtype], "laws": [law], "process": False, "diagnose": False}
    report, given = given_to(step, lambda noting: oracle.check(routine, noting, **named))
    return f"{len(report.items)} cases, {report.compared} elements: {given}"


def case_shown(routine, case):
    """All of a case; of matrices, whose decompositions have other digits elsewhere, the norms."""
    if isinstance(case, Skipped):
        return str(case)
    numbers = f"{[sorted(x.items()) for x in case.steps]} {sorted(case.choices.items())} {case.count}"
    if routine == "muon":
        norms = [f"{np.linalg.norm(x[part].astype(float)):.3g}" for x in case.grads
                 for part in (..., slice(-8, None), (slice(None), slice(-8, None)))]
        return f"{numbers} {[x.shape for x in case.params]} {norms}"
    return f"{numbers} {[[name, shown(case.slots[name] or [])] for name in case.routine.slot_names]}"


def cases_of(routine, dtype, law):
    """The same of the cases alone, before a step has them."""
    row = row_for(routine, [])
    step = subject_of(row, getattr(cpu, row.merged_name), arrays=None, device=None, names=None, options={})
    trial, texts = Trial(row, step, dtype, 0, {}, [dtype], 1, examples=5), []
    for one in LAWS[law].tries(trial):
        try:
            case = one.case and one.case()
        except Skipped as skipped:
            case = skipped
        texts.append(f"{one.label} {case_shown(routine, case) if isinstance(case, Case | Skipped) else None}")
    return f"{len(texts)} cases: {digest(texts)}"


@pytest.mark.parametrize(("routine", "dtype", "law"), [
    ("radam", "float64", "L24"), ("adam", "float32", "L14"), ("adam", "float32", "L24"), ("nadam", "float32", "L1"),
    ("nadam", "float32", "L14"), ("nadam", "float32", "L16"), ("adamw", "bfloat16", "L1"), ("adamw", "bfloat16", "L14"),
    ("muon", "float32", "L1"), ("muon", "float16", "L1"), ("muon", "float32", "L5"), ("adam", "float32", "L2"),
    ("lars_momentum", "bfloat16", "L11"), ("lars_momentum", "float32", "L18"), ("lars_momentum", "bfloat16", "L18"),
    ("novograd", "float32", "L18"), ("radam", "bfloat16", "L18")])
def test_the_cases_of_a_law(routine, dtype, law):
    """Of routines with powers and other scalars, and of matrices."""
    assert_kept({f"{routine} {dtype} {law}, cases": cases_of(routine, dtype, law)})


@pytest.mark.parametrize(("step", "dtype", "law"), CHECKS, ids=lambda x: getattr(x, "__name__", x))
def test_what_a_law_gives_to_a_step(step, dtype, law):
    """The same data, numbers, order and calls of every case."""
    assert_kept({f"{step.__name__} {dtype} {law}": given_by(step, dtype, law)})


@pytest.mark.parametrize(("name", "call"), [
    ("identify", oracle.identify),
    ("compare", lambda step: oracle.compare(step, plain, process=False, dtypes=["float32", "float16"])),
    ("measured", lambda step: oracle.compare(wide, step, process=False, dtypes=["float32"], within="measured"))])
def test_what_other_calls_give_to_a_step(name, call):
    assert_kept({f"plain, {name}": given_to(plain, call)[1]})
