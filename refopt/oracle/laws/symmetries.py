"""Relations that hold for some optimizers, which declare them: signs, the order of elements, zero gradients."""

from collections.abc import Iterator, Sequence
from functools import partial

import numpy as np

from refopt.oracle.broken import Skipped
from refopt.oracle.laws.law import Law, Try
from refopt.oracle.running import Data
from refopt.oracle.trial import Trial

SIZES = 45, 7, 300, (4, 5), (15, 20)


def sign(trial: Trial) -> Iterator[Try]:
    def negated(data: Data) -> None:
        got = trial.run(data.each(np.negative))["params"]
        plain = {"params": [x + 0 for x in trial.run(data)["params"]]}  # both zeros are the same
        trial.same(plain, {"params": [-x + 0 for x in got]}, "the result of the negated data, negated", data)

    yield Try("one step of negated data", partial(trial.data, SIZES, 1), negated)
    yield Try("five steps of negated data", partial(trial.data, SIZES, 5), negated)


def permuted(trial: Trial, data: Data, order: np.ndarray | None = None) -> None:
    """Permuting the elements, by default at random, permutes the results."""
    order = np.random.default_rng(trial.seed).permutation(data.params[0].size) if order is None else order

    def moved(x: np.ndarray) -> np.ndarray:
        return x.reshape(-1)[order].reshape(x.shape)

    mine = data.each(moved)
    plain = {"params": [moved(x) for x in trial.run(data)["params"]]}
    trial.same(plain, trial.run(mine), "the result in the other order", mine)


def cut(trial: Trial, pieces: Sequence[int], data: Data) -> None:
    """A tensor's results are those of its pieces as separate tensors."""
    if trial.axes > 1:
        raise Skipped(f"takes only tensors of {trial.axes} axes", lacks=True)
    parts = [data.each(lambda x, k=k: np.split(x, np.cumsum(pieces))[k]) for k in range(len(pieces) + 1)]  # type: ignore[misc]
    expected = [trial.run(one)["params"][0] for one in parts]
    trial.same({"params": [np.concatenate(expected)]}, trial.run(data), "the results of its pieces", data)


def elements(trial: Trial) -> Iterator[Try]:
    for shape in trial.shapes([7, 300, (15, 20), 4099]):
        label = f"another order of {'x'.join(map(str, shape))} elements"
        yield Try(label, partial(trial.data, [shape]), partial(permuted, trial))
    for size in (*range(2, 34), 63, 64, 65, 300, 1025, 4099):
        yield Try(f"{size} elements in pieces", partial(trial.data, [size]), partial(cut, trial, [size // 3 + 1]))
    yield Try("65,537 elements in pieces", partial(trial.data, [2**16 + 1]), partial(cut, trial, [5, 300, 2**15 + 1]))


def zero(trial: Trial) -> Iterator[Try]:
    def stays(data: Data) -> None:
        got = trial.run(Data(data.params, [[np.zeros_like(x) for x in data.params]]))
        trial.same({"params": [*data.params]}, got, "unchanged by zero gradients")

    yield Try("zero gradients in the first step", partial(trial.data, SIZES), stays)


LAWS = (
    Law("L25", "sign", "Negated parameters and gradients give the negated result.", sign, True, declared="sign"),
    Law("L26", "elements", "An element's result does not depend on its place in the tensor.", elements,
        True, declared="elements"),
    Law("L27", "zero", "Zero gradients in the first step change nothing.", zero, True, declared="zero"),
)
SYMMETRIES = tuple(law.declared for law in LAWS)
