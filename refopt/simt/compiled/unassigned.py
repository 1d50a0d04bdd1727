"""Which variables of a function may be read before they are assigned.

To Numba such a variable holds zero, and kernels may read it where the value does not matter. Python raises
UnboundLocalError. The analysis is that of definite assignment: one has to be on every way to a read.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable
from functools import cache
from typing import Any

from ..base.conversions import CONVERSIONS
from ..base.places import here
from ..base.state import current
from ..base.undefined import Undefined

Names = frozenset[str] | None  # None: this place is not reached, so that anything is assigned


def unassigned(node: ast.FunctionDef | ast.Lambda) -> set[str]:
    """The local variables of a function that may be read unassigned, those of functions inside it left out."""
    arguments = node.args
    every = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs, arguments.vararg, arguments.kwarg]
    reads = _Reads()
    body = node.body if isinstance(node.body, list) else [ast.Expr(node.body)]
    reads.block(body, frozenset(a.arg for a in every if a))
    return reads.names & reads.stored


@cache
def nothing(type_name: str, variable: str) -> Callable[[], Any]:
    """What gives the value of a variable that is not assigned: zero, and undefined where that is looked for."""
    zero = CONVERSIONS[type_name](0)

    def value() -> Any:
        observer = current.observer
        if observer is None or not observer.watching or not observer.rules.uninitialized:
            return zero
        return Undefined(zero, f"variable {variable} is not assigned on each way", here(), "uninitialized")

    return value


class _Reads:
    def __init__(self) -> None:
        self.names: set[str] = set()  # read where they may be unassigned, globals among them
        self.stored: set[str] = set()
        self.left: list[list[Names]] = []  # what is assigned at the breaks, for each loop around

    def block(self, body: Iterable[ast.stmt], names: Names) -> Names:
        for statement in body:
            names = self.statement(statement, names)
        return names

    def statement(self, node: ast.stmt, names: Names) -> Names:
        """What is assigned after a statement, by what is before it."""
        if isinstance(node, ast.If):
            names = self.expression(node.test, names)
            return _both(self.block(node.body, names), self.block(node.orelse, names))
        if isinstance(node, ast.While | ast.For):
            return self._loop(node, names)
        if isinstance(node, ast.Try):
            after = self.block([*node.body, *node.orelse], names)
            for handler in node.handlers:
                inside = names if handler.name is None or names is None else names | {handler.name}
                after = _both(after, self.block(handler.body, inside))
            return self.block(node.finalbody, after)
        if isinstance(node, ast.With):
            for item in node.items:
                names = self.expression(item, names)
            return self.block(node.body, names)
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            return self._stored({node.name}, names)
        if isinstance(node, ast.Import | ast.ImportFrom):
            return self._stored({(a.asname or a.name).partition(".")[0] for a in node.names}, names)
        if isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Name):
            self._read(node.target.id, names)
        names = self.expression(node, names)
        if isinstance(node, ast.Break):
            self.left[-1].append(names)
        return None if isinstance(node, ast.Break | ast.Continue | ast.Return | ast.Raise) else names

    def _loop(self, node: ast.While | ast.For, names: Names) -> Names:
        endless = isinstance(node, ast.While) and isinstance(node.test, ast.Constant) and bool(node.test.value)
        before = self.expression(node.test if isinstance(node, ast.While) else node.iter, names)
        self.left.append([])
        inside = self.expression(node.target, before) if isinstance(node, ast.For) else before
        self.block(node.body, inside)
        breaks = self.left.pop()
        after = None if endless else self.block(node.orelse, before)
        for each in breaks:
            after = _both(after, each)
        return after

    def expression(self, node: ast.AST, names: Names) -> Names:
        """Reads first, assignments after them; what only some operands of ``and`` assign counts as assigned."""
        parts = list(ast.walk(node))
        targets = [each.target for each in parts if isinstance(each, ast.comprehension)]
        own = {part.id for target in targets for part in ast.walk(target) if isinstance(part, ast.Name)}
        stored: set[str] = set()
        for part in parts:
            if isinstance(part, ast.Lambda):
                own |= {a.arg for a in part.args.args}
            elif isinstance(part, ast.Name) and isinstance(part.ctx, ast.Store):
                stored.add(part.id)
        walrus = {part.target.id for part in parts if isinstance(part, ast.NamedExpr)}
        for part in parts:
            if isinstance(part, ast.Name) and isinstance(part.ctx, ast.Load) and part.id not in own | walrus:
                self._read(part.id, names)
        return self._stored(stored - own, names)

    def _read(self, name: str, names: Names) -> None:
        if names is not None and name not in names:
            self.names.add(name)

    def _stored(self, stored: set[str], names: Names) -> Names:
        self.stored |= stored
        return None if names is None else names | stored


def _both(a: Names, b: Names) -> Names:
    return b if a is None else a if b is None else a & b
