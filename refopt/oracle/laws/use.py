"""Use: an optimizer as in practice, with its own states, for thousands of steps, in groups."""

from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np

from refopt.oracle.broken import Skipped
from refopt.oracle.cases import COUNTED, at_step, by_count
from refopt.oracle.exact.cases import Case
from refopt.oracle.laws.again import SIZES, STEPS, after, repeated, row_of_steps, undecayed
from refopt.oracle.laws.law import Law, Try, both
from refopt.oracle.laws.numbers import varied
from refopt.oracle.laws.step import free, times
from refopt.oracle.running import Data, part
from refopt.oracle.trial import Trial

ALIKE = (45,) * 5
# After counts of fp16 have stuck at 2,048; where an index of 16 bits wraps; where counts of fp32 stick.
COUNTS = 3001, 2**16 + 1, 2**24 + 1
BETWEEN = (100, 1000), (1002, 3000), (3002, 2**16)  # other steps are drawn from these
FEWEST, MOST = 2_050, 5_000  # calls
LITTLE = {"params": 2.0**-7}  # so that parameters are about as large as updates, and do not hide their errors


def of_cases(trial: Trial) -> Iterator[Try]:
    one_by_one = partial(row_of_steps, trial)
    yield Try(f"{STEPS} steps of tensors of one shape", lambda: repeated(trial.case(ALIKE)), one_by_one)
    yield Try(f"{STEPS} steps of groups of other lr", lambda: repeated(varied(trial, "lr", ALIKE, count=1)), one_by_one)
    rng = np.random.default_rng([trial.secret, 7])
    for count in (*COUNTS, *(int(rng.integers(*ends)) for ends in BETWEEN)):
        yield Try(f"step {count}", partial(late, trial, count), trial.hold)
    if trial.dtype == "float32":
        calls = int(rng.integers(FEWEST, MOST))
        label = f"after {calls} calls, of secret {trial.secret}"
        # With decay, parameters would converge, and a wrong rate would not show.
        make = partial(trial.case, [3], None, **undecayed(trial), **_slow(trial, calls))
        yield Try(label, make, partial(_calls, trial, calls))


def _slow(trial: Trial, count: int) -> dict[str, Any]:
    """Averages so long that their corrections depend visibly on the number of the step."""
    k = count.bit_length()
    slow = {"beta1": 1 - 2.0 ** (1 - k), "beta2": 1 - 2.0**-k} if k < 20 else {}
    return {name: x for name, x in slow.items() if free(trial, name)}


def late(trial: Trial, count: int) -> Case:
    """A step with a large number, from states of an early one.

    A tensor's gradient is 0, since 1 - beta and so the bound of a slow average is off by many times its own rounding.
    """
    case = trial.case([7, 5], None, count=60, **_slow(trial, count))
    case.grads[1][...] = 0
    if {*by_count(trial.row)} - COUNTED:
        raise Skipped("its scalars depend on every earlier step", lacks=True)
    return times(at_step(case, count, COUNTED), LITTLE)


def _calls(trial: Trial, calls: int, case: Case) -> None:
    """The last of thousands of calls is right, and equals one from copies of the stored results."""
    before = trial.run(case.replace(steps=case.steps * (calls - 1)))
    last = at_step(case.replace(**after(case, before)), calls, COUNTED)
    trial.hold(times(last, LITTLE))
    if not getattr(trial.subject, "is_function", False):  # every call of a function is independent
        at_once = trial.run(case.replace(steps=case.steps * calls))
        trial.same(trial.hold(last), at_once, f"the result of the last of {calls} calls from copies")


def of_runs(trial: Trial) -> Iterator[Try]:
    def refilled(data: Data) -> None:
        """Gradients keep their memory, as with ``zero_grad(set_to_none=False)``."""
        got = trial.outcome(trial.begun(data, refill=True))
        trial.same(trial.run(data), got, "the result of new gradients in each step", data)

    def added(data: Data) -> None:
        """A group that is added later gets the results that it gets alone; learning rates are per group."""
        parts = [data.only([0, 1]), data.only([2, 3])]
        run, runs = trial.start(parts[0].params), [trial.start(x.params) for x in parts]
        for k, of in enumerate(data.grads):
            if k == 2:
                trial.tried(run.slow)
                trial.tried(runs[0].slow)
                trial.tried(run.add, [trial.placed(x) for x in parts[1].params])
            trial.step(run, of if k >= 2 else of[:2])
            for one, x in zip(runs, parts[: k // 2 + 1], strict=False):
                trial.step(one, x.grads[k])
        for k, one in enumerate(runs):
            got = part(trial.outcome(run), [2 * k, 2 * k + 1])
            trial.same(trial.outcome(one), got, "the results of the two groups alone", data, at=2 * k)

    def loaded(data: Data) -> None:
        """Parameters get other values between two steps, as by loading a model."""
        if trial.row is not None and trial.kinds(trial.dtype).master:
            raise Skipped("what it saves has masters, which belong to the parameters", lacks=True)
        run = trial.begun(data, 2)
        others = [x + x for x in data.params]
        plain = trial.start(others, trial.tried(run.save))
        trial.tried(run.put, others)
        for of in data.grads[2:]:
            trial.step(run, of)
            trial.step(plain, of)
        trial.same(trial.outcome(plain), trial.outcome(run), "the result of a run that starts from them", data)

    def closed(data: Data) -> None:
        """The step calls a closure that computes the gradients."""
        run = trial.start(data.params)
        for of in data.grads:
            trial.tried(run.closed, [trial.placed(x) for x in of])
        trial.same(trial.run(data), trial.outcome(run), "the result without a closure", data)

    data = partial(trial.data, SIZES, 4)
    yield Try("gradients that a closure computes", data, closed)
    yield Try("gradients that keep their memory", data, refilled)
    yield Try("parameters that are changed between two steps", data, loaded)
    yield Try("a group that is added later", data, added)


LAWS = (
    Law("L24", "use", "Own states, groups, reused gradient memory, and thousands of steps change nothing.",
        both(of_cases, of_runs), runs=True, secret=True),
)
