"""Typing of assignments: to variables, elements, fields and views."""

from __future__ import annotations

import ast
from collections.abc import Callable
from typing import Any

from ..base.conversions import CONVERSIONS
from ..base.scalars import INTEGERS
from .calls import Calls
from .expressions import Typed, Unsupported, Untyped
from .kinds import Array, Kind, Known, Record, Scalar, field, items_of, limits, scalar, variable


class Assignments(Calls):
    """The visits of assignments."""

    def _do_Assign(self, node: ast.Assign) -> list[ast.stmt]:
        value, kind = self.visit(node.value)
        if len(node.targets) == 1:
            return self.assign(node, node.targets[0], value, kind)
        if not any(map(_stores, node.targets)):
            return [ast.copy_location(ast.Assign([self._target(target, kind) for target in node.targets], value), node)]
        name = self.temporary()
        new = [assigned(name, value, node)]
        for target in node.targets:
            new += self.assign(node, target, loaded(name, node), kind)
        return new

    def assign(self, node: ast.stmt, target: ast.expr, value: ast.expr, kind: Kind) -> list[ast.stmt]:
        """The assignment of a value of a kind to a target; part by part if the target contains elements or fields."""
        if isinstance(target, ast.Subscript):
            return [self._store(node, target, value, kind)]
        if isinstance(target, ast.Attribute):
            base, owner = self.visit(target.value)
            place = ast.copy_location(ast.Attribute(base, target.attr, ast.Store()), target)
            part = field(owner, target.attr) if isinstance(owner, Record) else None
            return [ast.copy_location(ast.Assign([place], self._fitting(value, kind, part)), node)]
        if not isinstance(target, ast.Tuple | ast.List) or not _stores(target):
            return [ast.copy_location(ast.Assign([self._target(target, kind)], value), node)]
        names = [self.temporary() for _ in target.elts]
        unpacked = ast.copy_location(ast.Tuple([ast.Name(name, ast.Store()) for name in names], ast.Store()), target)
        new: list[ast.stmt] = [ast.copy_location(ast.Assign([self._target(unpacked, kind)], value), node)]
        for name, inner in zip(names, target.elts, strict=True):
            new += self.assign(node, inner, loaded(name, node), self.scope.pop(name))
        return new

    def _do_AnnAssign(self, node: ast.AnnAssign) -> list[ast.stmt]:
        return self._do_Assign(ast.copy_location(ast.Assign([node.target], node.value), node)) if node.value else []

    def _target(self, node: ast.expr, kind: Kind) -> ast.expr:
        """The target of an assignment, once it has a value of a kind."""
        if isinstance(node, ast.Name):
            self.scope[node.id] = kind
            return node
        if isinstance(node, ast.Tuple | ast.List):
            items = items_of(kind)
            starred = any(isinstance(part, ast.Starred) for part in node.elts)
            known = items is not None and len(items) == len(node.elts) and not starred
            kinds: tuple[Kind, ...] = items if items is not None and known else (None,) * len(node.elts)
            if all(isinstance(each, Known) for each in kinds):
                kinds = tuple(variable(each) for each in kinds)
            parts = [self._target(part, each) for part, each in zip(node.elts, kinds, strict=True)]
            return ast.copy_location(type(node)(parts, ast.Store()), node)
        if isinstance(node, ast.Starred):
            return ast.copy_location(ast.Starred(self._target(node.value, None), ast.Store()), node)
        if isinstance(node, ast.Subscript):
            base, index = self.visit(node.value)[0], self.visit(node.slice)[0]
            return ast.copy_location(ast.Subscript(base, index, ast.Store()), node)
        if isinstance(node, ast.Attribute):
            return ast.copy_location(ast.Attribute(self.visit(node.value)[0], node.attr, ast.Store()), node)
        raise Unsupported(f"assignment to {type(node).__name__} in line {node.lineno}")

    def _store(self, node: ast.stmt, target: ast.Subscript, value: ast.expr, kind: Kind) -> ast.stmt:
        """An assignment to an element or to a view."""
        (base, array), (index, at) = self.visit(target.value), self.visit(target.slice)
        value = self._fitting(value, kind, self.item(array, at, target.slice), array)
        new = ast.copy_location(ast.Subscript(base, index, ast.Store()), target)
        return ast.copy_location(ast.Assign([new], value), node)

    def _fitting(self, value: ast.expr, kind: Kind, element: Kind, array: Kind = None) -> ast.expr:
        """A value converted for the element that it is assigned to."""
        if isinstance(element, Scalar):
            return self.stored(value, kind, element.name)
        return self.stored(value, kind, array.dtype) if isinstance(array, Array) and array.dtype else value

    def stored(self, value: ast.expr, kind: Kind, name: str) -> ast.expr:
        """A value converted to an element type."""
        known = scalar(kind)
        if known is None:
            if kind is None and name in INTEGERS:
                raise Untyped(value)
            return value
        low, high = limits(name)
        if name not in INTEGERS:
            small = -(2**53) <= known.low <= known.high <= 2**53
            exact = known.name not in INTEGERS or small or name in ("float64", "complex128")
            return value if exact else self.converted(value, kind, name)
        if name in ("bool", known.name) or (known.name in INTEGERS and low <= known.low <= known.high <= high):
            return value
        return self.apply(CONVERSIONS[name], f"to_{name}", value, value)

    def _do_AugAssign(self, node: ast.AugAssign) -> list[ast.stmt]:
        """An operation and an assignment, except for values that are changed in place, such as arrays."""
        before: list[ast.stmt] = []
        target, symbol = node.target, type(node.op).__name__
        place: dict[str, Any] = dict(ast.iter_fields(target))
        place |= {part: self._once(place[part], before) for part in ("value", "slice") if part in place}
        old, new = (ast.copy_location(type(target)(**place | {"ctx": ctx()}), target) for ctx in (ast.Load, ast.Store))
        load, kind = self.visit(old)
        if isinstance(kind, Array | Record) or (isinstance(kind, Known) and scalar(kind) is None):
            after = self.changed_in_place(node, new, kind)
        else:
            at = ast.copy_location(ast.Constant(None), node)
            result = self.settled(*self.operation(at, symbol, (load, kind), self.raw(node.value), True))
            after = self.assign(node, new, *self.remembered(node, *result))
        for statement in before:  # each pass over a loop makes new temporaries, so with them types would never settle
            del self.scope[statement.targets[0].id]  # type: ignore[attr-defined]
        return [*before, *after]

    remembered: Callable[[ast.AST, ast.expr, Kind], Typed]

    def _once(self, node: ast.expr, before: list[ast.stmt]) -> ast.expr:
        """An expression that can be used twice but is evaluated once, in a statement before."""
        parts = node.elts if isinstance(node, ast.Tuple) else [node]
        kinds = {type(part) for part in parts}
        if kinds <= {ast.Name, ast.Constant} or ast.Slice in kinds:  # a slice selects a view, which is changed in place
            return node
        value, kind = self.visit(node)
        name = self.temporary()
        self.scope[name] = kind
        before.append(assigned(name, value, node))
        return loaded(name, node)

    def changed_in_place(self, node: ast.AugAssign, place: ast.expr, kind: Kind) -> list[ast.stmt]:
        """An augmented assignment to a value that is not a number."""
        return [ast.copy_location(ast.AugAssign(self._target(place, kind), node.op, self.visit(node.value)[0]), node)]  # type: ignore[arg-type]


def _stores(target: ast.expr) -> bool:
    """Whether a target contains an element or a field."""
    return any(
        isinstance(part, ast.Subscript | ast.Attribute) and isinstance(part.ctx, ast.Store) for part in ast.walk(target)
    )


def assigned(name: str, value: ast.expr, at: ast.AST) -> ast.stmt:
    return ast.copy_location(ast.Assign([ast.copy_location(ast.Name(name, ast.Store()), at)], value), at)


def loaded(name: str, at: ast.AST) -> ast.expr:
    return ast.copy_location(ast.Name(name, ast.Load()), at)
