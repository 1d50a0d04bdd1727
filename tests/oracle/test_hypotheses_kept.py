"""What each hypothesis of a diagnosis would have a step return."""

import numpy as np
import pytest

from oracle.kept import assert_kept, digest, digits
from refopt import cpu
from refopt.catalog import KNOWN
from refopt.oracle.diagnosis import edits, operands
from refopt.oracle.diagnosis.hypotheses import named
from refopt.oracle.diagnosis.situation import base_rule, of_case
from refopt.oracle.subjects.function import Function
from refopt.oracle.trial import Trial

BOUNDED = {"arithmetic", "flush", "kept", "narrow", "power", "rough"}  # whose values alone do not tell them apart


def answered(situation, kind):
    """What a step returns, and the bounds of it; or the error of a hypothesis that does not apply."""
    try:
        found = [digits(situation.plain())]
        if kind in BOUNDED:
            expected = situation.expected() or {}
            found += [digits({name: getattr(x, of) for name, x in expected.items()}) for of in ("value", "error")]
    except TypeError as error:
        return type(error).__name__
    return found


@pytest.mark.parametrize(("routine", "dtype"), [
    ("momentum", "float64"), ("momentum", "bfloat16"), ("adamw", "float32"), ("adagrad", "float32"),
    ("lamb", "float32"), ("lars_momentum", "float32"), ("novograd", "float32"), ("radam", "float64")])
def test_what_hypotheses_say(routine, dtype):
    """In the order in which they are tried, and with what each needs."""
    row = KNOWN[routine]
    trial = Trial(row, Function(row, getattr(cpu, row.merged_name)), dtype, 0, {})
    kinds = {}
    for count, scale in ((1, 2.0**-6), (3, 1.0)):
        case = trial.case([5, 4, 3], count=count)
        case = case.replace(steps=[case.steps[0] | {"lr": [0.5, 0.1, 0.125]}],
                            grads=[x * x.dtype.type(scale) for x in case.grads])
        situation = of_case(case, 1, base_rule(row), trial.real)
        for hypothesis in named(row):
            with np.errstate(all="ignore"):
                changed = hypothesis.change(situation)
                found = None if changed is None else answered(changed, hypothesis.kind)
            text = f"{hypothesis.name} {hypothesis.about} {hypothesis.paired} {hypothesis.needs} {found}"
            kinds.setdefault(hypothesis.kind, []).append(text)
    assert_kept({f"{routine} {dtype} {kind}": f"{len(x)} of {digest(sorted(x))}" for kind, x in sorted(kinds.items())})


@pytest.mark.parametrize("routine", ["momentum", "lamb", "lars_momentum"])
def test_what_changes_of_a_rule_say(routine):
    """Each edit, and one in 19 of the many operands."""
    row = KNOWN[routine]
    trial = Trial(row, Function(row, getattr(cpu, row.merged_name)), "float32", 0, {})
    situation = of_case(trial.case([(4, 3), (2, 3)], count=3), 1, base_rule(row), trial.real)
    every = operands.of_rule(row)
    found = []
    for hypothesis in [*edits.of_rule(row), *every[::19]]:
        with np.errstate(all="ignore"):
            try:
                changed = hypothesis.change(situation)
                found.append((hypothesis.name, digits(changed and changed.plain(), 5)))
            except Exception as error:  # which a diagnosis passes over
                found.append((hypothesis.name, type(error).__name__))
    names = digest([(x.name, x.kind, x.about, x.paired, x.needs) for x in every])
    assert_kept({f"{routine} changes": f"{len(every)} of {names}, {len(found)} of {digest(found)}"})
