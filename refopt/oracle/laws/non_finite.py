"""NaN, infinity, and numbers below the normal ones."""

from collections.abc import Iterator
from functools import partial

import numpy as np

from refopt.oracle.bound.storage import is_remainder
from refopt.oracle.broken import at_first
from refopt.oracle.exact.cases import Case, memory
from refopt.oracle.exact.laws import reference
from refopt.oracle.laws.law import Law, Try
from refopt.oracle.laws.step import times
from refopt.oracle.trial import Trial

LEASTS = 2**12  # smallest subnormal numbers; fp32 has 2**23 of them below its normal numbers
AT = 3  # the element that is not finite
SUBNORMAL = {"float16": 2.0**-15, "bfloat16": 2.0**-127, "float32": 2.0**-127, "float64": 2.0**-1023}


def non_finite(trial: Trial) -> Iterator[Try]:
    for name in ("grads", "params"):
        for value in (np.nan, np.inf, -np.inf):
            yield Try(f"{value} in {name}", partial(poisoned, trial, name, value), partial(contained, trial))


def poisoned(trial: Trial, name: str, value: float) -> Case:
    """One element of the first tensor, and of its master, is not finite."""
    case = trial.case([21, 9], count=2).copy()
    for slot in {name, "master_params"} if name == "params" else {name}:
        for x in (case.slots[slot] or ())[:1]:
            if x is not None:
                memory(x)[AT] = 0 if is_remainder(x) else value
    return case


def contained(trial: Trial, case: Case) -> None:
    """Elements that the rule updates independently are within the bound, and a lost parameter is NaN or infinite."""
    got = trial.hold(case)
    for i, (ours, theirs) in enumerate(zip(reference(case.copy())["params"], got["params"], strict=True)):
        if not trial.row.elementwise and np.isfinite(memory(case.grads[i]).astype(float)).all():
            continue
        ours, theirs = memory(ours).astype(np.float64), memory(theirs).astype(np.float64)
        hidden = ~np.isfinite(ours) & np.isfinite(theirs)
        if hidden.any():
            raise at_first("params", i, hidden, ours, theirs)


def subnormal(trial: Trial) -> Iterator[Try]:
    hold = partial(trial.hold, measured=False, leasts=LEASTS)
    yield Try("subnormal parameters and gradients", partial(tiny, trial, ("params", "grads")), hold)
    yield Try("subnormal gradients", partial(tiny, trial, ("grads",)), hold)


def tiny(trial: Trial, names: tuple[str, ...]) -> Case:
    """Numbers so small that they are subnormal in the parameter's dtype."""
    return times(trial.case([45]), dict.fromkeys(names, SUBNORMAL[trial.dtype]))


LAWS = (
    Law("L6", "NaN and inf", "NaN and infinity show, and stay in their element or tensor.", non_finite),
    Law("L7", "subnormals", "Subnormal numbers are numbers, unless the step declares that it flushes them.", subnormal),
)
