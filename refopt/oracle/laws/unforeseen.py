"""Inputs that no step can have foreseen: sizes, shapes, numbers and data drawn anew for each check."""

from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np

from refopt.oracle.broken import Broken
from refopt.oracle.exact.cases import Case, Outcome, copied, memory
from refopt.oracle.laws.law import Law, Try
from refopt.oracle.laws.step import numbers_of_example
from refopt.oracle.trial import Trial
from refopt.oracle.ulp import same_bits

DRAWN = 4
CALLS = 6
LARGE = 2**17, 2**19


def unforeseen(trial: Trial) -> Iterator[Try]:
    of = f"secret {trial.secret}"
    for k in range(DRAWN):
        yield Try(f"shapes, numbers and data of {of}, {k}", partial(drawn, trial, k), trial.hold)
    yield Try(f"a large one of {of}", partial(large, trial), trial.hold)
    yield Try(f"other data of the same shapes, {of}", partial(drawn, trial, DRAWN, False), partial(anew, trial))
    yield Try(f"other data in the same arrays, {of}", partial(drawn, trial, DRAWN, False), partial(refilled, trial))
    yield Try(f"call after call, {of}", partial(drawn, trial, DRAWN + 1, False), partial(call_after_call, trial))


def drawn(trial: Trial, k: int, numbered: bool = True) -> Case:
    """A case of a few tensors, of which only the dtype and the routine are known before."""
    rng = np.random.default_rng([trial.secret, k])
    shapes = [shape_of(rng) for _ in range(int(rng.integers(2, 7)))]
    numbers: dict[str, Any] = numbers_of_example(trial, rng) if numbered else {}
    count = int(rng.integers(1, 12))
    return trial.case(shapes, None, count=count, seed=int(rng.integers(1, 2**31)), **numbers)


def shape_of(rng: "np.random.Generator") -> tuple[int, ...]:
    """Up to four axes and a few thousand elements."""
    axes = int(rng.integers(1, 5))
    most = {1: 5000, 2: 60, 3: 15, 4: 8}[axes]
    return tuple(int(x) for x in rng.integers(1, most, axes))


def large(trial: Trial) -> Case:
    rng = np.random.default_rng([trial.secret, 100])
    return trial.case([int(rng.integers(*LARGE))], None, count=2, seed=int(rng.integers(1, 2**31)))


def _others(trial: Trial, case: Case) -> Case:
    """The same shapes and numbers with other data, except for the first and last elements, which identify tensors."""
    rng = np.random.default_rng([trial.secret, 101])
    shapes = [x.shape for x in case.params]
    other = trial.case(shapes, None, count=case.count, seed=int(rng.integers(1, 2**31)))
    for name, values in other.slots.items():
        for x, like in zip(values or (), case.slots[name] or (), strict=True):
            if x is not None and name not in trial.row.scalars:
                memory(x)[[0, -1]] = memory(like)[[0, -1]]
    return other


def anew(trial: Trial, case: Case) -> None:
    """Results follow from the given data, and are not those returned before."""
    before = trial.run(_others(trial, case))
    _held(trial, case, trial.run(case), before)


def refilled(trial: Trial, case: Case) -> None:
    """The same if the same arrays hold other data, as after loading a checkpoint."""
    mine, other = case.copy(), _others(trial, case)
    before = copied(trial.run_in_place(mine))
    mine.fill(other)
    _held(trial, other, trial.run_in_place(mine.replace(steps=other.steps, count=other.count)), before)


def call_after_call(trial: Trial, case: Case) -> None:
    """The last call is as right as the first."""
    for k in range(CALLS):
        try:
            trial.hold(case)
        except Broken as error:
            if not k:
                raise
            error.args = (f"call {k + 1} with the same arguments, after {k} right ones: {error}",)
            raise


def _held(trial: Trial, case: Case, got: Outcome, before: Outcome) -> None:
    """Check an outcome against the bound; a failure says if it is the result of the previous call."""
    try:
        trial.hold(case, got)
    except Broken as error:
        where = error.where
        if where is not None:
            stale = before[where.slot][where.tensor] if where.slot in before else None
            now = got[where.slot][where.tensor] if where.slot in got else None
            if stale is not None and now is not None and now.size > 1 and same_bits(now, stale).all():
                error.args = (f"the result for other data in the previous call, bit for bit: {error}",)
        raise


LAWS = (
    Law("L21", "unforeseen", "Freshly drawn sizes, shapes, numbers and data stay within the bound.", unforeseen,
        secret=True),
)
