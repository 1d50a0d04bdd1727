"""What is held to the laws: an optimizer that makes runs, and, as a routine, takes the steps of a case."""

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np

from refopt.checks.arguments import kind_of
from refopt.oracle.exact.cases import Case, Outcome
from refopt.oracle.memory import Placed

GATE = "grad_factor", "found_inf"
STEP = "step"
LIBRARIES = {"torch": "torch", "jax": "jax", "jaxlib": "jax", "cupy": "cupy"}  # of arrays, by their modules


class Wrong(Exception):
    """What a subject has done that is wrong whatever the numbers are."""


class Lacks(NotImplementedError):
    """What there is no argument or place for in an optimizer, so that nobody could ask it for that."""


class Ended(Exception):
    """The end of the process that a step ran in, or of the patience with it.

    Attributes:
        lines: what it printed last.
        late: whether it has taken too long.
    """

    def __init__(self, what: str, lines: Sequence[str], late: bool = False) -> None:
        self.lines, self.late = list(lines), late
        said = f"; the last it said: {' | '.join(lines)}" if lines else ""
        super().__init__(f"{what}{said}")


class Run(Protocol):
    """Parameters that are being optimized, and their states."""

    def step(self, grads: Sequence[Placed | None], found_inf: float | None = None, refill: bool = False) -> None:
        """Take a step; ``found_inf`` that is not 0 is to skip it, and ``None`` is no gate at all.

        With ``refill``, gradients are written into those of the step before, if there are.
        """

    def add(self, params: Sequence[Placed]) -> None:
        """Add a group of parameters; raises NotImplementedError where there are none."""

    def params(self) -> list[np.ndarray]:
        """Copies of the parameters."""

    def states(self) -> list[dict[str, np.ndarray]]:
        """Copies of each tensor's states, as far as they can be seen."""

    def grads(self) -> list[Any]:
        """The last gradients, as they are after the step: each with the whole that it is a part of."""

    def wholes(self) -> list[Any]:
        """What the parameters are parts of; ``None`` for those that are not written in place."""

    def save(self) -> Any:
        """What a checkpoint has beside the parameters, by way of bytes."""

    def slow(self, group: int | None = None) -> None:
        """Halve the learning rate, of a group or of all; raises NotImplementedError where that is the caller's."""


class Optimizer(Protocol):
    """What makes runs.

    Attributes:
        name: how a call has it.
        dtypes: in which it is held to the laws by default.
        gated: whether it looks at ``found_inf``.
        in_place: whether it writes the arrays that it is given, so that these may be parts of others.
        recompiled: whether it may compute another list of tensors in another order.
        notes: what a reader should know.
        values: the numbers that it has, by its own names.
    """

    name: str
    dtypes: tuple[str, ...]
    gated: bool
    in_place: bool
    recompiled: bool
    notes: list[str]
    values: dict[str, Any]

    def start(self, params: Sequence[Placed], saved: Any = None, apart: bool = False) -> Run:
        """A run from parameters, and from what was saved; with ``apart``, in a group for each tensor.

        Raises:
            NotImplementedError: it has no groups, or takes no such parameters.
        """


class Subject(Protocol):
    """An optimizer as a routine. To add a library, write a class that has these.

    Laws that need no formula take one that has ``optimizer`` as well, the `Optimizer` that makes its runs.
    """

    name: str

    def takes(self, what: str) -> bool:
        """Whether there is a slot, number, choice or gate (``grad_factor``, ``found_inf``) of refopt's name."""

    def run(self, case: Case) -> Outcome:
        """Take the steps of a case from its states; its arrays are NumPy's, and may be written.

        Powers are those of step ``case.count``.

        Returns:
            The arrays afterwards, of ``params`` and of every written slot that there is.

        Raises:
            NotImplementedError: for what the step does not take, which is then skipped and listed.
        """


class Arrays(Protocol):
    """The arrays of a library, to and from NumPy's."""

    def of(self, array: np.ndarray) -> Any:
        """An array of the library's, that shares memory if it can."""

    def back(self, array: Any) -> np.ndarray:
        """What it holds now."""


class NumPy:
    """Arrays as they are."""

    def of(self, array: np.ndarray) -> Any:
        return array

    def back(self, array: Any) -> np.ndarray:
        if isinstance(array, np.generic):  # what operators make of arrays of no dimensions
            return np.asarray(array)
        if type(array) is not np.ndarray and isinstance(array, np.ndarray):
            raise Wrong(f"expected numpy.ndarray itself, got {kind_of(array)}, which may compute when it is read")
        if not isinstance(array, np.ndarray):
            library = LIBRARIES.get(type(array).__module__.partition(".")[0])
            hint = f" or, with arrays={library!r}, of {library}," if library else ""
            raise Wrong(f"expected an array of NumPy{hint or ','} got {kind_of(array)}")
        return array
