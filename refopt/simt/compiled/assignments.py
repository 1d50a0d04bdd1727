"""Typing of assignments: to variables, elements, fields and views."""

from __future__ import annotations

import ast

from ..base.conversions import CONVERSIONS
from ..base.scalars import FLOATS, INTEGERS, binary
from . import dynamic
from .calls import Calls
from .expressions import Unsupported
from .kinds import Array, Kind, Known, Record, Scalar, field, items_of, limits, scalar, variable


class Assignments(Calls):
    """The visits of assignments."""

    def _do_Assign(self, node: ast.Assign) -> list[ast.stmt]:
        value, kind = self.visit(node.value)
        if len(node.targets) == 1 and isinstance(node.targets[0], ast.Subscript):
            return [self._store(node, node.targets[0], value, kind)]
        if len(node.targets) == 1 and isinstance(place := node.targets[0], ast.Attribute):
            base, owner = self.visit(place.value)
            new_place = ast.copy_location(ast.Attribute(base, place.attr, ast.Store()), place)
            part = field(owner, place.attr) if isinstance(owner, Record) else None
            return [ast.copy_location(ast.Assign([new_place], self._fitting(value, kind, part)), node)]
        if any(_stores(target) for target in node.targets):
            return self._apart(node, value, kind)
        targets = [self._target(target, kind) for target in node.targets]
        return [ast.copy_location(ast.Assign(targets, value), node)]

    def _apart(self, node: ast.Assign, value: ast.expr, kind: Kind) -> list[ast.stmt]:
        """An assignment to several places, elements among them, as one to each."""
        name = self.temporary()
        self.scope[name] = kind
        new: list[ast.stmt] = [assigned(name, value, node)]
        temporaries = [name]
        for target in node.targets:
            if not isinstance(target, ast.Tuple | ast.List) or not _stores(target):
                new += self._do_Assign(ast.copy_location(ast.Assign([target], loaded(name, node)), node))
                continue
            parts: list[ast.expr] = []
            after: list[tuple[ast.expr, str]] = []
            for part in target.elts:
                if isinstance(part, ast.Starred) or not _stores(part):
                    parts.append(part)
                    continue
                after.append((part, self.temporary()))
                parts.append(ast.copy_location(ast.Name(after[-1][1], ast.Store()), part))
            places = ast.copy_location(ast.Tuple(parts, ast.Store()), target)
            new += self._do_Assign(ast.copy_location(ast.Assign([places], loaded(name, node)), node))
            for part, held in after:
                new += self._do_Assign(ast.copy_location(ast.Assign([part], loaded(held, node)), node))
            temporaries += [held for _, held in after]
        for held in temporaries:  # each round over a loop has others, so with them its types would never settle
            del self.scope[held]
        return new

    def _do_AnnAssign(self, node: ast.AnnAssign) -> list[ast.stmt]:
        return self._do_Assign(ast.copy_location(ast.Assign([node.target], node.value), node)) if node.value else []

    def _target(self, node: ast.expr, kind: Kind) -> ast.expr:
        """What is assigned to, once it has a value of a kind."""
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
        """A value as what it is assigned to holds it."""
        if isinstance(element, Scalar):
            return self.stored(value, kind, element.name)
        return self.stored(value, kind, array.dtype) if isinstance(array, Array) and array.dtype else value

    def stored(self, value: ast.expr, kind: Kind, name: str) -> ast.expr:
        """A value as an element of a type holds it."""
        known = scalar(kind)
        if known is None:
            if kind is not None or name in FLOATS:
                return value
            return self.apply(dynamic.conversion(name), f"to_{name}", value, value)
        low, high = limits(name)
        if name in FLOATS:
            exact = known.name in FLOATS or -(2**53) <= known.low <= known.high <= 2**53 or name == "float64"
            return value if exact else self.converted(value, kind, name)
        if name in ("bool", known.name) or (known.name in INTEGERS and low <= known.low <= known.high <= high):
            return value
        return self.apply(CONVERSIONS[name], f"to_{name}", value, value)

    def _do_AugAssign(self, node: ast.AugAssign) -> list[ast.stmt]:
        symbol, target = type(node.op).__name__, node.target
        if isinstance(target, ast.Name):
            kind = self.visit(loaded(target.id, target))[1]
            if isinstance(kind, Array) or (isinstance(kind, Known) and scalar(kind) is None):
                return [ast.copy_location(ast.AugAssign(target, node.op, self.visit(node.value)[0]), node)]
            right = self.raw(node.value)
            old = self.raw(loaded(target.id, target))
            if kind is None and scalar(right[1]) is None:
                value = self.apply(dynamic.binary(symbol, True), f"in_place_{symbol}", node, old[0], right[0])
            else:
                value, kind = self.settled(*self.operation(_at(node), symbol, old, right))
            self.scope[target.id] = kind
            return [assigned(target.id, value, node)]
        before: list[ast.stmt] = []
        if isinstance(target, ast.Attribute):
            owner, record = self.visit(target.value)
            owner = self._once(owner, before, node)
            old = self.attribute(
                ast.copy_location(ast.Attribute(owner, target.attr, ast.Load()), node), record, target.attr
            )
            result, kind = self.settled(*self.operation(_at(node), symbol, old, self.raw(node.value)))
            attribute = ast.copy_location(ast.Attribute(owner, target.attr, ast.Store()), node)
            part = field(record, target.attr) if isinstance(record, Record) else None
            return [*before, ast.copy_location(ast.Assign([attribute], self._fitting(result, kind, part)), node)]
        (base, array), (index, at) = self.visit(target.value), self.visit(target.slice)
        part = self.item(array, at, target.slice)
        if isinstance(part, Array | Record) or (isinstance(array, Known) and part is None):
            new = ast.copy_location(ast.Subscript(base, index, ast.Store()), target)
            return [ast.copy_location(ast.AugAssign(new, node.op, self.visit(node.value)[0]), node)]
        value, kind = self.visit(node.value)
        if self._adds_as_it_is(symbol, part, kind):
            new = ast.copy_location(ast.Subscript(base, index, ast.Store()), target)
            return [ast.copy_location(ast.AugAssign(new, node.op, value), node)]
        base, index = self._once(base, before, node), self._once(index, before, node)
        load = ast.copy_location(ast.Subscript(base, index, ast.Load()), node)
        old = load, part
        if before and not isinstance(value, ast.Constant):
            name = self.temporary()
            before.append(assigned(name, load, node))
            old = loaded(name, node), part
        result, kind = self.settled(*self.operation(_at(node), symbol, old, (value, kind)))
        result = self._fitting(result, kind, part, array)
        place = ast.copy_location(ast.Subscript(base, index, ast.Store()), node)
        return [*before, ast.copy_location(ast.Assign([place], result), node)]

    def _adds_as_it_is(self, symbol: str, element: Kind, value: Kind) -> bool:
        """Whether ``x[i] += value`` is the same in NumPy's types: floats alone, the element's no narrower."""
        one, other = scalar(element), scalar(value)
        if one is None or other is None or symbol not in ("Add", "Sub", "Mult", "Div"):
            return False
        rule = binary(symbol, one.name, other.name)
        return rule is not None and rule[2] == one.name and one.name in FLOATS and other.name in FLOATS

    def _once(self, node: ast.expr, before: list[ast.stmt], at: ast.AST) -> ast.expr:
        """An expression that may be used twice, evaluated once."""
        if isinstance(node, ast.Name | ast.Constant):
            return node
        if isinstance(node, ast.Tuple) and all(isinstance(part, ast.Name | ast.Constant) for part in node.elts):
            return node
        name = self.temporary()
        before.append(assigned(name, node, at))
        return loaded(name, at)

    # Branches


def _stores(target: ast.expr) -> bool:
    """Whether an element or a field is assigned to."""
    return any(
        isinstance(part, ast.Subscript | ast.Attribute) and isinstance(part.ctx, ast.Store) for part in ast.walk(target)
    )


def assigned(name: str, value: ast.expr, at: ast.AST) -> ast.stmt:
    return ast.copy_location(ast.Assign([ast.copy_location(ast.Name(name, ast.Store()), at)], value), at)


def _at(node: ast.stmt) -> ast.expr:
    """A place for an operation that an augmented assignment does."""
    return ast.copy_location(ast.Constant(None), node)


def loaded(name: str, at: ast.AST) -> ast.expr:
    return ast.copy_location(ast.Name(name, ast.Load()), at)
