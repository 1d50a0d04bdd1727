"""The ops that can be run: the routines of the catalogue, and the types registered here, one file per family.

    >>> from refopt.program import ops
    >>> ops.find("concat").inputs, ops.find("concat").outputs
    (('x',), ('out',))

All families are imported here, so a program means the same whatever has been imported. Variables changed in place are
both inputs and outputs. An op with an attribute `every` runs in the steps whose numbers, from 1, are multiples of it.
`docs/adding-an-op.md` adds an op.
"""

from __future__ import annotations

from collections.abc import Hashable

from refopt.checks.arguments import whole
from refopt.program.graph import Graph
from refopt.program.model import Op
from refopt.program.ops import (  # noqa: F401  # which register their ops
    blocks,
    casts,
    coalescing,
    collectives,
    gradients,
    messages,
    mixed_precision,
    offload,
    sparse,
)
from refopt.program.ops.context import Context
from refopt.program.ops.registry import TYPES, OpType, binder, check_op, find, of_way, op
from refopt.program.ops.runner import Runner, Runners
from refopt.program.ops.updates import Update, check_update, routine_of

__all__ = ["TYPES", "Context", "OpType", "Runner", "Runners", "bind", "check", "find", "of_way", "op", "runs"]


def check(graph: Graph, op: Op, fit: set[Hashable] | None = None) -> None:
    """Raise if an op of a known type is invalid, see `check_update`; the error names slot and index."""
    routine, known = routine_of(op), find(op.type)
    if routine is not None:
        check_update(graph, op, routine, fit)
    elif known is not None:
        check_op(graph, op, known)
        whole("every", op.attrs.get("every", 1), 1)


def runs(op: Op) -> bool:
    """Whether an op is of a type that can be run."""
    return routine_of(op) is not None or find(op.type) is not None


def bind(context: Context, op: Op) -> Runner:
    """The runner of an op, for the current arrays."""
    routine, known = routine_of(op), find(op.type)
    if routine is not None:
        return Update(context, op, routine)
    assert known is not None, op.type
    bound = binder(known, context.backend.name)(context, op)
    runner = bound if isinstance(bound, Runner) else Runner(bound)
    if (every := op.attrs.get("every", 1)) > 1:
        run = runner.run
        runner.run = lambda: run() if context.due(every) else None
    return runner
