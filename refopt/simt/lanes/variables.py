"""Which variables statements without jumps read and assign."""

from __future__ import annotations

import ast
from collections.abc import Iterable


def stores(nodes: Iterable[ast.AST]) -> set[str]:
    """The variables that are assigned."""
    parts = (part for node in nodes for part in ast.walk(node) if isinstance(part, ast.Name))
    return {part.id for part in parts if isinstance(part.ctx, ast.Store)}


def reads(nodes: Iterable[ast.AST]) -> set[str]:
    """The names that are read."""
    parts = (part for node in nodes for part in ast.walk(node) if isinstance(part, ast.Name))
    return {part.id for part in parts if isinstance(part.ctx, ast.Load)}


def live(node: ast.stmt, after: set[str]) -> set[str]:
    """The variables that may be read from a statement on, by those that may be after it."""
    if isinstance(node, ast.If):
        return reads([node.test]) | live_before(node.body, after) | live_before(node.orelse, after)
    if isinstance(node, ast.While | ast.For):
        go, once = {node.go} - {""}, stores([node.target]) if isinstance(node, ast.For) else set()  # type: ignore
        around = after | go
        while True:
            more = around | (live_before(node.body, around) - once)
            if more == around:
                return around | (reads([node.iter]) if isinstance(node, ast.For) else set())
            around = more
    assigned = {part.id for part in _targets(node) if isinstance(part, ast.Name)}
    return (after - assigned) | reads([node])


def live_before(body: list[ast.stmt], after: set[str]) -> set[str]:
    """The variables that may be read from statements on."""
    for node in reversed(body):
        after = live(node, after)
    return after


def _targets(node: ast.stmt) -> Iterable[ast.AST]:
    for target in node.targets if isinstance(node, ast.Assign) else ():
        yield from ast.walk(target) if isinstance(target, ast.Tuple | ast.List | ast.Name) else ()
