"""Shapes and placement in memory: any number of axes, in any order, at any address; and nothing else is written."""

import contextlib
from collections.abc import Callable, Iterator
from functools import partial

import numpy as np

from refopt.oracle.broken import Broken, Misconduct, Skipped
from refopt.oracle.cases import in_one_order
from refopt.oracle.exact.cases import Case, copied
from refopt.oracle.laws import gate, numbers
from refopt.oracle.laws.law import Law, Try, both, of_bound, of_runs
from refopt.oracle.laws.step import of_row
from refopt.oracle.memory import LAYOUTS, Placed, columns, dense, gapped, guarded, spread
from refopt.oracle.running import Data, skipping
from refopt.oracle.trial import Trial

SHAPES: tuple[tuple[int, ...], ...] = ((), (1,), (4, 5), (2, 3, 7), (1, 1, 3), (3, 0, 2), (2, 3, 1, 2, 2))
OF_RUNS = 45, (4, 5), (40, 61), (2, 3, 7), ()
EVERYWHERE = "parameters and gradients", "parameters", "gradients"
SAME = "the result of contiguous arrays in C order"
# A step may refuse a layout.
refusals = partial(skipping, "takes no other layout", TypeError, ValueError)


def of_cases(trial: Trial) -> Iterator[Try]:
    def held(case: Case) -> None:
        """Check the results for arrays with several orders of axes against the bound, in one order."""
        with refusals():
            got = trial.run(case)
        trial.hold(*in_one_order(case, got))

    def lists_kept(case: Case) -> None:
        """The lists still have the same arrays, in the same order."""
        got = trial.run(case)
        if getattr(trial.subject, "replaced", False):
            raise Misconduct("the lists: expected the same arrays, since a step writes into them, got other arrays")
        trial.hold(case, got)

    for shape in SHAPES:
        yield of_bound(trial, f"shape {shape}", [shape], count=2)
    for turned in ("", "params", "grads", "states"):
        label = f"axes in another order{f', {turned} alone' if turned else ''}"
        yield Try(label, partial(transposed, trial, turned), held)
    yield Try("lists untouched", partial(trial.case, [7, 300, (4, 5), 0], count=2), lists_kept)
    yield from numbers.kept(trial)
    # PyTorch's fused optimizers write the gradients that they divide by a scale.
    for one in (*of_row(trial), *(gate.factor(trial) if getattr(trial.subject, "is_function", False) else ())):
        yield Try(f"gradients untouched, {one.label}", one.case, partial(gradients_kept, trial))


def gradients_kept(trial: Trial, case: Case) -> None:
    """Whatever numbers and choices make of a gradient, a step does not write that into its array."""
    mine = case.copy()
    trial.run_in_place(mine)
    for i, (before, now) in enumerate(zip(case.grads, mine.grads, strict=True)):
        if before.tobytes() != now.tobytes():
            raise Broken(f"grads[{i}]: expected unchanged, since a step does not write it, got another")


def transposed(trial: Trial, turned: str) -> Case:
    """All slots, or some, with their axes in the other order in memory."""
    case = trial.case([(4, 5), (2, 3, 7)], count=2)
    states = [slot.name for slot in trial.row.slots[2:]]
    named = {"": ["params", "grads", *states], "states": states}.get(turned, [turned])
    return case.replace(**copied({name: case.slots[name] for name in named}, "F"))


def of_places(trial: Trial) -> Iterator[Try]:
    def placed(make: Callable[[np.ndarray], Placed], where: str, data: Data) -> None:
        expected = trial.run(data)
        mine = [make(x) if "parameters" in where else dense(x) for x in data.params]
        theirs = [[make(x) if "gradients" in where else dense(x) for x in of] for of in data.grads]
        with refusals():
            got = trial.run(Data(mine, theirs))
        trial.same(expected, got, SAME, data)

    def expanded(data: Data) -> None:
        """A gradient with one number for all elements."""
        grads = [[spread(x) for x in of] for of in data.grads]
        expected = trial.run(Data(data.params, [[np.array(x.view()) for x in of] for of in grads]))
        with refusals():
            got = trial.run(Data(data.params, grads))
        trial.same(expected, got, SAME, data)

    def shared(data: Data) -> None:
        """A gradient shared by two parameters."""
        one = Data(data.params, [[of[0], of[0]] for of in data.grads])
        trial.same(trial.run(one.each(np.copy)), trial.run(one), "the result of two separate, equal gradients", one)

    for label, make in LAYOUTS.items():
        for where in EVERYWHERE:
            yield Try(f"{label}, {where}", partial(trial.data, OF_RUNS), partial(placed, make, where))
    yield Try("a gradient of one number, expanded", partial(trial.data, OF_RUNS), expanded)
    yield Try("one gradient for two tensors", partial(trial.data, [45, 45]), shared)


def untouched(trial: Trial) -> Iterator[Try]:
    """Gradients, and the bytes around arrays, are not written."""

    def around(make: Callable[[np.ndarray], Placed], lost: bool = False) -> None:
        data = trial.data([17, 300, (3, 5), (2, 3, 7)])
        if lost:
            data = Data(data.params, [[_with_nan(x) for x in of] for of in data.grads])
        data = data.each(make)
        if make is not dense and not trial.subject.in_place:
            raise Skipped("writes no array", lacks=True)
        refused = contextlib.nullcontext if make is dense else refusals
        with refused():
            run = trial.start([x.copy() for x in data.params])
        for of in data.grads:
            with refused():
                trial.step(run, [x.copy() for x in of])
            for i, (before, (whole, now)) in enumerate(zip(of, run.grads(), strict=True)):
                for x, known in ((whole, before.whole), (now, before.view())):
                    if x is not None and x.tobytes() != known.tobytes():
                        what = "expected unchanged, since a step does not write it"
                        raise Broken(f"grads[{i}], or the bytes around it: {what}, got others")
        for i, (before, whole) in enumerate(zip(data.params, run.wholes(), strict=True)):
            if whole is not None and before.around(before.whole).tobytes() != before.around(whole).tobytes():
                raise Misconduct(f"params[{i}]: expected the bytes around it unchanged, got some written")

    yield of_runs("gradients", partial(around, dense))
    yield of_runs("gradients with NaN", partial(around, dense, True))
    yield of_runs("between guards", partial(around, partial(guarded, shift=0)))
    yield of_runs("between guards, an element off alignment", partial(around, guarded))
    yield of_runs("between the elements of a slice", partial(around, gapped))
    yield of_runs("next to the columns of a matrix", partial(around, columns))


def _with_nan(x: np.ndarray) -> np.ndarray:
    """The same with NaN in every seventh element."""
    return np.where(np.arange(x.size).reshape(x.shape) % 7 == 3, np.nan, x).astype(x.dtype)


LAWS = (
    Law("L4", "layouts", "Strides, views and addresses change no result; gradients and other bytes stay.",
        both(of_cases, of_places, untouched), runs=True),
)
