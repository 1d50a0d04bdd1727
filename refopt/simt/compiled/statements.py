"""Typing of statements: variables and branches.

As in Numba's SSA form, each assignment creates a new version of a variable, with the type of its value. The types of a
variable are unified, and its value converted, only where branches meet or a loop begins again.
"""

from __future__ import annotations

import ast

from .assignments import Assignments, assigned, loaded
from .expressions import Later, Unsupported
from .functions import nothing
from .kinds import Kind, Known, joined, scalar

Scope = dict[str, Kind]


class Statements(Assignments):
    """The visits of statements."""

    def __init__(self) -> None:
        super().__init__()
        self.live = True
        self.failed: Exception | None = None  # the first error of a pass
        self.maybe: set[str] = set()  # variables that may be read unassigned
        self.returns: list[tuple[ast.Return, Kind]] = []
        self.local_names: frozenset[str] = frozenset()
        self.jumps: list[list[tuple[ast.stmt, Scope]]] = []  # breaks and continues, for each enclosing loop

    def block(self, body: list[ast.stmt]) -> list[ast.stmt]:
        """Statements in order; unreachable ones are omitted."""
        new: list[ast.stmt] = []
        for statement in body:
            if not self.live:
                break
            visitor = getattr(self, f"_do_{type(statement).__name__}", None)
            if visitor is None:
                raise Unsupported(f"{type(statement).__name__} in line {statement.lineno}")
            try:
                new += visitor(statement)
            except Later as later:  # what it assigns has no type in this pass
                self.failed = self.failed or later
                self.live = not isinstance(statement, ast.Return)
        return new or [ast.copy_location(ast.Pass(), body[0])]

    def conversions(self, scope: Scope, target: Scope, at: ast.AST) -> list[ast.stmt]:
        """Assignments that convert the variables of one scope to the types of another."""
        new: list[ast.stmt] = []
        for name, kind in scope.items():
            if name not in target or target[name] == kind:
                continue
            load = loaded(name, at)
            value = self.brought(load, kind, target[name])
            if value is not load:
                new.append(assigned(name, value, at))
        return [*new, *self.absent(scope, target, at)]

    def absent(self, scope: Scope, target: Scope, at: ast.AST) -> list[ast.stmt]:
        """Assignments of zero to variables that one scope lacks but that may be read."""
        new: list[ast.stmt] = []
        for name in sorted(self.maybe & target.keys() - scope.keys()):
            if (kind := scalar(target[name])) is not None:
                value = self.apply(nothing(kind.name, name), f"no_{kind.name}_{name}", at)
                new.append(assigned(name, value, at))
        return new

    # Statements

    def _do_Expr(self, node: ast.Expr) -> list[ast.stmt]:
        if isinstance(node.value, ast.Constant):
            return []
        return [ast.copy_location(ast.Expr(self.raw(node.value)[0]), node)]

    def _do_Pass(self, node: ast.stmt) -> list[ast.stmt]:
        return [node]

    def _do_Global(self, node: ast.Global) -> list[ast.stmt]:
        return []

    def _do_Match(self, node: ast.Match) -> list[ast.stmt]:
        """Rewritten as branches on comparisons; Numba supports no patterns with parts."""
        name = self.temporary()
        subject = loaded(name, node)
        choice: list[ast.stmt] = []
        for case in reversed(node.cases):
            pattern: ast.pattern | None = case.pattern
            bound = None
            if isinstance(case.pattern, ast.MatchAs):
                pattern, bound = case.pattern.pattern, case.pattern.name
            test = _matches(pattern, subject)
            if case.guard is not None:
                test = ast.BoolOp(ast.And(), [test, case.guard])
            binding = [assigned(bound, subject, case.pattern)] if bound else []
            first = binding if case.guard is not None else []  # the guard may read it
            branch = ast.copy_location(ast.If(test, [*binding, *case.body], choice), case.pattern)
            choice = [*first, ast.fix_missing_locations(branch)]
        return self.block([assigned(name, node.subject, node), *choice])

    def _do_Assert(self, node: ast.Assert) -> list[ast.stmt]:
        return [ast.copy_location(ast.Assert(self.raw(node.test, True)[0], node.msg), node)]

    def _do_Raise(self, node: ast.Raise) -> list[ast.stmt]:
        self.live = False
        return [node]

    def _do_Return(self, node: ast.Return) -> list[ast.stmt]:
        value, kind = self.visit(node.value) if node.value else (None, Known(None))
        new = ast.copy_location(ast.Return(value), node)
        self.returns.append((new, kind))
        self.live = False
        return [new]

    def _do_If(self, node: ast.If) -> list[ast.stmt]:
        if (way := self.decided(node.test)) is not None:
            chosen = node.body if way else node.orelse
            parts = ast.walk(node.test) if isinstance(node.test, ast.BoolOp) else ()
            calls = any(isinstance(part, ast.Call) for part in parts)
            tested = [ast.copy_location(ast.Expr(self.raw(node.test, True)[0]), node)] if calls else []
            return [*tested, *(self.block(chosen) if chosen else [])]
        test, _ = self.raw(node.test, test=True)
        before = dict(self.scope)
        body, after_body, body_live = self.block(node.body), self.scope, self.live
        self.scope, self.live = before, True
        orelse = self.block(node.orelse) if node.orelse else []
        after_else, else_live = self.scope, self.live
        if body_live and else_live:
            self.scope = merged(after_body, after_else)
            body += self.conversions(after_body, self.scope, node)
            orelse += self.conversions(after_else, self.scope, node)
        elif body_live:
            self.scope = after_body
        self.live = body_live or else_live
        return [ast.copy_location(ast.If(test, body, orelse), node)]


def _matches(pattern: ast.pattern | None, subject: ast.expr) -> ast.expr:
    """The comparison for the pattern of a case."""
    if pattern is None or (isinstance(pattern, ast.MatchAs) and pattern.name is None):
        return ast.Constant(True)
    if isinstance(pattern, ast.MatchValue):
        return ast.copy_location(ast.Compare(subject, [ast.Eq()], [pattern.value]), pattern)
    if isinstance(pattern, ast.MatchSingleton):
        return ast.copy_location(ast.Compare(subject, [ast.Is()], [ast.Constant(pattern.value)]), pattern)
    if isinstance(pattern, ast.MatchOr):
        return ast.copy_location(ast.BoolOp(ast.Or(), [_matches(each, subject) for each in pattern.patterns]), pattern)
    raise Unsupported(f"{type(pattern).__name__} in line {pattern.lineno}")


def merged(a: Scope, b: Scope, widen: bool = False) -> Scope:
    """The variables after two paths meet."""
    return a | {name: joined(a[name], kind, widen) if name in a else kind for name, kind in b.items()}
