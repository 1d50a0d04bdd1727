"""The model's passes, which the program does not contain: gradients come from the caller."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
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

Copy = Callable[[], Any]


@op("forward", "params", "", dense=False)
def forward(context: Context, op: Op) -> Callable[[], Any]:
    """Reads `params`; its results are outside the program."""
    return lambda: None


def _check_backward(graph: Graph, op: Op) -> None:
    check_alike(graph, op, "params", "grads", dtype=False)


@op("backward", "params *", "grads", check=_check_backward, dense=False)
class Backward(Runner):
    """Makes `grads`, one for each of `params`; the caller provides their values.

    They are written in place, so that views write to their buffers.
    """

    provided = True

    def __init__(self, context: Context, op: Op) -> None:
        super().__init__(self._write)
        self._context, self._names = context, op.outputs["grads"]
        self._checked: list[Copy] = []  # the copies of the next step, if they were checked before it
        self._planned: dict[str, tuple[Any, Copy]] = {}  # by name, the last array and how it is copied

    def check_gradients(self) -> None:
        self._checked = list(self._copies())

    def _write(self) -> None:
        copies, self._checked = self._checked or self._copies(), []
        for copy in copies:
            copy()

    def _copies(self) -> Iterator[Copy]:
        """The copies that write the gradients, each checked when it is requested."""
        context = self._context
        for name in self._names:
            value, var = context.gradient(name), context.program.vars[name]
            if var.sparse:
                rows = checked(context.backend, f"backward: {name!r}", var, value)
                yield partial(context.rows.__setitem__, name, rows)
            elif value is not None and value is not context.arrays[name]:
                yield self._copy(name, value)

    def _copy(self, name: str, value: Any) -> Copy:
        """The copy of a dense gradient to its array."""
        if name in self._planned and self._planned[name][0] is value:
            return self._planned[name][1]
        backend, target = self._context.backend, self._context.arrays[name]
        if backend.name == "cpu" and checks.alike(value, target):
            word = f"u{target.itemsize}"
            return partial(target.view(word).__setitem__, ..., value.view(word))
        if backend.name == "gpu" and isinstance(value, np.ndarray):
            described = checks.host_array(value, f"backward: {name!r}")
            _expect(name, self._context.program.vars[name], described)
            if described.layout() == backend.describe(target, name).layout():  # known without uploading it
                return lambda: self._cast(name, backend.upload(value))()
            return self._cast(name, backend.upload(value))
        run = self._cast(name, value)
        self._planned[name] = value, run
        return run

    def _cast(self, name: str, source: Any) -> Copy:
        backend, target = self._context.backend, self._context.arrays[name]
        _expect(name, self._context.program.vars[name], backend.describe(source, f"backward: {name!r}"))
        try:
            run: Copy = backend.cast([source], [target])
        except ValueError as error:  # because of gaps, or another order of axes
            raise ValueError(f"backward: {name!r}: {error}") from None
        return run


def _expect(name: str, var: Var, described: Array) -> None:
    if (described.dtype, described.shape) != (var.dtype, var.shape):
        expected, got = f"{var.dtype} of shape {var.shape}", f"{described.dtype} of shape {described.shape}"
        raise ValueError(f"backward: {name!r}: expected {expected}, got {got}")
