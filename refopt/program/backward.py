"""What the caller provides for gradients, checked and written into their arrays."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from refopt import checks
from refopt.program import rows
from refopt.program.ops import Op, Var

if TYPE_CHECKING:
    from refopt.checks import Array
    from refopt.program.bound import Bound


class Backward:
    """Writes what the caller provides in place, so that views of buffers are written through."""

    def __init__(self, bound: Bound, op: Op) -> None:
        self._bound, self._names = bound, op.outputs["grads"]
        self._planned: dict[str, tuple[Any, Callable[[], Any]]] = {}  # by name, the last array and how it is copied

    def __call__(self) -> None:
        bound = self._bound
        for name in self._names:
            value, var = bound.gradient(name), bound.program.vars[name]
            if var.sparse:
                bound.rows[name] = [rows.checked(bound.backend, f"backward: {name!r}", var, value)]
            elif value is not None and value is not bound.arrays[name]:
                self._copy(name, value)()

    def check(self) -> None:
        """Raise if what is provided cannot be written; nothing is."""
        bound = self._bound
        for name in self._names:
            value, var = bound.gradient(name), bound.program.vars[name]
            if var.sparse:
                rows.checked(bound.backend, f"backward: {name!r}", var, value)
            elif value is not None and value is not bound.arrays[name]:
                if bound.backend.name == "gpu" and isinstance(value, np.ndarray):
                    described = checks.host_array(value, f"backward: {name!r}")
                    _expect(name, var, described)
                    if described.layout() == bound.backend.describe(bound.arrays[name], name).layout():
                        continue  # so that it need not be uploaded to see
                self._copy(name, value)

    def _copy(self, name: str, value: Any) -> Callable[[], Any]:
        """The copy of a dense gradient to its array, checked."""
        if name in self._planned and self._planned[name][0] is value:
            return self._planned[name][1]
        backend, target = self._bound.backend, self._bound.arrays[name]
        source = backend.upload(value) if backend.name == "gpu" and isinstance(value, np.ndarray) else value
        _expect(name, self._bound.program.vars[name], backend.describe(source, f"backward: {name!r}"))
        try:
            run = backend.cast([source], [target])
        except ValueError as error:  # of gaps, or another order of axes
            raise ValueError(f"backward: {name!r}: {error}") from None
        if source is value:
            self._planned[name] = value, run
        return run


def _expect(name: str, var: Var, described: Array) -> None:
    if (described.dtype, described.shape) != (var.dtype, var.shape):
        expected, got = f"{var.dtype} of shape {var.shape}", f"{described.dtype} of shape {described.shape}"
        raise ValueError(f"backward: {name!r}: expected {expected}, got {got}")
