"""Steps in a row and again: determinism, resuming from what was stored, and loading."""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

from refopt.oracle.broken import Caused
from refopt.oracle.cases import DECAYS
from refopt.oracle.exact.cases import Case, Outcome
from refopt.oracle.exact.laws import reference
from refopt.oracle.laws.law import Law, Try, both, of_bound, of_runs, taken
from refopt.oracle.laws.numbers import LISTS, SIZES
from refopt.oracle.laws.step import free
from refopt.oracle.running import Data, state_dict_of
from refopt.oracle.subject import Run
from refopt.oracle.trial import WITH_GROUPS, Trial

OTHERS = 45, 7, 300, 33
OF_RUNS = 45, 7, 300, (4, 5)
LARGE = 100_003
STEPS, OF_A_RUN = 3, 6
LATE = 1001  # a step number beyond 8 bits, and beyond what bf16 can count to
SHARED = "unchanged by a step of another optimizer (states shared after loading)"


def in_a_row(trial: Trial) -> Iterator[Try]:
    def between(case: Case) -> None:
        """Earlier calls do not affect later ones."""
        before = trial.run(case)
        trial.hold(trial.case(OTHERS, count=2))
        trial.same(before, trial.run(case), "the result before a call with tensors of other sizes")

    one_by_one = partial(row_of_steps, trial)
    yield of_bound(trial, f"step {LATE}", [7], count=LATE)
    yield Try(f"{STEPS} steps", lambda: repeated(trial.case(SIZES)), one_by_one)
    if still := undecayed(trial):  # a state may then be the gradient's own array
        yield Try(f"{STEPS} steps without decay", lambda: repeated(trial.case(SIZES, None, **still)), one_by_one)
    yield Try(f"{STEPS} steps of other numbers", lambda: changing(trial, trial.case(SIZES)), one_by_one)
    if betas := [name for name in ("beta1", "beta2") if free(trial, name)]:
        yield Try(f"{STEPS} steps of other betas", lambda: _scheduled(trial.case(SIZES), betas), one_by_one)
    yield Try("other tensors between", lambda: trial.case(SIZES, count=2), between)


def undecayed(trial: Trial) -> dict[str, Any]:
    """Numbers without decay, as far as the step takes them."""
    return {name: 0.0 for name in DECAYS if free(trial, name)}


def row_of_steps(trial: Trial, case: Case) -> None:
    """Steps in a row equal steps that each start from copies of the stored results."""
    lists = any(isinstance(x, list) for x in case.steps[0].values())
    at_once = taken(trial, case, LISTS) if lists else trial.run(case)
    once = case
    for k, step in enumerate(case.steps):
        got = trial.hold(once.replace(steps=[step]))
        once = once.replace(**after(once.replace(steps=[step]), got), count=case.count + k + 1)
    trial.same(got, at_once, f"the result of {STEPS} steps, each from copies")


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


def resume(trial: Trial) -> Iterator[Try]:
    def ran(data: Data, stops: Sequence[int], slowed: int | None) -> Outcome:
        """Save before some steps and load in another run, with a third run in between."""
        run = trial.start(data.params)
        for k, of in enumerate(data.grads):
            if k == slowed:
                trial.tried(run.slow)
            if k in stops:
                saved, kept = trial.tried(run.save), trial.outcome(run)
                trial.run(Data([-x for x in data.params], [[x + x for x in of] for of in data.grads[:2]]))
                run = trial.start(kept["params"], saved)
                if trial.coded:
                    uncast(kept, trial.outcome(run))
            trial.step(run, of)
        return trial.outcome(run)

    def stopped(*stops: int, slowed: int | None = None) -> Callable[[Data], None]:
        def holds(data: Data) -> None:
            got = ran(data, stops, slowed)
            trial.same(ran(data, (), slowed), got, "the result of uninterrupted steps")

        return holds

    data = partial(trial.data, [*OF_RUNS, *[WITH_GROUPS] * trial.coded], OF_A_RUN)
    yield Try("saved and loaded after 3 of 6 steps", data, stopped(3))
    yield Try("saved and loaded after the learning rate was halved", data, stopped(3, slowed=2))
    yield Try("saved and loaded after the first", data, stopped(1))
    yield Try("saved and loaded before the first", data, stopped(0))
    yield Try("saved and loaded after each", data, stopped(*range(OF_A_RUN)))
    yield of_runs("three runs from what was saved", partial(independent, trial, OF_RUNS, 2))


