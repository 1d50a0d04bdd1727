"""Checks of a program: each variable is made before it is used, and has the right shape and dtype."""

from __future__ import annotations

import re
from collections.abc import Hashable
from functools import partial

from refopt.program import ops
from refopt.program.graph import Graph
from refopt.program.model import Op, Var


def check(graph: Graph) -> None:
    """See `refopt.program.Program.check`."""
    _check_vars(graph)
    persistable = {name for name, var in graph.vars.items() if var.persistable}
    ready = persistable | graph.cells(persistable)  # with their blocks
    fit: set[Hashable] = set()
    placed: set[str] = set()
    for part, check_part in (("startup", partial(_check_startup, placed=placed)), ("main", _check_main)):
        for i, op in enumerate(getattr(graph, part)):
            try:
                _check_known(graph, op)
                check_part(graph, op, ready)
                ops.check(graph, op, fit)
            except (TypeError, ValueError) as error:
                raise type(error)(f"program: {part}[{i}] {op.type}: {_named(op, str(error))}") from None


def _named(op: Op, text: str) -> str:
    """An error's text, with the names of the variables that it has by slot and index."""
    found = {x[0]: (op.inputs.get(x[1], ()), int(x[2])) for x in re.finditer(r"\b(\w+)\[(\d+)\]", text)}
    told = [f"{place} is {names[k]!r}" for place, (names, k) in found.items() if k < len(names)]
    return f"{text} ({', '.join(told)})" if told else text


def _check_startup(graph: Graph, op: Op, ready: set[str], placed: set[str]) -> None:
    """Raise if an op reads a variable that is not ready or puts one into a second buffer; add those it makes ready."""
    for name in op.outputs.get("output", ()) if op.type == "coalesce_tensor" else ():
        if name in placed:
            raise ValueError(f"{name!r}: expected each variable in one buffer, got two")
        placed.add(name)
    known = ops.find(op.type)
    if known is None or known.fills is None or known.fills(op):
        _check_ready(graph, op, ready)
        ready.update(op.writes)
    if known is not None and known.drops:
        ready.difference_update(op.reads)


def _check_main(graph: Graph, op: Op, ready: set[str]) -> None:
    """Raise if an op reads a variable that is not ready, or belongs to startup; add those it makes ready."""
    known = ops.find(op.type)
    if known is not None and known.startup:
        raise ValueError("expected it in startup, since it moves arrays that ops are bound to")
    _check_ready(graph, op, ready)
    ready.update(op.writes, graph.cells(op.writes))


def _check_vars(graph: Graph) -> None:
    """Raise if a variable is listed under another name, or has an impossible initial value."""
    sound: set[str] = set()
    for key, var in graph.vars.items():
        if key != var.name:
            raise ValueError(f"program: vars: expected {var.name!r} under its name, got it under {key!r}")
        if isinstance(var.initial, str) and var.initial not in graph.vars:
            raise ValueError(f"program: {key!r}: initial: expected a variable of the program, got {var.initial!r}")
        _check_start(graph, var, sound)


def _check_start(graph: Graph, var: Var, sound: set[str]) -> None:
    """Raise if a variable's initial value is impossible; else add it to ``sound``."""
    seen, now = {var.name}, var
    while isinstance(now.initial, str) and now.initial in graph.vars:
        expected = now.shape if now.part is None else now.part.shape
        now = graph.vars[now.initial]
        if now.name in seen:
            raise ValueError(f"program: {var.name!r}: initial: expected no cycle, got {now.name!r} again")
        if now.sparse or now.shape != expected:
            got = "a sparse variable" if now.sparse else f"shape {now.shape}"
            raise ValueError(f"program: {var.name!r}: initial: expected shape {expected}, got {got}, {now.name!r}")
        if now.name in sound:
            break
        seen.add(now.name)
    sound |= seen


def _check_known(graph: Graph, op: Op) -> None:
    for side, slots in (("inputs", op.inputs), ("outputs", op.outputs)):
        for slot, names in slots.items():
            for k, name in enumerate(names):
                if name not in graph.vars:
                    raise ValueError(f"{slot}[{k}]: expected a variable of the program, got {name!r}")
            if side == "outputs" and len({*names}) < len(names):
                k = next(k for k, name in enumerate(names) if name in names[:k])
                raise ValueError(f"{slot}[{k}]: expected each variable once, got {names[k]!r} again")


def _check_ready(graph: Graph, op: Op, ready: set[str]) -> None:
    if ready.issuperset(graph.cells(op.reads)):
        return
    for name in op.reads:
        for cell in graph.memory(name):
            if cell not in ready:
                part = "" if cell == name else f" of which {cell!r} is part,"
                raise ValueError(
                    f"{name!r}: expected a variable that is persistable or made before,{part} got one that no op has "
                    "made"
                )
