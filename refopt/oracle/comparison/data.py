"""The data for comparisons: sizes, numbers of tensors, layouts, and numbers that are not finite."""

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from refopt.oracle.memory import LAYOUTS, Placed, dense
from refopt.oracle.running import Running

# The parts of a comparison, by ids like those of laws.
PARTS = {"C1": "sizes", "C2": "number of tensors", "C3": "shapes", "C4": "layouts", "C5": "not finite", "C6": "steps"}
SIZES = (*range(1, 34), 63, 64, 65, 127, 128, 129, 255, 256, 257, 300, 1023, 1025, 4099)
SHAPES: tuple[tuple[int, ...], ...] = ((), (4, 5), (2, 3, 7), (1, 1, 3), (2, 3, 1, 2, 2), (15, 20))
MANY = 36, 111
STEPS, LONG = 3, 12


class Data(NamedTuple):
    """A case.

    Attributes:
        part: the id of its part.
        params: arrays, placed in memory by ``place``, as are the gradients of each step.
    """

    part: str
    label: str
    params: Sequence[np.ndarray]
    grads: Sequence[Sequence[np.ndarray]]
    place: Callable[[np.ndarray], Placed] | None = None

    def placed(self) -> tuple[list, list[list]]:
        """New arrays of the case."""
        place = self.place or dense
        return [place(x) for x in self.params], [[place(x) for x in of] for of in self.grads]

    def of(self, tensor: int, elements: Sequence[int]) -> "Data":
        """Some elements of one of its tensors, flat."""

        def part(x: np.ndarray) -> np.ndarray:
            return np.ravel(x)[list(elements)]

        return Data(self.part, self.label, [part(self.params[tensor])], [[part(of[tensor])] for of in self.grads])


def every(trial: Running) -> Iterator[Data]:
    """Every case of a dtype, in shapes that the optimizer takes."""

    def data(part: str, label: str, sizes: Sequence, steps: int = STEPS, **named: Callable) -> Data:
        shapes = trial.shapes(sizes)
        return Data(part, label, trial.params(shapes), trial.steps(shapes, steps), **named)

    for size in SIZES:
        yield data("C1", f"{size} elements", [size])
    for count in MANY:
        yield data("C2", f"{count} tensors", [1 + (7 * k) % 33 for k in range(count)])
    yield data("C2", "an empty tensor among others", [5, 0, 7])
    for shape in trial.shapes(SHAPES):
        yield data("C3", f"shape {shape}", [shape])
    for label, place in LAYOUTS.items():
        yield data("C4", label, [45, (4, 5), (15, 20)], place=place)
    for value in (np.nan, np.inf, -np.inf):
        plain = data("C5", f"{value} in a gradient", [45, 7])
        yield plain._replace(grads=[[_with(x, value) for x in of] for of in plain.grads])
        plain = data("C5", f"{value} in a parameter", [45, 7])
        yield plain._replace(params=[_with(x, value) for x in plain.params])
    for size in ("large", "small"):
        plain = data("C5", f"{size} gradients", [45, 7])
        scale = 2.0 ** ((100 if trial.stored != np.float16 else 12) * (1 if size == "large" else -1))
        yield plain._replace(grads=[[(x.astype(np.float64) * scale).astype(x.dtype) for x in of] for of in plain.grads])
    yield data("C5", "gradients of zeros", [45, 7])._replace(
        grads=[[np.zeros(shape, trial.stored) for shape in trial.shapes([45, 7])] for _ in range(STEPS)]
    )
    yield data("C6", f"{LONG} steps", [45, 300], LONG)


def _with(x: np.ndarray, value: float) -> np.ndarray:
    """A copy of an array with one element replaced."""
    changed = x.copy()
    changed.reshape(-1)[x.size // 3] = value
    return changed
