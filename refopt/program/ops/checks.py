"""Checks that ops of several families share. Errors name slot and index."""

from __future__ import annotations

from typing import Any

from refopt import checks
from refopt.checks import Array
from refopt.checks.arguments import RANKS, whole
from refopt.checks.dtypes import ITEM_SIZES, SIZES
from refopt.program.graph import Graph
from refopt.program.model import UNKNOWN, Op, Var


class Describer:
    """Describes variables as arrays before these exist, each in its own memory."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}  # only of those asked for: numbering a whole program's takes too long per op

    def __call__(self, var: Any, where: str) -> Array:
        shape = (1,) if var.shape == UNKNOWN else var.shape
        strides = checks.c_strides(shape, ITEM_SIZES[var.dtype])
        return Array(self._numbers.setdefault(var.name, len(self._numbers)) << 60, shape, var.dtype, strides, True)


def variables(graph: Graph, names: tuple[str, ...]) -> list[Var]:
    """The variables with these names."""
    return [graph.vars[name] for name in names]


def check_alike(graph: Graph, op: Op, first: str, second: str, dtype: bool = True, in_place: bool = False) -> None:
    """Raise unless two slots have variables of equal shapes."""
    inputs, outputs = op.inputs.get(first, ()), op.outputs[second]
    if len(inputs) != len(outputs) or not outputs:
        raise ValueError(f"{second}: expected {len(inputs) or 'some'} variables, as {first} has, got {len(outputs)}")
    if in_place and inputs != outputs:
        raise ValueError(f"{second}: expected the variables of {first}, got {', '.join(outputs)}")
    if in_place:
        return
    for k, (x, y) in enumerate(zip(variables(graph, inputs), variables(graph, outputs), strict=True)):
        if x.shape != y.shape:
            raise ValueError(f"{second}[{k}] {y.name!r}: expected shape {x.shape}, as {x.name!r} has, got {y.shape}")
        if dtype and x.dtype != y.dtype:
            raise TypeError(f"{second}[{k}] {y.name!r}: expected {x.dtype}, as {x.name!r} has, got {y.dtype}")


def check_widens(where: str, source: str, target: str) -> None:
    """Raise unless sums are in fp32 or fp64, and their terms widen to it."""
    if target not in ("float32", "float64") or SIZES.get(source, 9) > SIZES[target]:
        raise TypeError(f"{where}: expected float32 or float64 that {source} widens to, got {target}")


def check_one(names: tuple[str, ...], slot: str) -> None:
    """Raise unless a slot has one variable."""
    if len(names) != 1:
        raise ValueError(f"{slot}: expected one variable, got {len(names)}")


def check_ranks(op: Op) -> None:
    """Raise unless an op says for how many ranks it is."""
    whole("ranks", op.attrs.get("ranks"), 1, RANKS)


def check_startup(op: Op) -> None:
    """Raise unless an op runs at startup only."""
    if op.role != "startup":
        raise ValueError(f"role: expected startup, got {op.role}")


def one(graph: Graph, names: tuple[str, ...], slot: str, dtype: str) -> tuple[int, ...]:
    """The shape of a slot's only variable, which must have one dimension."""
    check_one(names, slot)
    var = graph.vars[names[0]]
    if var.dtype != dtype:
        raise TypeError(f"{slot}: expected {dtype}, got {var.dtype}")
    if len(var.shape) != 1:
        raise ValueError(f"{slot}: expected one dimension, got shape {var.shape}")
    return var.shape
