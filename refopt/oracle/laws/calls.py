"""Calls: numbers for each tensor, tensors without a gradient, several steps, the same call again."""

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np

from refopt.oracle.broken import Misconduct, Skipped
from refopt.oracle.cases import DECAYS
from refopt.oracle.exact.cases import Case, Outcome
from refopt.oracle.exact.laws import reference
from refopt.oracle.laws import again, together
from refopt.oracle.laws.law import Law, Try, both, of_bound
from refopt.oracle.laws.step import free
from refopt.oracle.laws.unforeseen import refilled
from refopt.oracle.requiring import require_same
from refopt.oracle.running import skipping
from refopt.oracle.trial import Trial

SIZES = 300, 45, 7, 20
OTHERS = 45, 7, 300, 33
STEPS = 3
MANY = 111
LATE = 1001  # a step number beyond 8 bits, and beyond what bf16 can count to
TIMES = 5


def numbers(trial: Trial) -> Iterator[Try]:
    for hyper in trial.row.hypers:
        if hyper.per_tensor and hyper.name != "seed" and trial.takes(hyper.name):
            make = partial(varied, trial, hyper.name)
            yield Try(f"{hyper.name} for each tensor", make, partial(held_if_taken, trial, what="numbers in lists"))
    make = partial(varied, trial, "lr", (*SIZES[:2], 0, *SIZES[2:]))
    yield Try("lr for each, one of them empty", make, partial(held_if_taken, trial, what="numbers in lists"))
    if trial.takes("lr"):
        yield Try("lr for each, untouched", partial(varied, trial, "lr"), partial(untouched, trial))
    if getattr(trial.subject, "is_function", False):
        yield Try("numbers of numpy.float64", partial(of_numpy, trial), partial(held_unless_promoted, trial))
    make = partial(varied, trial, "lr", [3 + i % 5 for i in range(MANY)])
    yield Try(f"lr for each of {MANY}", make, partial(held_if_taken, trial, what="numbers in lists"))


def varied(trial: Trial, name: str, sizes: Sequence[int] = SIZES, count: int = 2) -> Case:
    if name in trial.fixed:
        raise Skipped(f"{name} is fixed at {trial.fixed[name]:g}", lacks=True)
    trial.need(name)
    case = trial.case(sizes, count=count)
    hyper = next(hyper for hyper in trial.row.hypers if hyper.name == name)
    factors = [1 + i % 32 / 4 for i in range(len(sizes))]
    if hyper.below > 1 and any(slot.initial == name for slot in trial.row.slots):  # powers of more than 1 would grow
        factors = [1 / factor for factor in factors]
    values = [hyper.times(case.steps[0][name], factor) for factor in factors]
    return case.replace(steps=[case.steps[0] | {name: values}])


def of_numpy(trial: Trial) -> Case:
    """Numbers as NumPy's functions return them; they are Python floats in other cases."""
    case = trial.case(SIZES, count=2)
    return case.replace(steps=[{name: np.float64(x) if type(x) is float else x for name, x in case.steps[0].items()}])


def held_unless_promoted(trial: Trial, case: Case) -> None:
    """A step whose results become fp64 with such numbers is told so: its caller can pass Python floats."""
    try:
        trial.hold(case)
    except Misconduct as error:
        if "got one of float64" not in str(error):
            raise
        text = "numbers of numpy.float64, as np.cos returns them: NumPy promotes results to float64; pass float(lr)"
        raise Skipped(text, lacks=True) from None


def held_if_taken(trial: Trial, case: Case, what: str) -> None:
    trial.hold(case, run_if_taken(trial, case, what))


def run_if_taken(trial: Trial, case: Case, what: str) -> Outcome:
    """Run a case; a step that raises an error does not take it, since its signature cannot say so."""
    with skipping(f"takes no {what}"):
        return trial.run(case)


def untouched(trial: Trial, case: Case) -> None:
    """A step that takes lists of numbers does not change them."""
    run_if_taken(trial, case, "numbers in lists")
    altered(trial, case)


def altered(trial: Trial, case: Case) -> None:
    """A step does not write numbers that are arrays or lists."""
    for name in trial.observe(case).altered:
        raise Misconduct(f"{name}: expected unchanged, since a step only reads it, got another value in it")


def without_gradient(trial: Trial) -> Iterator[Try]:
    def make(case: Case) -> Case:
        return case.replace(grads=[None, case.grads[1], None, case.grads[3]])

    holds = partial(held_if_taken, trial, what="gradients of None")
    yield Try("two of four", lambda: make(trial.case(SIZES, count=2)), holds)
    yield Try("two of four, lr for each", lambda: make(varied(trial, "lr")), holds)


