"""The context in which ops are bound: arrays of a program's variables, sparse rows, a machine, and ranks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import Any

from refopt.checks.arguments import names as listed_names
from refopt.checks.arguments import shown
from refopt.comm.mesh import communicators
from refopt.program.backends import Backend
from refopt.program.graph import Graph
from refopt.program.model import UNKNOWN, Op

Gradients = Mapping[str, Any] | Callable[[str, int], Any] | None
Rows = tuple[Any, Any]  # row numbers, rows


class Context:
    """The context in which ops are bound.

    Attributes:
        arrays: by name of a variable, its current array.
        rows: of sparse variables, by name.
        messages: functions for pending messages, which a barrier calls.
        backend: the machine.
        comm: the communicator of the ranks that train the same parameters, or ``None``.
        axes: the communicators along the axes of a mesh, by name.
        gradients: the caller's gradients.
        steps: the number of steps taken.
    """

    program: Graph

    def __init__(
        self, program: Graph, arrays: Mapping[str, Any], backend: Backend, comm: Any, gradients: Gradients
    ) -> None:
        self.program, self.backend, self.gradients = program, backend, gradients
        self.comm: Any
        self.comm, self.axes = communicators(comm)
        self._arrays: dict[str, Any] = dict(arrays)
        self._brought: dict[str, Any] = dict(arrays)  # by the caller
        self.arrays: Mapping[str, Any] = MappingProxyType(self._arrays)
        self.rows: dict[str, Rows] = {}
        self.messages: list[Callable[[], None]] = []
        self.steps = 0

    def on(self, backend: Backend, comm: Any, axes: Mapping[str, Any]) -> Context:
        """The same arrays for another stream of the machine; reads, gradients and steps are those of this context."""
        there = object.__new__(Context)
        own = {"read": self.read, "gradient": self.gradient, "due": self.due}
        vars(there).update(vars(self) | own, backend=backend, comm=comm, axes=axes)
        return there

    def along(self, op: Op) -> Any:
        """The communicator that an op is for: that of its attribute `axis`, if it has one; ``None`` if there is none.
        """
        return self.axes.get(op.attrs["axis"]) if "axis" in op.attrs else self.comm

    def due(self, every: int) -> bool:
        """Whether the number of the step that is being taken, from 1, is a multiple of a number."""
        return (self.steps + 1) % every == 0

    def read(self, name: str) -> Any:
        """A copy of a variable's array in NumPy."""
        if not isinstance(name, str) or name not in self._arrays:
            raise ValueError(f"Bound.read: expected a dense variable of the program, got {shown(name)}")
        return self.backend.read(self._arrays[name])

    def gradient(self, name: str) -> Any:
        """The caller's gradient in this step; ``None`` if it is already in the gradient's array."""
        if type(name) is not str or name not in self.program.vars:
            self._expect_variable("gradient", name)
        if self.gradients is None:
            return None
        if callable(self.gradients):
            value = self.gradients(name, self.steps)
        elif name in self.gradients:
            value = self.gradients[name]
        else:
            raise ValueError(f"backward: gradients: expected an entry for {name!r}, got none")
        if value is None:
            raise TypeError(f"backward: gradients: {name!r}: expected an array, got None")
        return value

    def put(self, name: str, array: Any) -> None:
        """Replace a variable's array, from a startup op."""
        self._expect_variable("put", name)
        described, where = self.backend.describe(array, "Bound.put"), f"Bound.put: {name!r}"
        var = self.program.vars[name]
        if described.dtype != var.dtype:
            raise TypeError(f"{where}: expected {var.dtype}, got {described.dtype}")
        if var.shape not in (UNKNOWN, described.shape):
            raise ValueError(f"{where}: expected shape {var.shape}, got {described.shape}")
        self._arrays[name] = array

    def is_brought(self, name: str) -> bool:
        """Whether a variable's array is the caller's."""
        return name in self._brought

    def drop(self, names: Iterable[str]) -> None:
        """Free arrays that no later op uses, from a startup op."""
        gone = listed_names("Bound.drop: names", names)
        for name in gone:
            self._expect_variable("drop", name)
        for name in gone:
            self._arrays.pop(name, None)
            self._brought.pop(name, None)

    def _expect_variable(self, what: str, name: Any) -> None:
        if not isinstance(name, str) or name not in self.program.vars:
            raise ValueError(f"Bound.{what}: expected a variable of the program, got {shown(name)}")
