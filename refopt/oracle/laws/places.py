"""Placement of arrays: strides, views and addresses make no difference, and only the parameters are written."""

import contextlib
from collections.abc import Callable, Iterator
from functools import partial

import numpy as np

from refopt.oracle.broken import Broken, Misconduct, Skipped
from refopt.oracle.laws.law import Try, of_runs
from refopt.oracle.memory import LAYOUTS, Placed, columns, dense, gapped, guarded, spread
from refopt.oracle.running import Running

SHAPES = 45, (4, 5), (40, 61), (2, 3, 7), ()
EVERYWHERE = "parameters and gradients", "parameters", "gradients"
SAME = "the result of contiguous arrays in C order"


@contextlib.contextmanager
def refusals() -> Iterator[None]:
    """Skip a layout that a step refuses with a TypeError or ValueError."""
    try:
        yield
    except Broken as broken:
        if isinstance(broken.__cause__, TypeError | ValueError):
            raise Skipped(f"takes no other layout (raises {type(broken.__cause__).__name__})", lacks=True) from None
        raise


def layouts(trial: Running) -> Iterator[Try]:
    def placed(make: Callable[[np.ndarray], Placed], where: str) -> None:
        params, grads = trial.made(SHAPES)
        expected = trial.after(params, grads)
        mine = [make(x) if "parameters" in where else dense(x) for x in params]
        theirs = [[make(x) if "gradients" in where else dense(x) for x in of] for of in grads]
        with refusals():
            got = trial.after(mine, theirs)
        trial.same(expected, got, SAME, params)

    def expanded() -> None:
        """A gradient with one number for all elements."""
        shapes = trial.shapes(SHAPES)
        params, grads = trial.params(shapes), [[spread(x) for x in of] for of in trial.steps(shapes)]
        expected = trial.after(params, [[np.array(x.view()) for x in of] for of in grads])
        with refusals():
            got = trial.after(params, grads)
        trial.same(expected, got, SAME, params)

    def shared() -> None:
        """A gradient shared by two parameters."""
        params, made = trial.made([45, 45])
        grads = [[of[0], of[0]] for of in made]
        expected = trial.after(params, [[x.copy() for x in of] for of in grads])
        trial.same(expected, trial.after(params, grads), "the result of two separate, equal gradients", params)

    for label, make in LAYOUTS.items():
        for where in EVERYWHERE:
            yield of_runs(f"{label}, {where}", partial(placed, make, where))
    yield of_runs("a gradient of one number, expanded", expanded)
    yield of_runs("one gradient for two tensors", shared)


def untouched(trial: Running) -> Iterator[Try]:
    def around(make: Callable[[np.ndarray], Placed]) -> None:
        if not trial.optimizer.in_place:
            raise Skipped("writes no array", lacks=True)
        shapes = trial.shapes([17, 300, (3, 5), (2, 3, 7)])
        mine = [make(x) for x in trial.params(shapes)]
        with refusals():
            run = trial.start([x.copy() for x in mine])
        for of in trial.steps(shapes):
            theirs = [make(x) for x in of]
            with refusals():
                trial.step(run, [x.copy() for x in theirs])
            for i, (before, (whole, _)) in enumerate(zip(theirs, run.grads(), strict=True)):
                if whole is not None and whole.tobytes() != before.whole.tobytes():
                    raise Broken(f"grads[{i}], or the bytes around it: expected unchanged, got others")
        for i, (before, whole) in enumerate(zip(mine, run.wholes(), strict=True)):
            if whole is not None and before.around(before.whole).tobytes() != before.around(whole).tobytes():
                raise Misconduct(f"params[{i}]: expected the bytes around it unchanged, got some written")

    def gradients(lost: bool) -> None:
        shapes = trial.shapes([45, 300, (4, 5)])
        run = trial.start(trial.params(shapes))
        for of in trial.steps(shapes):
            if lost:
                of = [np.where(np.arange(x.size).reshape(x.shape) % 7 == 3, np.nan, x).astype(x.dtype) for x in of]
            trial.step(run, [x.copy() for x in of])
            for i, (before, (_, now)) in enumerate(zip(of, run.grads(), strict=True)):
                if now is not None and before.tobytes() != np.ascontiguousarray(now).tobytes():
                    raise Broken(f"grads[{i}]: expected unchanged, since a step does not write it, got another")

    yield of_runs("gradients", partial(gradients, False))
    yield of_runs("gradients with NaN", partial(gradients, True))
    yield of_runs("between guards", partial(around, partial(guarded, shift=0)))
    yield of_runs("between guards, an element off alignment", partial(around, guarded))
    yield of_runs("between the elements of a slice", partial(around, gapped))
    yield of_runs("next to the columns of a matrix", partial(around, columns))

