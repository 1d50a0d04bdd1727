"""Lists of tensors: each gets the result that it gets alone, in any order and number, with gradients or without."""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np

from refopt.checks.dtypes import numpy_dtype
from refopt.oracle.broken import Skipped
from refopt.oracle.cases import PATTERNS
from refopt.oracle.exact.cases import Case, Outcome, has
from refopt.oracle.laws.law import Law, Try, of_either, taken
from refopt.oracle.laws.numbers import varied
from refopt.oracle.running import Data, part
from refopt.oracle.trial import WITH_GROUPS, Trial

SIZES = 45, 7, 300, 1, 64
LARGE = 70_000, 7, 131_073, 45
# Around known limits of launches: 36, 60 and 110 tensors, 320 blocks.
COUNTS = 0, 1, 36, 60, 110, 111, 320, 1000
FEWER = 0, 1, 111, 320  # for dtypes other than fp32
RECOMPILED = 111  # the most tensors if each list is compiled
ABSENT = 1, 3  # tensors without a gradient
ALONE = "the result of the tensor alone"


def alone(trial: Trial, of: Case | Data, together: Callable[..., Outcome] | None = None) -> None:
    """Each tensor gets the result that it gets alone in a list; ``together`` are the results in one list."""
    ones: dict[tuple, Outcome] = {}  # long lists repeat tensors
    keys = [(x.shape, x.dtype, x.tobytes()) for x in of.params]
    for i, key in enumerate(keys):
        if key not in ones:
            ones[key] = trial.came(of.only([i]))
    got = (together or trial.hold)(of)
    for i, key in enumerate(keys):
        trial.same(ones[key], part(got, [i]), ALONE, of, at=i)


def merging(trial: Trial) -> Iterator[Try]:
    def reordered(order: Callable[[list[int]], list[int]], of: Case | Data) -> None:
        indices = order([*range(len(of))])
        mine = of.only(indices)
        what = f"the result in the order {sorted(indices)}"
        trial.same(part(trial.hold(of), indices), trial.came(mine), what, mine)

    def two_dtypes(of: Data) -> None:
        few = "float32", "bfloat16" if has("bfloat16") else "float16"  # of fp64 parameters there may be none
        pair = few if trial.coded else ("float64", "float32")
        other = numpy_dtype(pair[trial.dtype == pair[0]])

        def every_other(xs: Sequence[np.ndarray]) -> list[np.ndarray]:
            return [x.astype(other) if i % 2 else x for i, x in enumerate(xs)]

        together = partial(taken, trial, what="two dtypes in one list")
        alone(trial, Data(every_other(of.params), [every_other(x) for x in of.grads]), together)

    def rates(of: Data) -> None:
        """Groups of two learning rates."""
        run, runs = trial.start(of.params, apart=True), [trial.start([p]) for p in of.params]
        for i in (1, 3):
            trial.tried(run.slow, i)
            trial.tried(runs[i].slow)
        for grads in of.grads:
            trial.step(run, grads)
            for one, g in zip(runs, grads, strict=True):
                trial.step(one, [g])
        got = trial.outcome(run)
        for i, one in enumerate(runs):
            trial.same(trial.outcome(one), part(got, [i]), ALONE, of, at=i)

    def groups(of: Data) -> None:
        trial.same(trial.run(of), trial.run(of, apart=True), "those in one group", of)

    def lost(of: Data) -> None:
        """Values that are not finite stay in their tensor."""
        for value in (np.nan, np.inf):
            spoiled = of.each(np.copy)
            spoiled.grads[1][1].reshape(-1)[0] = value
            others = [i for i in range(len(of)) if i != 1]
            what = f"the result without {value} in the gradient of params[1]"
            trial.same(part(trial.run(of), others), part(trial.run(spoiled), others), what, of.only(others))

    usual = [*SIZES, *[WITH_GROUPS] * trial.coded]
    yield from of_either(trial, "together and one by one", usual, partial(alone, trial))
    yield from of_either(trial, "backwards", usual, partial(reordered, lambda x: x[::-1]))
    yield from of_either(trial, "rotated", usual, partial(reordered, lambda x: [*x[1:], *x[:1]]))
    if trial.row is not None and trial.row.scalars and not trial.recompiled:
        together = partial(alone, trial, together=trial.run)
        yield Try("tensors at steps of their own", partial(at_steps_of_their_own, trial), together)
    large = LARGE if trial.axes == 1 else [(60, 70), 7, (90, 40), 45]
    for label, sizes, holds in (
        ("tensors of one shape", [45] * 5, partial(alone, trial)),
        ("large tensors among small", large, partial(alone, trial)),
        ("tensors of two dtypes", SIZES, two_dtypes), ("groups of two learning rates", SIZES, rates),
        ("in one group, and in a group for each tensor", SIZES, groups),
        ("NaN or inf in one of the tensors", SIZES, lost),
    ):
        yield Try(label, partial(trial.data, sizes), holds)


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


