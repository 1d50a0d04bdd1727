"""The data for comparisons: sizes, numbers of tensors, layouts, and numbers that are not finite."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import NamedTuple

import numpy as np

from refopt.oracle.memory import LAYOUTS, Placed, dense
from refopt.oracle.running import Data
from refopt.oracle.trial import Trial

# The parts of a comparison, by ids like those of laws.
PARTS = {"C1": "sizes", "C2": "number of tensors", "C3": "shapes", "C4": "layouts", "C5": "not finite", "C6": "steps"}
SIZES = (*range(1, 34), 63, 64, 65, 127, 128, 129, 255, 256, 257, 300, 1023, 1025, 4099)
SHAPES: tuple[tuple[int, ...], ...] = ((), (4, 5), (2, 3, 7), (1, 1, 3), (2, 3, 1, 2, 2), (15, 20))
MANY = 36, 111
LONG = 12  # steps


class Part(NamedTuple):
    """A case of a part: its id, a label, and data, whose arrays ``place`` puts into memory."""

    id: str
    label: str
    data: Data
    place: Callable[[np.ndarray], Placed] = dense


def every(trial: Trial) -> Iterator[Part]:
    """Every case of a dtype, in shapes that the optimizer takes."""
    for size in SIZES:
        yield Part("C1", f"{size} elements", trial.data([size]))
    for count in MANY:
        yield Part("C2", f"{count} tensors", trial.data([1 + (7 * k) % 33 for k in range(count)]))
    yield Part("C2", "an empty tensor among others", trial.data([5, 0, 7]))
    for shape in trial.shapes(SHAPES):
        yield Part("C3", f"shape {shape}", trial.data([shape]))
    for label, place in LAYOUTS.items():
        yield Part("C4", label, trial.data([45, (4, 5), (15, 20)]), place)
    plain = trial.data([45, 7])
    for value in (np.nan, np.inf, -np.inf):
        yield Part("C5", f"{value} in a gradient", Data(plain.params, plain.each(partial(_with, value)).grads))
        yield Part("C5", f"{value} in a parameter", Data(plain.each(partial(_with, value)).params, plain.grads))
    for size in ("large", "small"):
        scale = 2.0 ** ((100 if trial.stored != np.float16 else 12) * (1 if size == "large" else -1))
        yield Part("C5", f"{size} gradients", Data(plain.params, plain.each(partial(_times, scale)).grads))
    yield Part("C5", "gradients of zeros", Data(plain.params, plain.each(np.zeros_like).grads))
    yield Part("C6", f"{LONG} steps", trial.data([45, 300], LONG))


def _times(scale: float, x: np.ndarray) -> np.ndarray:
    return (x.astype(np.float64) * scale).astype(x.dtype)


def _with(value: float, x: np.ndarray) -> np.ndarray:
    """A copy of an array with one element replaced."""
    changed = x.copy()
    changed.reshape(-1)[x.size // 3] = value
    return changed