def uncast(saved: Outcome, loaded: Outcome) -> None:
    """Codes and scales keep their dtypes."""
    for name in [name for name in saved if name in loaded]:
        for i, (x, y) in enumerate(zip(saved[name], loaded[name], strict=True)):
            if x is not None and y is not None and x.dtype != y.dtype:
                raise Caused("states are cast on load", f"{name}[{i}]: expected {x.dtype}, as saved, got {y.dtype}")


def independent(
    trial: Trial, sizes: Sequence[Any], before: int, turns: tuple[int, ...] = (1, 0, 2), slowed: int | None = None,
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
    data = trial.data(sizes, before + 4)
    first, alone = trial.start(data.params), trial.start(data.params)
    for of in data.grads[:before]:
        trial.step(first, of)
        trial.step(alone, of)
    now, state, of_file = trial.outcome(first)["params"], trial.tried(saved, first), trial.tried(first.save)
    runs = [first, trial.start(now, state), trial.start(now, state)]
    expected = [alone, trial.start(now, of_file), trial.start(now, of_file)]
    if slowed is not None:
        trial.tried(runs[slowed].slow)
        trial.tried(expected[slowed].slow)
    for k in turns * 2:
        stood = [trial.outcome(run) for run in runs]
        trial.step(runs[k], data.grads[before + k])
        trial.step(expected[k], data.grads[before + k])
        for other in {0, 1, 2} - {k}:
            trial.same(stood[other], trial.outcome(runs[other]), SHARED)
    for one, run in zip(expected, runs, strict=True):
        trial.same(trial.outcome(one), trial.outcome(run), "the result with a file between the runs")


def loading(trial: Trial) -> Iterator[Try]:
    apart = partial(independent, trial, saved=state_dict_of)
    yield of_runs("one element, after a step", partial(apart, [1], 1))
    yield of_runs("several tensors, the first run steps first", partial(apart, OF_RUNS, 2, (0, 2, 1)))
    yield of_runs("before the first step", partial(apart, OF_RUNS, 0))
    yield of_runs("one learning rate halved", partial(apart, OF_RUNS, 1, slowed=1))


def determinism(trial: Trial) -> Iterator[Try]:
    """The same steps again; as a case, if the subject cannot be run."""

    def again(times: int, of: Case | Data) -> None:
        first = trial.run(of)
        for k in range(times):
            trial.soil([x.shape for x in of.params], k)
            trial.same(first, trial.run(of), "the result of the same steps earlier")

    def others_between(data: Data) -> None:
        """Two runs that alternate."""
        mine, other = trial.start(data.params), trial.start([x + x for x in data.params])
        for of in data.grads:
            trial.step(mine, of)
            trial.step(other, [-x for x in of])
        trial.same(trial.run(data), trial.outcome(mine), "the result of the run alone")

    if trial.row is not None and trial.why_not:
        yield Try("the same step, five times", partial(trial.case, SIZES, count=2), partial(again, 4))
    yield Try("the same steps, five times", partial(trial.data, OF_RUNS), partial(again, 4))
    yield Try("a large tensor", partial(trial.data, [LARGE]), partial(again, 2))
    yield Try("two runs that take turns", partial(trial.data, OF_RUNS), others_between)


LAWS = (
    Law("L16", "resuming", "Steps in a row equal steps from what was stored: save, load, resume.",
        both(in_a_row, resume), runs=True),
    Law("L17", "determinism", "The same steps give the same bits, whatever else runs.", determinism, runs=True),
    Law("L28", "loading", "A state that is loaded in the same process belongs to who loads it.", loading, runs=True),
)
