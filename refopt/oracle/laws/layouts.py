"""Shapes and placement in memory: any number of axes, in any order, at any address; and nothing else is written."""

from collections.abc import Iterator
from functools import partial

from refopt.oracle.broken import Broken, Misconduct
from refopt.oracle.cases import in_one_order
from refopt.oracle.exact.cases import Case
from refopt.oracle.laws import gate, places
from refopt.oracle.laws.conduct import numbers_kept
from refopt.oracle.laws.law import Law, Try, both, of_bound
from refopt.oracle.laws.step import of_row
from refopt.oracle.trial import Trial

SHAPES: tuple[tuple[int, ...], ...] = ((), (1,), (4, 5), (2, 3, 7), (1, 1, 3), (3, 0, 2), (2, 3, 1, 2, 2))


def layouts(trial: Trial) -> Iterator[Try]:
    for shape in SHAPES:
        yield of_bound(trial, f"shape {shape}", [shape], count=2)
    yield Try("axes in another order", partial(transposed, trial), partial(held_or_refused, trial))
    for turned in ("params", "grads", "states"):
        make = partial(transposed, trial, turned)
        yield Try(f"axes in another order, {turned} alone", make, partial(held_or_refused, trial))

    def lists_kept(case: Case) -> None:
        """The lists still have the same arrays, in the same order."""
        got = trial.run(case)
        if getattr(trial.subject, "replaced", False):
            raise Misconduct("the lists: expected the same arrays, since a step writes into them, got other arrays")
        trial.hold(case, got)

    yield Try("lists untouched", lambda: trial.case([7, 300, (4, 5), 0], count=2), lists_kept)
    yield from numbers_kept(trial)
    # PyTorch's fused optimizers write the gradients that they divide by a scale.
    factors = gate.factor(trial) if getattr(trial.subject, "is_function", False) else ()
    for one in (*of_row(trial), *factors):
        yield Try(f"gradients untouched, {one.label}", one.case, partial(gradients_kept, trial))


def gradients_kept(trial: Trial, case: Case) -> None:
    """Whatever numbers and choices make of a gradient, a step does not write that into its array."""
    mine = case.copy()
    trial.run_in_place(mine)
    for i, (before, now) in enumerate(zip(case.grads, mine.grads, strict=True)):
        if before.tobytes() != now.tobytes():
            raise Broken(f"grads[{i}]: expected unchanged, since a step does not write it, got another")


def held_or_refused(trial: Trial, case: Case) -> None:
    """Check the results for arrays with several orders of axes against the bound, in one order."""
    with places.refusals():
        got = trial.run(case)
    trial.hold(*in_one_order(case, got))


def transposed(trial: Trial, turned: str = "") -> Case:
    """All slots, or some, with their axes in the other order in memory."""
    case = trial.case([(4, 5), (2, 3, 7)], count=2)
    states = [slot.name for slot in trial.row.slots[2:]]
    named = {"": ["params", "grads", *states], "states": states}.get(turned, [turned])
    return case.replace(**{
        name: [x if x is None else x.copy(order="F") for x in values]
        for name in named if (values := case.slots[name]) is not None
    })


LAWS = (
    Law("L4", "layouts", "Strides, views and addresses change no result; gradients and other bytes stay.",
        both(layouts, places.layouts, places.untouched), runs=True),
)
