"""Lists of tensors: merging, order and the number of tensors change no result."""

from collections.abc import Iterator
from functools import partial
from typing import Any

from refopt.oracle.broken import Skipped
from refopt.oracle.cases import PATTERNS
from refopt.oracle.exact.cases import Case, Outcome
from refopt.oracle.laws import together
from refopt.oracle.laws.law import Law, Try, both
from refopt.oracle.requiring import require_same
from refopt.oracle.trial import Trial

SIZES = 300, 1, 45, 7, 128
# Around known limits of launches: 36, 60 and 110 tensors, 320 blocks.
COUNTS = 0, 1, 36, 60, 110, 111, 320, 1000
FEWER = 0, 1, 111, 320  # for dtypes other than fp32


def _of_one(got: Outcome, i: int) -> Outcome:
    """The outcome of one of several tensors."""
    return {name: [values[i]] for name, values in got.items()}


def merging(trial: Trial) -> Iterator[Try]:
    bits = not getattr(trial.subject, "compiles_each_list", False)  # the same arithmetic for any list
    hold_or_run = trial.run if bits else trial.hold

    def alone(case: Case) -> None:
        """Each tensor gets the result that it gets alone in a list."""
        got = trial.hold(case)
        for i in range(len(case)):
            one = hold_or_run(case.only([i]))
            if bits:
                require_same(one, _of_one(got, i), f"tensor {i} merged and alone", i)

    def backwards(case: Case) -> None:
        order = list(range(len(case)))[::-1]
        got, back = trial.hold(case), hold_or_run(case.only(order))
        if bits:
            require_same({name: values[::-1] for name, values in back.items()}, got, "in this order and backwards")

    def each_its_own(case: Case) -> None:
        """The same for tensors at different steps, each with its own powers."""
        got = trial.run(case)
        for i in range(len(case)):
            one = trial.run(case.only([i]))
            require_same(one, _of_one(got, i), f"tensor {i} merged and alone", i)

    yield Try("merged and alone", lambda: trial.case(SIZES, count=2), alone)
    yield Try("order", lambda: trial.case(SIZES, count=2), backwards)
    if bits and trial.row.scalars:
        yield Try("tensors at steps of their own", partial(at_steps_of_their_own, trial), each_its_own)


def at_steps_of_their_own(trial: Trial) -> Case:
    """Tensors that have each taken one step more than the one before; skipped if they share a step number."""
    trial.need(*trial.row.scalars)
    if trial.takes("step"):
        raise Skipped("takes one step number for all tensors")
    cases = [trial.case(SIZES, count=2 + i) for i in range(len(SIZES))]
    slots = {
        name: values and [cases[i].slots[name][i] for i in range(len(SIZES))]  # type: ignore[index]
        for name, values in cases[0].slots.items()
    }
    return cases[0].replace(**slots)


def numbers(trial: Trial) -> Iterator[Try]:
    for count in COUNTS if trial.dtype == "float32" else FEWER:
        yield Try(f"{count} tensors", partial(trial.case, lengths(count), count=2), trial.hold)
    few = lengths(4)
    for at in range(5):
        yield Try(f"an empty one at {at}", partial(trial.case, [*few[:at], 0, *few[at:]], count=2), trial.hold)
    for count, at in ((37, 35), (37, 36), (111, 109), (111, 110)):
        shapes = lengths(count)
        shapes[at] = 0
        yield Try(f"{count}, number {at} empty", partial(trial.case, shapes, count=2), trial.hold)
    yield Try("large ones among small", partial(trial.case, [5, 2**16 + 1, 3, 70001, 7], count=3), trial.hold)
    yield Try("all empty", lambda: trial.case([0, 0, 0], count=2), trial.hold)


def lengths(count: int) -> list[int]:
    """The small, varied sizes of a number of tensors."""
    return [3 + i % PATTERNS % 6 for i in range(count)]


def any_number(trial: Any) -> Iterator[Try]:
    """Check tensors against the formula, or each against its result alone."""
    yield from numbers(trial) if trial.row is not None else together.number(trial)


LAWS = (
    Law("L2", "merging", "Merging and order change nothing: each tensor gets the result that it gets alone.",
        both(merging, together.merging, together.order), runs=True),
    Law("L3", "number of tensors", "Any number of tensors is updated, empty ones among them.", any_number, True),
)
