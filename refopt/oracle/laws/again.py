"""Repeated steps: determinism, resuming from a checkpoint, loading, and steps that the gate skips."""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np

from refopt.oracle.broken import Skipped
from refopt.oracle.laws.law import Try, of_runs
from refopt.oracle.running import Outcome, Running, skipping, state_dict_of
from refopt.oracle.subject import Run

SIZES = 45, 7, 300, (4, 5)
LARGE = 100_003
STEPS = 6
SHARED = "unchanged by a step of another optimizer (states shared after loading)"


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
        mine, other = trial.start(params), trial.start([x + x for x in params])
        for of in grads:
            trial.step(mine, of)
            trial.step(other, [-x for x in of])
        trial.same(trial.after(params, grads), trial.outcome(mine), "the result of the run alone", params, bits=True)

    yield of_runs("the same steps, five times", partial(again, SIZES, 4))
    yield of_runs("a large tensor", partial(again, [LARGE if trial.axes == 1 else (120, 90)], 2))
    yield of_runs("two runs that take turns", others_between)


def resume(trial: Running) -> Iterator[Try]:
    params, grads = trial.made(SIZES, STEPS)

    def ran(stops: Sequence[int], slowed: int | None) -> Outcome:
        """Save before some steps and load in another run, with a third run in between."""
        run = trial.start(params)
        for k, of in enumerate(grads):
            if k == slowed:
                trial.slow(run)
            if k in stops:
                saved, now = trial.save(run), trial.outcome(run).params
                trial.after([-x for x in params], [[x + x for x in of] for of in grads[:2]])
                run = trial.start(now, saved)
            trial.step(run, of)
        return trial.outcome(run)

    def stopped(*stops: int, slowed: int | None = None) -> None:
        got = ran(stops, slowed)
        trial.same(ran((), slowed), got, "the result of uninterrupted steps", params, bits=True)

    yield of_runs("saved and loaded after 3 of 6 steps", partial(stopped, 3))
    yield of_runs("saved and loaded after the learning rate was halved", partial(stopped, 3, slowed=2))
    yield of_runs("saved and loaded after the first", partial(stopped, 1))
    yield of_runs("saved and loaded before the first", partial(stopped, 0))
    yield of_runs("saved and loaded after each", partial(stopped, *range(STEPS)))
    yield of_runs("three runs from what was saved", partial(independent, trial, SIZES, 2))


def independent(
    trial: Running, sizes: Sequence[Any], before: int, turns: tuple[int, ...] = (1, 0, 2), slowed: int | None = None,
    saved: Callable[[Run], Any] = lambda run: run.save(),
) -> None:
    """A run and two that load its state take turns, and none affects another.

    Args:
        sizes: of the tensors.
        before: how many steps the first run takes before.
        turns: the order of the three, two steps each; the first is 0.
        slowed: whose learning rate is halved after loading.
        saved: what the others load, by default from a file.
    """
    params, grads = trial.made(sizes, before + 4)
    first, alone = trial.start(params), trial.start(params)
    for of in grads[:before]:
        trial.step(first, of)
        trial.step(alone, of)
    now, state, of_file = trial.outcome(first).params, trial.tried(saved, first), trial.save(first)
    runs = [first, trial.start(now, state), trial.start(now, state)]
    expected = [alone, trial.start(now, of_file), trial.start(now, of_file)]
    if slowed is not None:
        trial.slow(runs[slowed])
        trial.slow(expected[slowed])
    for k in turns * 2:
        stood = [trial.outcome(run) for run in runs]
        trial.step(runs[k], grads[before + k])
        trial.step(expected[k], grads[before + k])
        for other in {0, 1, 2} - {k}:
            trial.same(stood[other], trial.outcome(runs[other]), SHARED, params, bits=True)
    for one, run in zip(expected, runs, strict=True):
        trial.same(trial.outcome(one), trial.outcome(run), "the result with a file between the runs", params, bits=True)


def loading(trial: Running) -> Iterator[Try]:
    apart = partial(independent, trial, saved=state_dict_of)
    yield of_runs("one element, after a step", partial(apart, [1], 1))
    yield of_runs("several tensors, the first run steps first", partial(apart, SIZES, 2, (0, 2, 1)))
    yield of_runs("before the first step", partial(apart, SIZES, 0))
    yield of_runs("one learning rate halved", partial(apart, SIZES, 1, slowed=1))


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

    def restored(begin: Callable[[], Run]) -> Run:
        run = begin()
        return trial.start(trial.outcome(run).params, trial.save(run))

    def after_skipped() -> Run:
        run = after_steps()
        trial.step(run, lost, 1.0)
        return run

    def skipped(begin: Callable[[], Run], given: Sequence[np.ndarray]) -> None:
        """The skipped step changes nothing, and does not affect later steps."""
        need()
        run, plain = begin(), begin()
        before = trial.outcome(run)
        trial.step(run, given, 1.0)
        trial.same(before, trial.outcome(run), "unchanged, since found_inf is 1", params, bits=True)
        for of in grads[2:]:
            for one in (run, plain):
                trial.step(one, of, 0.0)
        what = "the result of the same steps without the skipped one"
        trial.same(trial.outcome(plain), trial.outcome(run), what, params, bits=True)

    def finite() -> None:
        """A flag of 0 has no effect."""
        need()
        run = fresh()
        for of in grads:
            trial.step(run, of, 0.0)
        trial.same(trial.after(params, grads), trial.outcome(run), "the result without a gate", params)

    yield of_runs("after steps", partial(skipped, after_steps, lost))
    yield of_runs("after steps, finite gradients", partial(skipped, after_steps, grads[1]))
    yield of_runs("in the first step", partial(skipped, fresh, lost))
    yield of_runs("in the first step, finite gradients", partial(skipped, fresh, grads[1]))
    loaded_before_any = partial(restored, fresh)
    yield of_runs("in the first step of a run that was loaded before any", partial(skipped, loaded_before_any, lost))
    yield of_runs("right after a run was loaded", partial(skipped, partial(restored, after_steps), lost))
    yield of_runs("after a step that was skipped", partial(skipped, after_skipped, lost))
    yield of_runs("found_inf=0", finite)

