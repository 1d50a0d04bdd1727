"""What runs of all libraries share: arrays at their places, gradients that are kept, and copies of what there is."""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from refopt.oracle.memory import Placed, into
from refopt.oracle.subject import Lacks


class LibraryRun:
    """A `Run` of arrays of a library, those of ``of.arrays``. What is added to it are `step`, `states` and `save`."""

    def __init__(self, of: Any, params: Sequence[Any]) -> None:
        self.of = of
        self._wholes, self._params = self._lists(params)
        self._grads: list[tuple[Any, Any]] = []

    def _lists(self, placed: Iterable[Any]) -> tuple[list[Any], list[Any]]:
        """Wholes and parts; arrays that are one and the same in NumPy are so in the library."""
        made: dict[int, tuple[Any, Any]] = {}
        pairs = [(None, None) if x is None else made.setdefault(id(x), self._placed(x)) for x in placed]
        return [whole for whole, _ in pairs], [part for _, part in pairs]

    def _placed(self, placed: Any) -> tuple[Any, Any]:
        """An array in its place, or one of a case."""
        return (None, self.of.arrays.of(placed)) if isinstance(placed, np.ndarray) else into(self.of.arrays, placed)

    def _given(self, grads: Sequence[Any]) -> list[Any]:
        """Gradients of a step, which are kept."""
        wholes, parts = self._lists(grads)
        self._grads = list(zip(wholes, parts, strict=True))
        return parts

    def add(self, params: Sequence[Placed]) -> None:
        raise Lacks("has no groups")

    def params(self) -> list[np.ndarray]:
        return [self._copy(x) for x in self._params]

    def grads(self) -> list[Any]:
        return [(self._copy(whole), self._copy(part)) for whole, part in self._grads]

    def wholes(self) -> list[Any]:
        return [self._copy(x) for x in self._wholes]

    def slow(self, group: int | None = None) -> None:
        raise Lacks("the caller sets its numbers")

    def _copy(self, x: Any) -> Any:
        return None if x is None else np.array(self.of.arrays.back(x), order="C")
