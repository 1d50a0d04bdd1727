"""Tensors in one list get the results that they get alone: merging, order, number, and missing gradients."""

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np

from refopt.oracle.cases import PATTERNS
from refopt.oracle.laws.law import Try, of_runs
from refopt.oracle.running import Outcome, Running, skipping

SIZES = 45, 7, 300, 1, 64
LARGE = 70_000, 7, 131_073, 45
COUNTS = 1, 36, 110, 111, 320, 1000
RECOMPILED = 111  # the most tensors if each list is compiled
SAME = "the result of the tensor alone"


def part(came: Outcome, indices: Sequence[int]) -> Outcome:
    """The results of some tensors."""
    return Outcome([came.params[i] for i in indices], [came.states[i] for i in indices])


def merging(trial: Running) -> Iterator[Try]:
    params, grads = trial.made(SIZES)

    def alone(params: Sequence[np.ndarray], grads: Sequence[Sequence[np.ndarray]]) -> Outcome:
        runs = [trial.after([p], [[of[i]] for of in grads]) for i, p in enumerate(params)]
        return Outcome([run.params[0] for run in runs], [run.states[0] for run in runs])

    def together(sizes: Sequence[Any]) -> None:
        params, grads = trial.made(sizes)
        trial.same(alone(params, grads), trial.after(params, grads), SAME, params)

    def two_dtypes() -> None:
        other = np.dtype(np.float32 if trial.dtype == "float64" else np.float64)
        mine = [x.astype(other) if i % 2 else x for i, x in enumerate(params)]
        theirs = [[x.astype(other) if i % 2 else x for i, x in enumerate(of)] for of in grads]
        expected = alone(mine, theirs)
        with skipping("takes no two dtypes in one list"):
            got = trial.after(mine, theirs)
        trial.same(expected, got, SAME, mine)

    def rates() -> None:
        """Groups of two learning rates."""
        run = trial.start(params, apart=True)
        runs = [trial.start([p]) for p in params]
        for i in (1, 3):
            trial.slow(run, i)
            trial.slow(runs[i])
        for of in grads:
            trial.step(run, of)
            for one, g in zip(runs, of, strict=True):
                trial.step(one, [g])
        came = [trial.outcome(one) for one in runs]
        expected = Outcome([x.params[0] for x in came], [x.states[0] for x in came])
        trial.same(expected, trial.outcome(run), SAME, params)

    def groups() -> None:
        trial.same(trial.after(params, grads), trial.after(params, grads, apart=True), "those in one group", params)

    def lost() -> None:
        """Values that are not finite stay in their tensor."""
        for value in (np.nan, np.inf):
            spoiled = [[x.copy() for x in of] for of in grads]
            spoiled[1][1].reshape(-1)[0] = value
            others = [0, *range(2, len(params))]
            got = part(trial.after(params, spoiled), others)
            what = f"the result without {value} in the gradient of params[1]"
            trial.same(part(trial.after(params, grads), others), got, what, [params[i] for i in others])

    yield of_runs("together and one by one", partial(together, SIZES))
    yield of_runs("tensors of one shape", partial(together, [45] * 5))
    large = LARGE if trial.axes == 1 else [(60, 70), 7, (90, 40), 45]
    yield of_runs("large tensors among small", partial(together, large))
    yield of_runs("tensors of two dtypes", two_dtypes)
    yield of_runs("groups of two learning rates", rates)
    yield of_runs("in one group, and in a group for each tensor", groups)
    yield of_runs("NaN or inf in one of the tensors", lost)


def order(trial: Running) -> Iterator[Try]:
    params, grads = trial.made(SIZES)

    def reordered(indices: Sequence[int]) -> None:
        plain = trial.after(params, grads)
        mine = [params[i] for i in indices]
        got = trial.after(mine, [[of[i] for i in indices] for of in grads])
        trial.same(part(plain, indices), got, f"the result in the order {sorted(indices)}", mine)

    yield of_runs("backwards", partial(reordered, range(len(params))[::-1]))
    yield of_runs("rotated", partial(reordered, [*range(1, len(params)), 0]))


def number(trial: Running) -> Iterator[Try]:
    sizes = [0 if k % 12 == 5 else 1 + (7 * k) % 33 for k in range(PATTERNS)]
    alone: dict[tuple[int, bool], Outcome] = {}

    def many(count: int, empty: bool) -> None:
        """A long list with repeated tensors: each gets the result that it gets alone."""
        if empty:
            only_empty()
        mine = [size if empty else size or 1 for size in sizes]
        shapes = trial.shapes([mine[i % PATTERNS] for i in range(count)])
        few = [[trial.data(t, i, shape) for i, shape in enumerate(shapes[:PATTERNS])] for t in range(3)]
        own, *grads = ([of[i % PATTERNS].copy() for i in range(count)] for of in few)
        got = trial.after(own, grads)
        for i in range(count):
            key = i % PATTERNS, empty
            if key not in alone:
                alone[key] = trial.after([own[i]], [[of[i]] for of in grads])
            trial.same(alone[key], part(got, [i]), SAME, [own[i]], at=i)

    def only_empty() -> None:
        shapes = trial.shapes([0])
        with skipping("takes no empty tensor"):
            trial.after(trial.params(shapes), [trial.grads(shapes, 1)])

    yield of_runs("no tensor", partial(trial.after, [], [[]]))
    yield of_runs("an empty tensor alone", only_empty)
    most = RECOMPILED if trial.optimizer.recompiled else COUNTS[-1] if trial.dtype == "float32" else 320
    for count in COUNTS:
        if count <= most:
            yield of_runs(f"{count} tensors", partial(many, count, False))
    yield of_runs("111 tensors, empty ones among them", partial(many, 111, True))


def without(trial: Running) -> Iterator[Try]:
    params, grads = trial.made(SIZES)
    absent = 1, 3

    def some(first: int) -> None:
        """A tensor without a gradient stays unchanged and does not affect the others."""
        given = [[None if i in absent and t >= first else g for i, g in enumerate(of)] for t, of in enumerate(grads)]
        with skipping("takes no gradients of None"):  # as law L15 has it
            got = trial.after(params, given)
        still = trial.after(params, grads[:first]) if first else Outcome(params, [{}] * len(params))
        expected = part(still, absent).params
        for i, before in zip(absent, expected, strict=True):
            trial.alike(f"params[{i}]", "params", before, got.params[i], 0, "unchanged, without a gradient", True)
        others = [i for i in range(len(params)) if i not in absent]
        if first == 0:
            mine = [params[i] for i in others]
            plain = trial.after(mine, [[of[i] for i in others] for of in grads])
            trial.same(plain, part(got, others), "the result without the tensors that have no gradient", mine)

    yield of_runs("two of five, from the first step", partial(some, 0))
    yield of_runs("two of five, after a step", partial(some, 1))

