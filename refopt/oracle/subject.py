"""What the laws check: an optimizer, which makes runs and, as a routine, takes the steps of a case."""

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np

from refopt.checks.arguments import kind_of
from refopt.oracle.exact.cases import Case, Outcome
from refopt.oracle.memory import Placed

GATE = "grad_factor", "found_inf"
STEP = "step"
LIBRARIES = {"torch": "torch", "jax": "jax", "jaxlib": "jax", "cupy": "cupy"}  # by the modules of their arrays


class Wrong(Exception):
    """A mistake of a subject that does not depend on the numbers."""


class Lacks(NotImplementedError):
    """A feature that an optimizer lacks the argument for, so that nobody could request it."""


class Ended(Exception):
    """The process that a step ran in has ended, or the step has exceeded its deadline.

    Attributes:
        late: whether it took too long.
    """

    def __init__(self, what: str, lines: Sequence[str] = (), late: bool = False) -> None:
        self.late = late
        said = f"; the last it said: {' | '.join(lines)}" if lines else ""
        super().__init__(f"{what}{said}")


class Run(Protocol):
    """Parameters that are being optimized, and their states.

    If it also has a method ``state_dict``, `Subject.start` takes what that returns: a state that is loaded without a
    file (law L28).
    """

    def step(self, grads: Sequence[Placed | None], found_inf: float | None = None, refill: bool = False) -> None:
        """Take a step; a ``found_inf`` that is not 0 must skip it, and ``None`` means no gate.

        With ``refill``, gradients are written into the arrays of the previous step, if there are any.
        """

    def add(self, params: Sequence[Placed]) -> None:
        """Add a group of parameters; raises NotImplementedError if the optimizer has no groups."""

    def params(self) -> list[np.ndarray]:
        """Copies of the parameters."""

    def closed(self, grads: Sequence[Placed]) -> None:
        """Take a step whose closure computes the gradients; raises NotImplementedError if it takes none."""

    def put(self, params: Sequence[np.ndarray]) -> None:
        """Write the parameters, as their owner may between two steps; raises NotImplementedError if nobody can."""

    def states(self) -> list[dict[str, np.ndarray]]:
        """Copies of each tensor's states, as far as they are visible."""

    def grads(self) -> list[Any]:
        """The last gradients after the step: each with the array that it is a view of."""

    def wholes(self) -> list[Any]:
        """The arrays that the parameters are views of; ``None`` for those that are not written in place."""

    def save(self) -> Any:
        """A checkpoint without the parameters, serialized to bytes and read back."""

    def slow(self, group: int | None = None) -> None:
        """Halve the learning rate, of one group or all; raises NotImplementedError if the caller passes it."""


class Subject(Protocol):
    """An optimizer. To add a library, write a class with these attributes and methods.

    With ``start`` it has runs; with ``takes`` and ``run`` it is a routine, whose formula its cases are compared with.

    Attributes:
        name: its name in reports.
        dtypes: those in which it is checked by default.
        gated: whether runs look at ``found_inf``.
        in_place: whether it writes the arrays that it is given, so that these may be views of others.
        recompiled: whether it may compute another list of tensors in another order.
        notes: remarks for the reader of a report.
        values: its numbers, by its own names.
        excused: why a law may fail through no fault of its own, by id; it may lack this attribute.
    """

    name: str
    dtypes: tuple[str, ...]
    gated: bool
    in_place: bool
    recompiled: bool
    notes: list[str]
    values: dict[str, Any]

    def start(self, params: Sequence[Placed], saved: Any = None, apart: bool = False) -> Run:
        """A run from parameters and a checkpoint; with ``apart``, each tensor has its own group.

        Raises:
            NotImplementedError: it has no groups, or does not accept such parameters.
        """

    def takes(self, what: str) -> bool:
        """Whether it has a slot, number, choice or gate (``grad_factor``, ``found_inf``), by refopt's name."""

    def run(self, case: Case) -> Outcome:
        """Take the steps of a case from its states, NumPy arrays that it may write.

        Powers are those of step ``case.count``.

        Returns:
            The arrays afterwards, of ``params`` and of every written slot that is present.

        Raises:
            NotImplementedError: the step does not take something; the case is then skipped and listed.
        """


class Arrays(Protocol):
    """Converts arrays between a library and NumPy."""

    def of(self, array: np.ndarray) -> Any:
        """An array of the library, sharing memory if possible."""

    def back(self, array: Any) -> np.ndarray:
        """The current values of an array, in NumPy."""


class NumPy:
    """NumPy arrays, unchanged."""

    def of(self, array: np.ndarray) -> Any:
        return array

    def back(self, array: Any) -> np.ndarray:
        if isinstance(array, np.generic):  # what operators return for arrays of no dimensions
            return np.asarray(array)
        if type(array) is not np.ndarray and isinstance(array, np.ndarray):
            raise Wrong(f"expected numpy.ndarray itself, got {kind_of(array)}, which may compute when it is read")
        if not isinstance(array, np.ndarray):
            library = LIBRARIES.get(type(array).__module__.partition(".")[0])
            hint = f" or, with arrays={library!r}, of {library}," if library else ""
            raise Wrong(f"expected an array of NumPy{hint or ','} got {kind_of(array)}")
        return array
