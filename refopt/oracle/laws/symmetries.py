"""Relations that hold for some optimizers, which declare them: signs, the order of elements, zero gradients."""

from collections.abc import Iterator, Sequence
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np

from refopt.oracle.broken import Skipped
from refopt.oracle.laws.law import Law, Try, of_runs
from refopt.oracle.running import Outcome, Running

SIZES = 45, 7, 300, (4, 5), (15, 20)


def sign(trial: Running) -> Iterator[Try]:
    def negated(steps: int) -> None:
        params, grads = trial.made(SIZES, steps)
        got = trial.after([-x for x in params], [[-x for x in of] for of in grads])
        expected = trial.after(params, grads)
        mirrored = Outcome([-x + 0 for x in got.params], [{} for _ in params])
        plain = Outcome([x + 0 for x in expected.params], [{} for _ in params])  # both zeros are the same
        trial.same(plain, mirrored, "the result of the negated data, negated", params)

    yield of_runs("one step of negated data", partial(negated, 1))
    yield of_runs("five steps of negated data", partial(negated, 5))


def elements(trial: Running) -> Iterator[Try]:
    def permuted(shape: tuple[int, ...]) -> None:
        """Permuting the elements permutes the results."""
        params, grads = trial.params([shape]), trial.steps([shape])
        order = np.random.default_rng(trial.seed).permutation(int(np.prod(shape)))

        def moved(x: np.ndarray) -> np.ndarray:
            return x.reshape(-1)[order].reshape(x.shape)

        expected = trial.after(params, grads)
        got = trial.after([moved(x) for x in params], [[moved(x) for x in of] for of in grads])
        plain = Outcome([moved(x) for x in expected.params], [{}])
        trial.same(plain, Outcome(got.params, [{}]), "the result in the other order", [moved(x) for x in params])

    def cut(size: int, pieces: Sequence[Any]) -> None:
        """A tensor's results are those of its pieces as separate tensors."""
        if trial.axes > 1:
            raise Skipped(f"takes only tensors of {trial.axes} axes", lacks=True)
        params, grads = trial.params([(size,)]), trial.steps([(size,)])
        edges = [0, *np.cumsum(pieces), size]
        parts = [slice(int(a), int(b)) for a, b in pairwise(edges)]
        expected = [trial.after([params[0][one]], [[of[0][one]] for of in grads]).params[0] for one in parts]
        got = trial.after(params, grads).params
        trial.same(Outcome([np.concatenate(expected)], [{}]), Outcome(got, [{}]), "the results of its pieces", params)

    for shape in trial.shapes([7, 300, (15, 20), 4099]):
        yield of_runs(f"another order of {'x'.join(map(str, shape))} elements", partial(permuted, shape))
    for size in (*range(2, 34), 63, 64, 65, 300, 1025, 4099):
        yield of_runs(f"{size} elements in pieces", partial(cut, size, [size // 3 + 1]))
    yield of_runs("65,537 elements in pieces", partial(cut, 2**16 + 1, [5, 300, 2**15 + 1]))


def zero(trial: Running) -> Iterator[Try]:
    shapes = trial.shapes(SIZES)

    def stays() -> None:
        params = trial.params(shapes)
        got = trial.after(params, [[np.zeros_like(x) for x in params]])
        expected = Outcome(params, [{} for _ in params])
        trial.same(expected, Outcome(got.params, expected.states), "unchanged by zero gradients", params, bits=True)

    yield of_runs("zero gradients in the first step", stays)


LAWS = (
    Law("L25", "sign", "Negated parameters and gradients give the negated result.", sign, True, declared="sign"),
    Law("L26", "elements", "An element's result does not depend on its place in the tensor.", elements,
        True, declared="elements"),
    Law("L27", "zero", "Zero gradients in the first step change nothing.", zero, True, declared="zero"),
)
SYMMETRIES = tuple(law.declared for law in LAWS)
