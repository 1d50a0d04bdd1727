"""Repeated steps: determinism, resuming from a checkpoint, and steps that the gate skips."""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np

from refopt.oracle.broken import Skipped
from refopt.oracle.laws.law import Try, of_runs
from refopt.oracle.running import Running, skipping
from refopt.oracle.subject import Run

SIZES = 45, 7, 300, (4, 5)
LARGE = 100_003
STEPS = 6


def determinism(trial: Running) -> Iterator[Try]:
    def again(sizes: Sequence[Any], times: int) -> None:
        params, grads = trial.made(sizes)
        first = trial.after(params, grads)
        for k in range(times):
            trial.soil([x.shape for x in params], k)
            trial.same(first, trial.after(params, grads), "the result of the same steps earlier", params, bits=True)

    def others_between() -> None:
        """Two runs that alternate."""
        params, grads = trial.made(SIZES)
        others = [x + x for x in params]
        mine, other = trial.start(params), trial.start(others)
        for of in grads:
            trial.step(mine, of)
            trial.step(other, [-x for x in of])
        trial.same(trial.after(params, grads), trial.came(mine), "the result of the run alone", params, bits=True)

    yield of_runs("the same steps, five times", partial(again, SIZES, 4))
    yield of_runs("a large tensor", partial(again, [LARGE if trial.axes == 1 else (120, 90)], 2))
    yield of_runs("two runs that take turns", others_between)


def resume(trial: Running) -> Iterator[Try]:
    params, grads = trial.made(SIZES, STEPS)

    def stopped(*stops: int) -> None:
        """Save after some steps and load in another run, with a third run in between."""
        run = trial.start(params)
        for k, of in enumerate(grads):
            if k in stops:
                saved, now = trial.save(run), trial.came(run).params
                trial.after([-x for x in params], [[x + x for x in of] for of in grads[:2]])
                run = trial.start(now, saved)
            trial.step(run, of)
        what = "the result of uninterrupted steps"
        trial.same(trial.after(params, grads), trial.came(run), what, params, bits=True)

    def kept() -> None:
        """Two runs from one checkpoint do not share what they load."""
        run = trial.start(params)
        for of in grads[:2]:
            trial.step(run, of)
        saved, now = trial.save(run), trial.came(run).params
        runs = [trial.start(now, saved) for _ in range(2)]
        for of in grads[2:4]:
            for one in runs:
                trial.step(one, of)
        came = [trial.came(run) for run in runs]
        trial.same(came[0], came[1], "the result of another run from the same checkpoint", params, bits=True)

    def scheduled() -> None:
        """The checkpoint has a changed learning rate."""
        runs = [trial.start(params), trial.start(params)]
        for k, of in enumerate(grads):
            for run in runs:
                if k == 2:
                    trial.slow(run)
            if k == 3:
                saved = trial.save(runs[1])
                runs[1] = trial.start(trial.came(runs[1]).params, saved)
            for run in runs:
                trial.step(run, of)
        came = [trial.came(run) for run in runs]
        trial.same(came[0], came[1], "the result of uninterrupted steps", params, bits=True)

    yield of_runs("saved and loaded after 3 of 6 steps", partial(stopped, 3))
    yield of_runs("saved and loaded after the learning rate was halved", scheduled)
    yield of_runs("saved and loaded after the first", partial(stopped, 1))
    yield of_runs("saved and loaded before the first", partial(stopped, 0))
    yield of_runs("saved and loaded after each", partial(stopped, *range(STEPS)))
    yield of_runs("two runs from what was saved", kept)


def gate(trial: Running) -> Iterator[Try]:
    params, grads = trial.made(SIZES, 5)
    lost = [np.full_like(x, np.nan) for x in grads[0]]

    def need() -> None:
        if not trial.optimizer.gated:
            raise Skipped("takes no found_inf", lacks=True)
        with skipping("takes no found_inf"):  # a step that accepts the flag only to refuse it
            trial.step(fresh(), grads[0], 0.0)

    def fresh() -> Run:
        return trial.start(params)

    def after_steps() -> Run:
        run = fresh()
        for of in grads[:2]:
            trial.step(run, of, 0.0)
        return run

    def restored() -> Run:
        run = after_steps()
        saved = trial.save(run)
        return trial.start(trial.came(run).params, saved)

    def restored_fresh() -> Run:
        run = fresh()
        return trial.start(params, trial.save(run))

    def after_skipped() -> Run:
        run = after_steps()
        trial.step(run, lost, 1.0)
        return run

    def skipped(begin: Callable[[], Run], given: Sequence[np.ndarray]) -> None:
        """The skipped step changes nothing, and does not affect later steps."""
        need()
        run, plain = begin(), begin()
        before = trial.came(run)
        trial.step(run, given, 1.0)
        trial.same(before, trial.came(run), "unchanged, since found_inf is 1", params, bits=True)
        for of in grads[2:]:
            for one in (run, plain):
                trial.step(one, of, 0.0)
        what = "the result of the same steps without the skipped one"
        trial.same(trial.came(plain), trial.came(run), what, params, bits=True)

    def finite() -> None:
        """A flag of 0 has no effect."""
        need()
        runs = fresh(), fresh()
        for of in grads:
            trial.step(runs[0], of)
            trial.step(runs[1], of, 0.0)
        came = [trial.came(run) for run in runs]
        trial.same(came[0], came[1], "the result without a gate", params)

    yield of_runs("after steps", partial(skipped, after_steps, lost))
    yield of_runs("after steps, finite gradients", partial(skipped, after_steps, grads[1]))
    yield of_runs("in the first step", partial(skipped, fresh, lost))
    yield of_runs("in the first step, finite gradients", partial(skipped, fresh, grads[1]))
    yield of_runs("in the first step of a run that was loaded before any", partial(skipped, restored_fresh, lost))
    yield of_runs("right after a run was loaded", partial(skipped, restored, lost))
    yield of_runs("after a step that was skipped", partial(skipped, after_skipped, lost))
    yield of_runs("found_inf=0", finite)

