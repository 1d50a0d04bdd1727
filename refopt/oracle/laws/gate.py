"""The gate and the factors: a skipped step changes nothing, and every gradient is scaled."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np

from refopt.oracle.broken import Skipped
from refopt.oracle.cases import NUMBERS
from refopt.oracle.exact.cases import Case
from refopt.oracle.laws.law import Law, Try, both
from refopt.oracle.running import Data, skipping
from refopt.oracle.subject import Run
from refopt.oracle.trial import Trial

SIZES = 45, 7, 0, 300
OF_RUNS = 45, 7, 300, (4, 5)
BEFORE = 2  # steps before the one that is skipped


def of_cases(trial: Trial) -> Iterator[Try]:
    def still(case: Case) -> None:
        """Not a bit changes."""
        what = f"unchanged, since found_inf is {case.steps[0]['found_inf'][0]:g}"
        trial.same(case.outcome(), trial.run(case), what)

    for flag in (1.0, np.nan, np.inf, -1.0):
        yield Try(f"found_inf={flag}", partial(flagged, trial, flag, lost=True), still)
    yield Try("found_inf=1, finite gradients", partial(flagged, trial, 1.0), still)
    yield Try("found_inf=0, one step", partial(flagged, trial, 0.0), trial.hold)


def flagged(trial: Trial, flag: float, lost: bool = False) -> Case:
    """A step with a flag; if ``lost``, with gradients that are not finite."""
    trial.need("found_inf")
    case = trial.case(SIZES, count=2)
    if lost:
        case = case.replace(grads=[np.full_like(x, np.nan) for x in case.grads])
    return case.replace(steps=[case.steps[0] | {"found_inf": np.full(1, flag, np.float32)}])


def of_runs(trial: Trial) -> Iterator[Try]:
    lost = partial(np.full_like, fill_value=np.nan)

    def need(data: Data) -> None:
        run = trial.start(data.params)
        if not trial.subject.gated:
            raise Skipped("takes no found_inf", lacks=True)
        with skipping("takes no found_inf"):  # a step that accepts the flag only to refuse it
            trial.step(run, data.grads[0], 0.0)

    def begun(data: Data, steps: int = 0, loaded: bool = False, skipped: bool = False) -> Run:
        """A run after some steps, after loading, or after a skipped step."""
        run = trial.begun(data, steps, found_inf=0.0)
        if loaded:
            run = trial.start(trial.outcome(run)["params"], trial.tried(run.save))
        if skipped:
            trial.step(run, [lost(x) for x in data.params], 1.0)
        return run

    def skipped(finite: bool, begin: Callable[[Data], Run], data: Data) -> None:
        """The skipped step changes nothing, and does not affect later steps."""
        need(data)
        run, plain = begin(data), begin(data)
        before = trial.outcome(run)
        trial.step(run, data.grads[1] if finite else [lost(x) for x in data.params], 1.0)
        trial.same(before, trial.outcome(run), "unchanged, since found_inf is 1")
        for of in data.grads[BEFORE:]:
            for one in (run, plain):
                trial.step(one, of, 0.0)
        what = "the result of the same steps without the skipped one"
        trial.same(trial.outcome(plain), trial.outcome(run), what)

    def zero(data: Data) -> None:
        """A flag of 0 has no effect."""
        need(data)
        trial.same(trial.run(data), trial.outcome(begun(data, len(data.grads))), "the result without a gate", data)

    later = partial(begun, steps=BEFORE)
    for label, finite, begin in (
        ("after steps", False, later), ("after steps, finite gradients", True, later),
        ("in the first step", False, begun), ("in the first step, finite gradients", True, begun),
        ("in the first step of a run that was loaded before any", False, partial(begun, loaded=True)),
        ("right after a run was loaded", False, partial(later, loaded=True)),
        ("after a step that was skipped", False, partial(later, skipped=True)),
    ):
        yield Try(label, partial(trial.data, OF_RUNS, 5), partial(skipped, finite, begin))
    yield Try("found_inf=0", partial(trial.data, OF_RUNS, 5), zero)


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
        both(of_cases, of_runs), runs=True),
    Law("L9", "factor", "rescale_grad and grad_factor multiply every gradient, wherever it is used.", factor),
)