def number(trial: Trial) -> Iterator[Try]:
    """Check lists of any length against the formula; without one, each tensor against its result alone."""

    def in_lists(of: Data) -> None:
        if any(not x.size for x in of.params):
            taken(trial, trial.data([0], 1), "empty tensor")
        alone(trial, of)

    make = trial.data if trial.row is None else partial(trial.case, count=2)
    holds = in_lists if trial.row is None else trial.hold
    few = lengths(4)
    lists = {f"{count} tensors": lengths(count) for count in (COUNTS if trial.dtype == "float32" else FEWER)}
    lists |= {f"an empty one at {at}": [*few[:at], 0, *few[at:]] for at in range(5)}
    for count, at in ((37, 35), (37, 36), (111, 109), (111, 110)):
        lists[f"{count}, number {at} empty"] = [0 if i == at else size for i, size in enumerate(lengths(count))]
    lists |= {"large ones among small": [5, 2**16 + 1, 3, 70001, 7], "all empty": [0, 0, 0]}
    for label, sizes in lists.items():
        if trial.row is not None or not trial.recompiled or len(sizes) <= RECOMPILED:
            yield Try(label, partial(make, sizes), holds)


def lengths(count: int) -> list[int]:
    """The small, varied sizes of a number of tensors."""
    return [3 + i % PATTERNS % 6 for i in range(count)]


def without_gradient(trial: Trial) -> Iterator[Try]:
    def absent(grads: Sequence[Any]) -> list[Any]:
        return [None if i in ABSENT else g for i, g in enumerate(grads)]

    def missing(first: int, of: Case | Data) -> None:
        """A tensor without a gradient, from a step on, stays unchanged and does not affect the others."""
        if isinstance(of, Case):
            lost = of.replace(grads=absent(of.grads))
            trial.hold(lost, taken(trial, lost, "gradients of None"))
            return
        some = Data(of.params, [*of.grads[:first], *map(absent, of.grads[first:])])
        got = taken(trial, some, "gradients of None")
        before = trial.run(Data(of.params, of.grads[:first]))["params"]
        for i in ABSENT:
            trial.alike("params", i, before[i], got["params"][i], "unchanged, without a gradient")
        if first == 0:
            others = [i for i in range(len(of)) if i not in ABSENT]
            mine, what = of.only(others), "the result without the tensors that have no gradient"
            trial.same(trial.run(mine), part(got, others), what, mine)

    at_first, data = partial(missing, 0), partial(trial.data, SIZES)
    if trial.row is not None:
        yield Try("two of five", partial(trial.case, SIZES, count=2), at_first)
        yield Try("two of five, lr for each", partial(varied, trial, "lr", SIZES), at_first)
    yield Try("two of five, from the first step", data, at_first)
    yield Try("two of five, after a step", data, partial(missing, 1))


LAWS = (
    Law("L2", "merging", "Merging and order change nothing: each tensor gets the result that it gets alone.",
        merging, runs=True),
    Law("L3", "number of tensors", "Any number of tensors is updated, empty ones among them.", number, runs=True),
    Law("L15", "no gradient", "A tensor without a gradient stays, and affects no other, if the step takes None.",
        without_gradient, runs=True),
)
