"""The gate and the factors: a skipped step changes nothing, and every gradient is scaled."""

from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np

from refopt.oracle.broken import at_first
from refopt.oracle.cases import NUMBERS
from refopt.oracle.exact.cases import Case, memory
from refopt.oracle.laws import again
from refopt.oracle.laws.law import Law, Try, both
from refopt.oracle.trial import Trial

SIZES = 45, 7, 0, 300


def gate(trial: Trial) -> Iterator[Try]:
    for flag in (1.0, np.nan, np.inf, -1.0):
        yield Try(f"found_inf={flag}", partial(flagged, trial, flag, lost=True), partial(still, trial))
    yield Try("found_inf=1, finite gradients", partial(flagged, trial, 1.0), partial(still, trial))
    yield Try("found_inf=0", partial(flagged, trial, 0.0), trial.hold)


def flagged(trial: Trial, flag: float, lost: bool = False) -> Case:
    """A step with a flag; if ``lost``, with gradients that are not finite."""
    trial.need("found_inf")
    case = trial.case(SIZES, count=2)
    if lost:
        case = case.replace(grads=[np.full_like(x, np.nan) for x in case.grads])
    return case.replace(steps=[case.steps[0] | {"found_inf": np.full(1, flag, np.float32)}])


def still(trial: Trial, case: Case) -> None:
    """Not a bit changes."""
    got = trial.run(case)
    for name, values in got.items():
        for i, (now, before) in enumerate(zip(values, case.lists()[name], strict=True)):
            if before is None or now.tobytes() == before.tobytes():
                continue
            now, before = memory(now).astype(np.float64), memory(before).astype(np.float64)
            changed = ~((now == before) | (np.isnan(now) & np.isnan(before)))
            flag = case.steps[0]["found_inf"][0]
            raise at_first(name, i, changed, before, now, f" unchanged, since found_inf is {flag:g}")


def factor(trial: Trial) -> Iterator[Try]:
    def case(rescale: bool, factor: str) -> Case:
        trial.need(*(["rescale_grad"] if rescale else []), *(["grad_factor"] if factor else []))
        numbers = {"rescale_grad": NUMBERS["rescale_grad"]} if rescale else {}
        plain = trial.case(SIZES, None, count=2, **numbers)  # type: ignore[arg-type]
        extra: dict[str, Any] = {"grad_factor": np.full(1, 0.5625, factor)} if factor else {}
        return plain.replace(steps=[plain.steps[0] | extra])

    yield Try("rescale_grad", partial(case, True, ""), trial.hold)
    yield Try("grad_factor", partial(case, False, "float32"), trial.hold)
    yield Try("both", partial(case, True, "float32"), trial.hold)
    if trial.dtype == "float64":
        yield Try("grad_factor of fp64", partial(case, False, "float64"), trial.hold)


LAWS = (
    Law("L8", "gate", "A step whose found_inf is not 0 changes nothing: no bit and no count.",
        both(gate, again.gate), runs=True),
    Law("L9", "factor", "rescale_grad and grad_factor multiply every gradient, wherever it is used.", factor),
)
