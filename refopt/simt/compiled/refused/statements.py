"""A typer that also refuses the statements that Numba refuses."""

from __future__ import annotations

import ast
from typing import Any

from .. import syntax
from ..expressions import Unsupported
from ..kinds import Array, Kind, Known, Record, Scalar, array_of, items_of, scalar
from ..syntax import NewArray
from ..uses import ELEMENTS, unfit
from .typed import Expressions


class Refusals(Expressions):
    """The visits of statements."""

    def _do_Try(self, node: ast.Try) -> list[ast.stmt]:
        self.hold(syntax.expression(node))
        raise Unsupported("try")

    _do_TryStar = _do_Try

    def _do_Assert(self, node: ast.Assert) -> list[ast.stmt]:
        if node.msg is not None:
            self._constant_of(node.msg)
        return super()._do_Assert(node)

    def _do_Raise(self, node: ast.Raise) -> list[ast.stmt]:
        if node.cause is not None:
            self.refuse(node.cause, "raise ... from", "raise an exception with only constants")
        if node.exc is not None:
            raised = node.exc.func if isinstance(node.exc, ast.Call) else node.exc
            kind = self.visit(raised)[1]
            known = isinstance(kind, Known) and isinstance(kind.value, type) and issubclass(kind.value, BaseException)
            if kind is not None and not known:
                self.refuse(raised, "raise of a value that is not an exception", "raise ValueError, with constants")
            for arg in node.exc.args if isinstance(node.exc, ast.Call) else ():
                self._constant_of(arg)
        return super()._do_Raise(node)

    def _constant_of(self, node: ast.expr) -> None:
        kind = self.visit(node)[1]
        if kind is not None and not isinstance(kind, Known) and not isinstance(node, ast.Tuple):
            self.refuse(node, "an exception with a value that is not constant", "use constant text, or print the value")

    def _do_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> list[ast.stmt]:
        self.scope[node.name] = None
        return [node]

    def _loop(self, node: Any, iterated: ast.expr | None = None, element: Kind = None) -> list[ast.stmt]:
        if iterated is not None:
            self.hold(unfit("loop", node.iter, self.kinds.get(node.iter)))
        return super()._loop(node, iterated, element)

    def _target(self, node: ast.expr, kind: Kind) -> ast.expr:
        if isinstance(node, ast.Tuple | ast.List):
            items, count = items_of(kind), len(node.elts)
            if items is not None and len(items) != count:
                self.refuse(node, f"{count} names for a tuple of {len(items)}", "use as many names as it has items")
            if scalar(kind) is not None:
                self.refuse(node, f"{count} names for a number", "cuda.grid(2) gives two numbers, cuda.grid(1) one")
        new = super()._target(node, kind)
        if isinstance(node, ast.Subscript):
            self._stored_at(node, kind)
        return new

    def _store(self, node: ast.stmt, target: ast.Subscript, value: ast.expr, kind: Kind) -> ast.stmt:
        new = super()._store(node, target, value, kind)
        self._stored_at(target, kind)
        return new

    def _stored_at(self, target: ast.Subscript, kind: Kind) -> None:
        """Check an assignment of a value of a kind to an element or a view."""
        base, at = self.kinds.get(target.value), self.kinds.get(target.slice)
        self.indexed(target)
        if items_of(base) is not None:
            self.refuse(target, "an assignment to an item of a tuple", "make it an array: cuda.local.array")
        inner = target.value
        if isinstance(inner, ast.Name) and inner.id not in self.scope and isinstance(base, Array):
            reason = f"an assignment to {inner.id}, which is constant because the kernel captures it"
            self.refuse(target, reason, "make it an argument of the kernel")
        place = self.item(base, at, target.slice) if isinstance(base, Array) else None
        if isinstance(place, Array) and isinstance(kind, Array):
            instead = "copy element by element, in a loop or one per thread"
            self.refuse(target, NewArray("a copy of a whole array"), instead)
        if isinstance(place, Scalar) and kind is not None and not (isinstance(kind, Array) and not kind.axes):
            called = f"{{}} for an element of {place.name}"
            self.resolved(target, "A[0] = b", array_of(place.name, 1), kind, called=called)

    def assign(self, node: ast.stmt, target: ast.expr, value: ast.expr, kind: Kind) -> list[ast.stmt]:
        new = super().assign(node, target, value, kind)
        if isinstance(target, ast.Attribute):
            owner = self.kinds.get(target.value)
            if owner is not None and not isinstance(owner, Record):
                self.refuse(target, f"an assignment to .{target.attr}", "only fields of records can be assigned to")
        return new

    def changed_in_place(self, node: ast.AugAssign, place: ast.expr, kind: Kind) -> list[ast.stmt]:
        if isinstance(kind, Array):
            whole = isinstance(node.target, ast.Name)
            what = "whole array, whose result would be a new array" if whole else "view of an array"
            self.refuse(node.target, NewArray(f"an operator on a {what}"), ELEMENTS)
        return super().changed_in_place(node, place, kind)
