"""The passes of the model, whose inside is no part of the program: gradients come from the caller."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from refopt import checks
from refopt.checks import Array
from refopt.program.graph import Graph
from refopt.program.model import Op, Var
from refopt.program.ops.checks import check_alike
from refopt.program.ops.context import Context
from refopt.program.ops.registry import op
from refopt.program.ops.runner import Runner
from refopt.program.ops.sparse import checked


@op("forward", "params", "", dense=False)
def forward(context: Context, op: Op) -> Callable[[], Any]:
    """Reads `params`; what it makes is no part of the program."""
    return lambda: None


def _check_backward(graph: Graph, op: Op) -> None:
    check_alike(graph, op, "params", "grads", dtype=False)


@op("backward", "params *", "grads", check=_check_backward, dense=False)
class Backward(Runner):
    """Makes `grads`, one for each of `params`; what is in them comes from outside.

    They are written in place, so that views of buffers are written through.
    """

    provided = True

    def __init__(self, context: Context, op: Op) -> None:
        super().__init__(self._write)
        self._context, self._names = context, op.outputs["grads"]
        self._planned: dict[str, tuple[Any, Callable[[], Any]]] = {}  # by name, the last array and how it is copied

    def _write(self) -> None:
        context = self._context
        for name in self._names:
            value, var = context.gradient(name), context.program.vars[name]
            if var.sparse:
                context.rows[name] = [checked(context.backend, f"backward: {name!r}", var, value)]
            elif value is not None and value is not context.arrays[name]:
                self._copy(name, value)()

    def check_gradients(self) -> None:
        context = self._context
        for name in self._names:
            value, var = context.gradient(name), context.program.vars[name]
            if var.sparse:
                checked(context.backend, f"backward: {name!r}", var, value)
            elif value is not None and value is not context.arrays[name]:
                self._check(name, value)

    def _check(self, name: str, value: Any) -> None:
        backend, var = self._context.backend, self._context.program.vars[name]
        if backend.name == "gpu" and isinstance(value, np.ndarray):
            described = checks.host_array(value, f"backward: {name!r}")
            _expect(name, var, described)
            if described.layout() == backend.describe(self._context.arrays[name], name).layout():
                return  # so that it need not be uploaded to see
        self._copy(name, value)

    def _copy(self, name: str, value: Any) -> Callable[[], Any]:
        """The copy of a dense gradient to its array, checked."""
        if name in self._planned and self._planned[name][0] is value:
            return self._planned[name][1]
        backend, target = self._context.backend, self._context.arrays[name]
        source = backend.upload(value) if backend.name == "gpu" and isinstance(value, np.ndarray) else value
        _expect(name, self._context.program.vars[name], backend.describe(source, f"backward: {name!r}"))
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
