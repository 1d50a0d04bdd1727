"""Which variables hold gradients, of which parameters, and where they are complete."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from refopt.program.graph import Graph
from refopt.program.ops.updates import update_types

LINEAR = "cast", "sum", "scale", "scatter_add", "all_gather", "all_reduce", "reduce"  # from gradients to gradients


class Complete(NamedTuple):
    """A complete gradient of one rank, ready to be summed over ranks.

    Attributes:
        name: the variable.
        place: of the last op that adds to it.
        average: place of the op that then multiplies it by 1 / n, n being the number of micro-steps; or ``None``.
        rows: the sparse gradients that it is the sum of; empty if it is a sum of anything else.
    """

    name: str
    place: int
    average: int | None
    rows: tuple[str, ...]


def complete(graph: Graph) -> list[Complete]:
    """The final gradients, from which no op makes another gradient, in the order of completion."""
    last: dict[str, int] = {}
    averages: dict[str, int] = {}
    rows: dict[str, tuple[str, ...]] = {}
    used: set[str] = set()
    for i, op in enumerate(graph.main):
        if op.type == "backward":
            last |= dict.fromkeys(graph.cells(op.outputs["grads"]), i)
        elif op.role != "optimize" and not last.keys().isdisjoint(reads := graph.cells(op.reads)):
            writes = graph.cells(op.writes)
            if op.type == "scale" and op.role == "communicate":
                averages |= dict.fromkeys(writes, i)
                continue
            if op.type in LINEAR:
                used |= (reads & last.keys()) - writes
            last |= dict.fromkeys(writes if op.type in LINEAR else writes & last.keys(), i)
            for x, out in zip(op.inputs.get("x", ()), op.outputs.get("out", ()), strict=False):
                rows[out] = (*rows.get(out, ()), x) if op.type == "scatter_add" else ("",)
    found = [
        Complete(name, place, averages.get(name), () if "" in rows.get(name, ()) else rows.get(name, ()))
        for name, place in last.items() if name not in used
    ]
    return sorted(found, key=lambda each: each.place)


def params_of(graph: Graph) -> Mapping[str, str]:
    """By name of a gradient, in any dtype and of any micro-step, the parameter that its update changes."""
    types = update_types(graph)
    found = {
        grad: param for op in graph.main if op.type in types
        for param, grad in zip(op.inputs["params"], op.inputs["grads"], strict=True)
    }
    for op in reversed(graph.main):
        if op.type in LINEAR:
            for x, out in zip(op.inputs["x"], op.outputs["out"], strict=False):  # an all_gather may be of parameters
                if out in found:
                    found.setdefault(x, found[out])
    return found
