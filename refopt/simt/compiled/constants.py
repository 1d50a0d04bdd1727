"""Tests that Numba decides at compile time: it removes the other branch before it infers types."""

from __future__ import annotations

import ast
import operator
from typing import Any

import numpy as np

from .expressions import Expressions
from .kinds import Array, Clash, Kind, Known, Varying, items_of
from .operators import SYMBOLS

_BINARY = {getattr(ast, name): function for name, function in SYMBOLS.items()}
_BINARY |= {ast.Is: operator.is_, ast.IsNot: operator.is_not}
_UNARY = {ast.USub: operator.neg, ast.UAdd: operator.pos, ast.Invert: operator.invert, ast.Not: operator.not_}
_SYNTAX = {id(function): kind for kind, function in (*_BINARY.items(), *_UNARY.items())}
_NOTHING = object()


class Constants(Expressions):
    """Numba's constants: literals, globals, variables assigned from these, `ndim`, and the `len` of tuples."""

    def decided(self, test: ast.expr, scope: dict[str, Kind] | None = None) -> bool | None:
        """The result of a test, given the kinds in a scope; None if it is known only at run time."""
        outer, self.scope = self.scope, self.scope if scope is None else scope
        try:
            way = self._way(folded(test))
        finally:
            self.scope = outer
        if way is not None:
            self.changed = True
        return way

    def _way(self, test: ast.expr) -> bool | None:
        if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
            way = self._way(test.operand)
            return None if way is None else not way
        if isinstance(test, ast.BoolOp):
            ways = {self._way(value) for value in test.values}
            stops = isinstance(test.op, ast.Or)
            return stops if stops in ways else None if None in ways else not stops
        function, left, right = self._operator(test)
        values = [self._constant(each) for each in (left, right)] if left and right else []
        if function is not None and not any(value is _NOTHING for value in values):
            try:
                return bool(function(*values))
            except (TypeError, ValueError, ArithmeticError):
                return None
        value = self._constant(test)
        return bool(value) if isinstance(value, int | float | np.generic | str | tuple | None) else None

    def _operator(self, test: ast.expr) -> tuple[Any, ast.expr | None, ast.expr | None]:
        if isinstance(test, ast.Compare) and len(test.ops) == 1:
            return _BINARY.get(type(test.ops[0])), test.left, test.comparators[0]
        if isinstance(test, ast.BinOp):
            return _BINARY.get(type(test.op)), test.left, test.right
        return None, None, None

    def _constant(self, node: ast.expr) -> Any:
        """The value of an expression, if it is constant."""
        node = folded(node)
        if isinstance(node, ast.Constant):
            return node.value
        if isinstance(node, ast.Name):
            kind = self.scope[node.id] if node.id in self.scope else self.named(node.id)
            settled = isinstance(kind, Known) and not isinstance(kind.value, Clash | Varying)
            return kind.value if settled else _NOTHING  # type: ignore[union-attr]
        if isinstance(node, ast.Attribute) and node.attr == "ndim" and isinstance(node.value, ast.Name):
            kind = self.scope.get(node.value.id)
            return kind.axes if isinstance(kind, Array) else _NOTHING
        if isinstance(node, ast.Call) and len(node.args) == 1 and isinstance(name := node.args[0], ast.Name):
            items = items_of(self.scope.get(name.id)) if self._constant(node.func) is len else None
            return _NOTHING if items is None else len(items)
        return _NOTHING

    def reached(self, node: ast.BoolOp) -> list[ast.expr]:
        """The operands of ``and`` or ``or`` that Numba does not remove."""
        values: list[ast.expr] = []
        for value in node.values[:-1]:
            way = self.decided(value)
            if way is isinstance(node.op, ast.And):
                continue
            values.append(value)
            if way is not None:
                return values
        return [*values, node.values[-1]]


def as_operator(node: ast.Call, function: Any) -> ast.expr | None:
    """The expression with an operator for a call of a function of `operator`; None for other calls."""
    kind: Any = _SYNTAX.get(id(function), ast.operator)
    new: ast.expr | None = None
    match node.args:
        case [x] if issubclass(kind, ast.unaryop):
            new = ast.UnaryOp(kind(), x)
        case [x, y] if function is operator.contains:
            new = ast.Compare(y, [ast.In()], [x])
        case [x, y] if function is operator.getitem:
            new = ast.Subscript(x, y, ast.Load())
        case [x, y] if issubclass(kind, ast.cmpop):
            new = ast.Compare(x, [kind()], [y])
        case [x, y] if kind is not ast.operator:
            new = ast.BinOp(x, kind(), y)
    return new and ast.copy_location(new, node)


def folded(node: ast.expr) -> ast.expr:
    """The literal that Python's compiler folds an expression of literals to."""
    function: Any
    if isinstance(node, ast.UnaryOp):
        operands, function = [folded(node.operand)], _UNARY[type(node.op)]
    elif isinstance(node, ast.BinOp) and type(node.op).__name__ in SYMBOLS:
        operands, function = [folded(node.left), folded(node.right)], SYMBOLS[type(node.op).__name__]
    else:
        return node
    literals = (each.value for each in operands if isinstance(each, ast.Constant))
    values = [value for value in literals if isinstance(value, int | float)]
    if len(values) < len(operands):
        return node
    if isinstance(node.op, ast.LShift | ast.Pow) and abs(values[1]) > 128:
        return node
    try:
        value = function(*values)
    except (TypeError, ValueError, ArithmeticError):
        return node
    small = isinstance(value, int | float) and (isinstance(value, float) or value.bit_length() <= 128)
    return ast.copy_location(ast.Constant(value), node) if small else node
