"""Typing of loops: variables' types are unified where the next iteration begins."""

from __future__ import annotations

import ast
import functools
from collections.abc import Callable
from typing import Any

from ..base.scalars import unify
from ..base.variables import stores
from .expressions import Typed, Unsupported
from .kinds import LATE, Kind, Known, any_number, item_of, joined, scalar
from .statements import Scope, Statements, merged

_PASSES = 24  # over a function until its types no longer change
_COMPUTED = ast.BinOp | ast.UnaryOp | ast.Call | ast.Subscript | ast.Attribute | ast.IfExp | ast.BoolOp


class Loops(Statements):
    """The visits of loops, `break` and `continue`.

    As in Numba, types are inferred in passes over the whole function: in the first, a loop's variables have the types
    from before it, in the next also those from the end of its body, until nothing changes. The type of an expression
    holds all that it had in these passes.
    """

    def __init__(self) -> None:
        super().__init__()
        self.altered = False
        self.remembers = False
        self.headers: dict[ast.AST, Scope] = {}  # of each loop, the kinds of what it changes where an iteration begins
        self.types: dict[ast.AST, str] = {}  # of expressions in the passes so far

    def settle(self, body: list[ast.stmt]) -> list[ast.stmt]:
        """Type the statements of a function."""
        scope = self.scope
        self.remembers = any(isinstance(part, ast.For | ast.While) for each in body for part in ast.walk(each))
        for _ in range(_PASSES):
            self.scope, self.live, self.altered, self.temporaries = dict(scope), True, False, 0
            self.returns, self.doubles, self.constants, self.failed = [], set(), {}, None
            new = self.block(body)
            if self.altered | self.returns_more():
                continue
            if self.failed is not None:
                raise self.failed.__cause__ or self.failed
            return new
        raise Unsupported("types that do not settle in its loops")

    returns_more: Callable[[], bool]

    def raw(self, node: ast.expr, test: bool = False) -> Typed:
        new, kind = super().raw(node, test)
        return self.remembered(node, new, kind) if isinstance(node, _COMPUTED) else (new, kind)

    def remembered(self, node: ast.AST, new: ast.expr, kind: Kind) -> Typed:
        """A value converted to a type that holds those that it had in earlier passes too."""
        one = scalar(kind)
        if one is None or not self.remembers:
            return new, kind
        name = self.types[node] = unify(self.types.get(node, one.name), one.name)
        if name == one.name:
            return new, kind
        return self.converted(*self.settled(new, kind), name), any_number(name)

    def _do_Break(self, node: ast.stmt) -> list[ast.stmt]:
        new = ast.copy_location(type(node)(), node)
        self.jumps[-1].append((new, dict(self.scope)))
        self.live = False
        return [new]

    _do_Continue = _do_Break

    def _do_While(self, node: ast.While) -> list[ast.stmt]:
        return self._loop(node)

    def _do_For(self, node: ast.For) -> list[ast.stmt]:
        if isinstance(node.iter, ast.List):  # Python compiles it as a tuple
            node.iter = ast.copy_location(ast.Tuple(node.iter.elts, ast.Load()), node.iter)
        iterated, kind = self.visit(node.iter)
        return self._loop(node, iterated, item_of(kind))

    def _loop(self, node: Any, iterated: ast.expr | None = None, element: Kind = None) -> list[ast.stmt]:
        entry, returns = dict(self.scope), len(self.returns)
        late = [name for name in stores(node.body) if entry.get(name) == Known(None)]
        header = entry | dict.fromkeys(late, LATE) | {
            name: joined(kind, entry[name], widen=True) if name in entry and kind is not LATE else kind
            for name, kind in self.headers.get(node, {}).items()
        }
        self.scope = dict(header)
        self.jumps.append([])
        if iterated is None:
            outer, self.remembers = self.remembers, False  # bytecode has the test twice: before the loop and at its end
            test, _known = self.raw(node.test, test=True)
            self.remembers = outer
            outside = {name: kind for name, kind in self.scope.items() if kind is not header.get(name)}
        else:
            target = self._target(node.target, element)
            outside = dict(header)
            for name in ast.walk(node.target):
                if isinstance(name, ast.Name):
                    inside = self.scope.get(name.id)
                    outside[name.id] = joined(header[name.id], inside) if name.id in header else inside
        body = self.block(node.body)
        jumps = self.jumps.pop()
        ends: list[tuple[ast.stmt | None, Scope]] = [(None, self.scope)] if self.live else []
        ends += [(jump, scope) for jump, scope in jumps if isinstance(jump, ast.Continue)]
        new = _begun_again(entry, header, [scope for _, scope in ends])
        if iterated is None:  # after it, a variable is that before the loop or that at the end of its body
            outside = new | outside
        self.altered |= new != header
        self.headers[node] = {name: kind for name, kind in new.items() if kind is not entry.get(name, self)}
        way = self.decided(node.test, header) if iterated is None else None
        continued = any(isinstance(jump, ast.Continue) for jump, _ in jumps)
        first = self.decided(node.test, entry) if iterated is None and not continued else None
        if first is False:
            del self.returns[returns:]
            self.scope, self.live = entry, True
            return self.block(node.orelse) if node.orelse else []
        before = [*self.conversions(entry, header, node), *self.absent(header, outside, node)]
        inserted = {id(jump): self.conversions(scope, header, node) for jump, scope in ends if jump is not None}
        if self.live:
            body += self.conversions(self.scope, header, node)
        at_exit: list[ast.stmt] = []
        if first and not way and self.live:  # Python tests before the loop and again at its end, where it is left
            outside = outside | self.scope
            at_exit = self.conversions(header, outside, node)
        self.scope, self.live = outside, True
        orelse = at_exit + (self.block(node.orelse) if node.orelse else [])
        breaks = [(jump, scope) for jump, scope in jumps if isinstance(jump, ast.Break)]
        ways = [self.scope] if self.live and not way else []
        left = [*ways, *(scope for _, scope in breaks)]
        self.live = bool(left)
        if left:
            after = functools.reduce(merged, left)
            if ways:
                orelse += self.conversions(ways[0], after, node)
            inserted |= {id(jump): self.conversions(scope, after, node) for jump, scope in breaks}
            self.scope = after
        if any(inserted.values()):
            body = _with_inserted(body, inserted)
        if iterated is None:
            loop: ast.stmt = ast.While(test, body, orelse)
        else:
            loop = ast.For(target, iterated, body, orelse, None)
        return [*before, ast.copy_location(loop, node)]


def _begun_again(entry: Scope, header: Scope, ends: list[Scope]) -> Scope:
    """The kinds where the next iteration begins, from those before the loop and at each end of its body."""
    for scope in ends:
        header = merged(header, scope, widen=True)
    changed = {name for name, kind in header.items() if kind != Known(None) == entry.get(name)}
    return header | dict.fromkeys(changed, LATE)


def _with_inserted(body: list[ast.stmt], inserted: dict[int, list[ast.stmt]]) -> list[ast.stmt]:
    """Statements with others inserted before some of them, also in branches."""
    new: list[ast.stmt] = []
    for statement in body:
        for part in ("body", "orelse"):
            if isinstance(getattr(statement, part, None), list):
                setattr(statement, part, _with_inserted(getattr(statement, part), inserted))
        new += [*inserted.get(id(statement), ()), statement]
    return new
