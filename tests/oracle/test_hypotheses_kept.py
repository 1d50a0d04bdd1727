"""What each hypothesis of a diagnosis would have a step return, in hypotheses.txt: to six digits, by kind.

Where a change of the hypotheses means to change them, ``REFOPT_HYPOTHESES=write`` with this file's tests writes them.
"""

import hashlib
import os
from pathlib import Path

import numpy as np
import pytest

from refopt import cpu
from refopt.catalog import KNOWN
from refopt.oracle.diagnosis.hypotheses import named
from refopt.oracle.diagnosis.hypothesis import base_rule
from refopt.oracle.diagnosis.situation import Unanswered, of_case
from refopt.oracle.subjects.function import Function
from refopt.oracle.trial import Trial

HELD = Path(__file__).with_name("hypotheses.txt")
BOUNDED = {"arithmetic", "flush", "kept", "narrow", "power", "rough"}  # whose values alone do not tell them apart


def digits(results):
    return {name: [f"{x:.6g}" for x in np.ravel(np.asarray(of, float))] for name, of in (results or {}).items()}


def answered(situation, kind):
    """What a step returns, and the bounds of it; or the error of a hypothesis that does not apply."""
    try:
        found = [digits(situation.plain())]
        if kind in BOUNDED:
            expected = situation.expected() or {}
            found += [digits({name: getattr(x, of) for name, x in expected.items()}) for of in ("value", "error")]
    except (TypeError, Unanswered) as error:
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
    for count in (1, 3):
        case = trial.case([5, 4, 3], count=count)
        case = case.replace(steps=[case.steps[0] | {"lr": [0.5, 0.25, 0.125]}])
        situation = of_case(case, 1, base_rule(row), trial.real)
        for hypothesis in named(row):
            with np.errstate(all="ignore"):
                changed = hypothesis.change(situation)
                found = None if changed is None else answered(changed, hypothesis.kind)
            text = f"{hypothesis.name} {hypothesis.about} {hypothesis.paired} {hypothesis.needs} {found}"
            kinds.setdefault(hypothesis.kind, []).append(text)
    got = {f"{routine} {dtype} {kind}": f"{len(x)} of {hashlib.sha256(repr(sorted(x)).encode()).hexdigest()[:16]}"
           for kind, x in sorted(kinds.items())}
    known = dict(line.split(": ", 1) for line in HELD.read_text().splitlines())
    if os.environ.get("REFOPT_HYPOTHESES") == "write":
        HELD.write_text("".join(f"{of}: {text}\n" for of, text in (known | got).items()))
    else:
        assert got == {of: known[of] for of in got}
