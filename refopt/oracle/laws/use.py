"""Use: an optimizer as in practice, with its own states, for thousands of steps, in groups."""

from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np

from refopt.oracle.broken import Skipped
from refopt.oracle.cases import COUNTED, DECAYS, by_count, scalar_after
from refopt.oracle.exact.cases import Case
from refopt.oracle.laws.calls import SIZES, STEPS, after, repeated, row_of_steps, varied
from refopt.oracle.laws.law import Law, Try, both, of_runs
from refopt.oracle.laws.step import free
from refopt.oracle.requiring import require_same
from refopt.oracle.running import Outcome, Running
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
        require_same(last, at_once, f"the last of {calls} calls, and the same call from copies")


def of_an_optimizer(trial: Running) -> Iterator[Try]:
    params, grads = trial.made(SIZES, 4)

    def refilled() -> None:
        """Gradients keep their memory, as with ``zero_grad(set_to_none=False)``."""
        run = trial.start(params)
        for of in grads:
            trial.step(run, of, refill=True)
        trial.same(trial.after(params, grads), trial.outcome(run), "the result of new gradients in each step", params)

    def added() -> None:
        """A group that is added later gets the results that it gets alone; learning rates are per group."""
        run, runs = trial.start(params[:2]), [trial.start(params[:2]), trial.start(params[2:])]
        for k, of in enumerate(grads):
            if k == 2:
                trial.slow(run)
                trial.slow(runs[0])
                trial.tried(run.add, [trial.placed(x) for x in params[2:]])
            trial.step(run, of if k >= 2 else of[:2])
            trial.step(runs[0], of[:2])
            if k >= 2:
                trial.step(runs[1], of[2:])
        came = [trial.outcome(one) for one in runs]
        expected = Outcome(came[0].params + came[1].params, came[0].states + came[1].states)
        trial.same(expected, trial.outcome(run), "the results of the two groups alone", params)

    yield of_runs("gradients that keep their memory", refilled)
    yield of_runs("a group that is added later", added)


LAWS = (
    Law("L24", "use", "Own states, groups, reused gradient memory, and thousands of steps change nothing.",
        both(of_cases, of_an_optimizer), runs=True, secret=True),
)
