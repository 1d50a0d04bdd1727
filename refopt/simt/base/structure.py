"""Rewrites statements without jumps: branches enclose what `return`, `break` and `continue` skip.

Whichever branch is taken in a statement, control continues after it: for lanes, and for code that analyzes the source.
"""

from __future__ import annotations

import ast
from typing import NamedTuple

RESULT, DONE = "_result", "_done"  # the return value, and whether a loop was left by `return`


class _Place(NamedTuple):
    """The context of statements: the variables that a jump sets, so that later statements are skipped."""

    go: str = ""  # whether the enclosing loop continues
    broken: str = ""
    skips: tuple[str, ...] = ()


class Structure:
    """The statements of one function."""

    def __init__(self) -> None:
        self.count = 0
        self.leaves = False  # whether a loop is left by `return`

    def function(self, body: list[ast.stmt]) -> list[ast.stmt]:
        """The statements of a function, which store its return value in `RESULT`."""
        new = self.block(body, _Place())
        return [*([_set(DONE, False)] if self.leaves else []), *new]

    def _name(self, label: str) -> str:
        self.count += 1
        return f"_{label}{self.count}"

    def block(self, body: list[ast.stmt], place: _Place) -> list[ast.stmt]:
        """The rewritten statements, up to the first that always jumps."""
        new: list[ast.stmt] = []
        for n, node in enumerate(body):
            rest = body[n + 1 :]
            if isinstance(node, ast.Return | ast.Break | ast.Continue):
                return [*new, *_jump(node, place)]
            if isinstance(node, ast.While | ast.For):
                return [*new, *self._loop(node, rest, place)]
            if isinstance(node, ast.If):
                if not _jumps(node):
                    new.append(_if(node.test, self.block(node.body, place), self.block(node.orelse, place), node))
                    continue
                return [*new, *self._branch(node, rest, place)]
            new.append(node)
        return new

    def _branch(self, node: ast.If, rest: list[ast.stmt], place: _Place) -> list[ast.stmt]:
        """A branch that contains a jump, and the statements after it."""
        body, orelse = _ends(node.body), _ends(node.orelse)
        if body or orelse:
            ways = node.body if body else [*node.body, *rest], node.orelse if orelse else [*node.orelse, *rest]
            return [_if(node.test, self.block(ways[0], place), self.block(ways[1], place), node)]
        on = self._name("on")
        inner = place._replace(skips=(*place.skips, on))
        way = _if(node.test, self.block(node.body, inner), self.block(node.orelse, inner), node)
        return [_set(on, True), way, _if(_name(on), self.block(rest, place), [], node)]

    def _loop(self, node: ast.While | ast.For, rest: list[ast.stmt], place: _Place) -> list[ast.stmt]:
        """A loop, and the statements after it."""
        breaks, returns = _jumps(node, ast.Break), _jumps(node, ast.Return)
        go = self._name("go") if isinstance(node, ast.While) or breaks or returns else ""
        broken = self._name("broken") if breaks and node.orelse else ""
        body = self.block(node.body, _Place(go, broken))
        loop: ast.While | ast.For
        if isinstance(node, ast.While):
            if not (isinstance(node.test, ast.Constant) and node.test.value):
                body = [ast.Assign([ast.Name(go, ast.Store())], node.test), _if(_name(go), body, [], node)]
            loop = ast.While(ast.Constant(True), body, [])
        else:
            loop = ast.For(node.target, node.iter, body, [])
        loop.go, loop.source = go, node  # type: ignore[union-attr]
        before = [_set(name, value) for name, value in ((go, True), (broken, False)) if name]
        after = [*node.orelse, *rest]
        if broken:
            after = [_if(ast.UnaryOp(ast.Not(), _name(broken)), node.orelse, [], node), *rest]
        if not returns:
            return [*before, ast.copy_location(loop, node), *self.block(after, place)]
        self.leaves = True
        left = _if(_name(DONE), _left(place), self.block(after, place), node)
        return [*before, ast.copy_location(loop, node), left]


def _jump(node: ast.stmt, place: _Place) -> list[ast.stmt]:
    if isinstance(node, ast.Continue):
        return [_set(name, False) for name in place.skips]
    if isinstance(node, ast.Break):
        return [*_left(place, done=False), *([_set(place.broken, True)] if place.broken else [])]
    assert isinstance(node, ast.Return)
    value = node.value or ast.Constant(None)
    return [ast.copy_location(ast.Assign([ast.Name(RESULT, ast.Store())], value), node), *_left(place)]


def _left(place: _Place, done: bool = True) -> list[ast.stmt]:
    """The assignments by which a `return` or a `break` informs the enclosing statements."""
    names = [(place.go, False), (DONE if done and place.go else "", True), *((name, False) for name in place.skips)]
    return [_set(name, value) for name, value in names if name]


def _set(name: str, value: bool) -> ast.stmt:
    return ast.Assign([ast.Name(name, ast.Store())], ast.Constant(value))


def _name(name: str) -> ast.expr:
    return ast.Name(name, ast.Load())


def _if(test: ast.expr, body: list[ast.stmt], orelse: list[ast.stmt], at: ast.AST) -> ast.stmt:
    return ast.copy_location(ast.If(test, body, orelse), at)


def _ends(body: list[ast.stmt]) -> bool:
    """Whether statements always jump, so that nothing after them runs."""
    return any(
        isinstance(node, ast.Return | ast.Break | ast.Continue)
        or (isinstance(node, ast.If) and _ends(node.body) and _ends(node.orelse))
        for node in body
    )


def _jumps(node: ast.stmt, *kinds: type) -> bool:
    """Whether a statement contains a jump, of these kinds or any; within inner loops, only `return` counts."""
    kinds = kinds or (ast.Return, ast.Break, ast.Continue)
    inside = (*node.body, *node.orelse) if isinstance(node, ast.If) else getattr(node, "body", ())
    for each in inside:
        nested = isinstance(each, ast.While | ast.For)
        wanted = tuple({ast.Return} & {*kinds}) if nested else kinds
        if isinstance(each, kinds) or (wanted and (nested or isinstance(each, ast.If)) and _jumps(each, *wanted)):
            return True
    return False
