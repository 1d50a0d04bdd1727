"""Use: an optimizer as in practice, with its own states, for thousands of steps, in groups."""

from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np

from refopt.oracle.broken import Skipped
from refopt.oracle.cases import COUNTED, DECAYS, by_count, scalar_after
from refopt.oracle.exact.cases import Case
from refopt.oracle.laws.again import SIZES, STEPS, after, repeated, row_of_steps
from refopt.oracle.laws.law import Law, Try, both
from refopt.oracle.laws.numbers import varied
from refopt.oracle.laws.step import free
from refopt.oracle.running import Data, part
from refopt.oracle.trial import Trial

ALIKE = (45,) * 5
# After counts of fp16 have stuck at 2,048; where an index of 16 bits wraps; where counts of fp32 stick.
COUNTS = 3001, 2**16 + 1, 2**24 + 1
FEWEST, MOST = 2_050, 5_000  # calls


def of_cases(trial: Trial) -> Iterator[Try]:
    one_by_one = partial(row_of_steps, trial)
    yield Try(f"{STEPS} steps of tensors of one shape", lambda: repeated(trial.case(ALIKE)), one_by_one)
    yield Try(f"{STEPS} steps of groups of other lr", lambda: repeated(varied(trial, "lr", ALIKE, count=1)), one_by_one)
    for count in COUNTS:
        yield Try(f"step {count}", partial(late, trial, count), trial.hold)
    if trial.dtype == "float32":
        calls = int(np.random.default_rng([trial.secret, 7]).integers(FEWEST, MOST))
        label = f"after {calls} calls, of secret {trial.secret}"
        # With decay, parameters would converge, and a wrong rate would not show.
        still: dict[str, Any] = {name: 0.0 for name in DECAYS if name in trial.numbers() and free(trial, name)}
        yield Try(label, lambda: trial.case([3], None, **still, **_slow(trial)), partial(_calls, trial, calls))


def _slow(trial: Trial) -> dict[str, Any]:
    """Averages so long that their corrections depend visibly on step numbers in the thousands."""
    usual = trial.numbers()
    return {name: 1 - 2.0**-11 for name in ("beta1", "beta2") if name in usual and free(trial, name)}


def late(trial: Trial, count: int) -> Case:
    """A step with a large number, from states of an early one; powers belong to its number."""
    case = trial.case([7], None, count=60, **(_slow(trial) if count == COUNTS[0] else {}))
    names = by_count(trial.row)
    if {*names} - COUNTED:
        raise Skipped("its scalars depend on every earlier step", lacks=True)
    scalars = {name: [scalar_after(name, case.steps[0], count - 1, trial.real)] for name in names}
    return case.replace(**scalars, count=count)


def _calls(trial: Trial, calls: int, case: Case) -> None:
    """The last of thousands of calls equals one from copies of the stored results."""
    before = trial.run(case.replace(steps=case.steps * (calls - 1)))
    last = trial.hold(case.replace(**after(case, before), count=calls))
    if not getattr(trial.subject, "is_function", False):  # every call of a function is independent
        at_once = trial.run(case.replace(steps=case.steps * calls))
        trial.same(last, at_once, f"the result of the last of {calls} calls from copies")


def of_runs(trial: Trial) -> Iterator[Try]:
    def refilled(data: Data) -> None:
        """Gradients keep their memory, as with ``zero_grad(set_to_none=False)``."""
        run = trial.start(data.params)
        for of in data.grads:
            trial.step(run, of, refill=True)
        trial.same(trial.run(data), trial.outcome(run), "the result of new gradients in each step", data)

    def added(data: Data) -> None:
        """A group that is added later gets the results that it gets alone; learning rates are per group."""
        parts = [data.only([0, 1]), data.only([2, 3])]
        run, runs = trial.start(parts[0].params), [trial.start(x.params) for x in parts]
        for k, of in enumerate(data.grads):
            if k == 2:
                trial.slow(run)
                trial.slow(runs[0])
                trial.tried(run.add, [trial.placed(x) for x in parts[1].params])
            trial.step(run, of if k >= 2 else of[:2])
            for one, x in zip(runs, parts[: k // 2 + 1], strict=False):
                trial.step(one, x.grads[k])
        for k, one in enumerate(runs):
            got = part(trial.outcome(run), [2 * k, 2 * k + 1])
            trial.same(trial.outcome(one), got, "the results of the two groups alone", data, at=2 * k)

    yield Try("gradients that keep their memory", partial(trial.data, SIZES, 4), refilled)
    yield Try("a group that is added later", partial(trial.data, SIZES, 4), added)


LAWS = (
    Law("L24", "use", "Own states, groups, reused gradient memory, and thousands of steps change nothing.",
        both(of_cases, of_runs), runs=True, secret=True),
)
