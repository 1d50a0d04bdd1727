"""The variables that statements without jumps read and assign, and those that may be read before assignment."""

from __future__ import annotations

import ast
from collections.abc import Iterable

from .structure import Structure


def stores(nodes: Iterable[ast.AST]) -> set[str]:
    """The variables that are assigned."""
    parts = (part for node in nodes for part in ast.walk(node) if isinstance(part, ast.Name))
    return {part.id for part in parts if isinstance(part.ctx, ast.Store)}


def reads(nodes: Iterable[ast.AST]) -> set[str]:
    """The names that are read."""
    parts = [part for node in nodes for part in ast.walk(node)]
    changed = [part.target for part in parts if isinstance(part, ast.AugAssign)]
    names = (part for part in parts if isinstance(part, ast.Name))
    return {name.id for name in names if isinstance(name.ctx, ast.Load) or name in changed}


def unassigned(node: ast.FunctionDef | ast.Lambda) -> set[str]:
    """The local variables of a function that may be read before they are assigned; Numba makes them zero.

    These are the variables live at its start. An assignment inside an expression does not count.
    """
    body = Structure().function(node.body if isinstance(node.body, list) else [ast.Expr(node.body)])
    parameters = {part.arg for part in ast.walk(node.args) if isinstance(part, ast.arg)}
    return live_before(body, set()) & stores(body) - parameters


def idle(loop: ast.AST) -> set[str]:
    """The variables that a loop changes by plain assignments and that affect nothing in it, such as a retry count."""
    acts = ast.Call | ast.Subscript | ast.Attribute
    statements = [part for part in ast.walk(loop) if isinstance(part, ast.Assign | ast.AugAssign)]
    plain = [one for one in statements if not any(isinstance(part, acts) for part in ast.walk(one))]
    inside = {id(part) for one in plain for part in ast.walk(one)}
    needed = {part.id for part in ast.walk(loop) if isinstance(part, ast.Name) and id(part) not in inside}
    while not (more := reads(one for one in plain if stores([one]) & needed)) <= needed:
        needed |= more
    return stores(plain) - needed


def live(node: ast.stmt, after: set[str]) -> set[str]:
    """The variables that may be read from a statement on, given those that may be read after it."""
    if isinstance(node, ast.If):
        return reads([node.test]) | live_before(node.body, after) | live_before(node.orelse, after)
    if isinstance(node, ast.While | ast.For):
        targets, around = stores([node.target]) if isinstance(node, ast.For) else set(), after | ({node.go} - {""})  # type: ignore
        while not (before := live_before(node.body, around) - targets) <= around:
            around = around | before
        # `structure` makes the body of a `while` run at least once.
        return around | reads([node.iter]) if isinstance(node, ast.For) else before
    assigned = {part.id for part in _targets(node) if isinstance(part, ast.Name)}
    return (after - assigned) | reads([node])


def live_before(body: list[ast.stmt], after: set[str]) -> set[str]:
    """The variables that may be read from the first of some statements on."""
    for node in reversed(body):
        after = live(node, after)
    return after


def _targets(node: ast.stmt) -> Iterable[ast.AST]:
    plain = [node.target] if isinstance(node, ast.AnnAssign) and node.value else []
    for target in node.targets if isinstance(node, ast.Assign) else plain:
        yield from ast.walk(target) if isinstance(target, ast.Tuple | ast.List | ast.Name) else ()
