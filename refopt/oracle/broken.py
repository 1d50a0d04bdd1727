"""How a law may fail to hold, or to be asked."""

from typing import NamedTuple

import numpy as np


class Skipped(Exception):
    """What a subject does not take. ``lacks`` is true of what nobody could ask it for, since it has no place for it."""

    def __init__(self, text: str, lacks: bool = False) -> None:
        super().__init__(text)
        self.lacks = lacks


class Broken(Exception):
    """A law that does not hold. ``ratio`` is the error over the bound, where that is what is wrong."""

    def __init__(self, text: str, ratio: float | None = None, where: "Where | None" = None) -> None:
        super().__init__(text)
        self.ratio, self.where = ratio, where


class Crashed(Broken):
    """A step that has ended its process, or has not returned. What is left of the law is not tried."""


class Where(NamedTuple):
    """An element that is wrong: its slot, tensor and number in memory order, what it had to be, and what it is."""

    slot: str
    tensor: int
    element: int
    expected: float
    error: float
    got: float
    wrong: np.ndarray  # which elements of the tensor


def at_first(slot: str, tensor: int, wrong: np.ndarray, expected: np.ndarray, got: np.ndarray, why: str = "") -> Broken:
    """What says of the first wrong element of a tensor, in memory order, what it had to be, ``why``, and what it is."""
    k = int(np.argmax(wrong))
    one, other = float(expected[k]), float(got[k])
    text = f"{slot}[{tensor}], element {k} of {wrong.size}: expected {one!r}{why}, got {other!r}"
    return Broken(text, None, Where(slot, tensor, k, one, 0.0, other, wrong))