def going_on(trial: Trial) -> Iterator[Try]:
    def between(case: Case) -> None:
        """Earlier calls do not affect later ones."""
        before = trial.run(case)
        trial.hold(trial.case(OTHERS, count=2))
        require_same(trial.run(case), before, "before and after a call with tensors of other sizes")

    def filled(case: Case) -> None:
        refilled(trial, case, trial.case(SIZES, count=2, seed=1))

    in_a_row = partial(row_of_steps, trial)
    yield of_bound(trial, f"step {LATE}", [7], count=LATE)
    yield Try(f"{STEPS} steps", lambda: repeated(trial.case(SIZES)), in_a_row)
    if still := undecayed(trial):  # a state may then be the gradient's own array
        yield Try(f"{STEPS} steps without decay", lambda: repeated(trial.case(SIZES, None, **still)), in_a_row)
    yield Try(f"{STEPS} steps of other numbers", lambda: changing(trial, trial.case(SIZES)), in_a_row)
    betas = [name for name in ("beta1", "beta2") if name in trial.numbers() and trial.takes(name)]
    if betas := [name for name in betas if name not in trial.fixed]:
        yield Try(f"{STEPS} steps of other betas", lambda: _scheduled(trial.case(SIZES), betas), in_a_row)
    yield Try("other tensors between", lambda: trial.case(SIZES, count=2), between)
    yield Try("other values in the same arrays", lambda: trial.case(SIZES, count=2), filled)


def undecayed(trial: Trial) -> dict[str, Any]:
    """Numbers without decay, as far as the step takes them."""
    return {name: 0.0 for name in DECAYS if name in trial.numbers() and free(trial, name)}


def row_of_steps(trial: Trial, case: Case) -> None:
    """Steps in a row equal steps that each start from copies of the stored results."""
    lists = any(isinstance(x, list) for x in case.steps[0].values())
    at_once = run_if_taken(trial, case, "numbers in lists") if lists else trial.run(case)
    once = case
    for k, step in enumerate(case.steps):
        got = trial.hold(once.replace(steps=[step]))
        once = once.replace(**after(once.replace(steps=[step]), got), count=case.count + k + 1)
    require_same(got, at_once, f"{STEPS} steps in a row, and each from copies")


def repeated(case: Case) -> Case:
    return case.replace(steps=case.steps * STEPS)


def changing(trial: Trial, case: Case) -> Case:
    """Steps whose numbers change, except those that states of several steps depend on."""
    stay = {"rescale_grad", "seed", "rho", "decay_base", "beta1", "beta2", *trial.fixed}
    there = [hyper.name for hyper in trial.row.hypers if trial.takes(hyper.name) and not hyper.whole]
    names = [name for name in there if name not in stay]
    step = case.steps[0]
    return case.replace(steps=[step | {name: step[name] * (1 - k / 4) for name in names} for k in range(STEPS)])


def _scheduled(case: Case, names: Sequence[str]) -> Case:
    """Steps in which some numbers come ever closer to 1.

    Powers may be products, or powers of the current beta: results that depend on this have wide bounds, or none.
    """
    step = case.steps[0]
    return case.replace(steps=[step | {name: 1 - (1 - step[name]) / 2**k for name in names} for k in range(STEPS)])


def after(case: Case, got: Outcome) -> dict[str, list]:
    """The present slots after a step; the reference's for those that were not returned."""
    written = [slot.name for slot in case.routine.slots if slot.written and case.slots[slot.name] is not None]
    ours = reference(case.copy()) if any(name not in got for name in written) else {}
    return {name: got.get(name) or ours[name] for name in written}


def anew(trial: Any) -> Iterator[Try]:
    """The same call again; as a case, if the subject cannot be run."""
    if trial.row is not None and trial.why_not:
        yield Try("some tensors", lambda: trial.case(SIZES, count=2), partial(twice, trial))
    yield from again.determinism(trial)


def twice(trial: Trial, case: Case) -> None:
    before = trial.run(case)
    for _ in range(TIMES - 1):
        require_same(before, trial.run(case), "the same call twice")


LAWS = (
    Law("L14", "numbers in lists", "Numbers may be given per tensor, if the step takes lists.", numbers),
    Law("L15", "no gradient", "A tensor without a gradient stays, and affects no other, if the step takes None.",
        both(without_gradient, together.without), runs=True),
    Law("L16", "resuming", "Steps in a row equal steps from what was stored: save, load, resume.",
        both(going_on, again.resume), runs=True),
    Law("L17", "determinism", "The same steps give the same bits, whatever else runs.", anew, True),
    Law("L28", "loading", "A state that is loaded in the same process belongs to who loads it.", again.loading, True),
)
