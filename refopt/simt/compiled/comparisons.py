"""Typing of comparisons."""

from __future__ import annotations

import ast

import numpy as np

from ..base.scalars import FLOATS, INTEGERS, SIGNS, binary
from . import dynamic, operators
from .constants import Constants
from .expressions import Typed
from .kinds import BOOL, Kind, Known, Scalar, scalar


class Comparisons(Constants):
    """The visits of comparisons."""

    def _Compare(self, node: ast.Compare) -> Typed:
        parts = [self.visit(part) for part in (node.left, *node.comparators)]
        pairs = list(zip(parts, parts[1:], node.ops, strict=False))
        for (_, a), (_, b), op in pairs:
            if not self._compared(node, a, b, type(op).__name__):
                return node, BOOL
        if all(self._compares(a, b, type(op).__name__) for (_, a), (_, b), op in pairs):
            new = ast.Compare(parts[0][0], node.ops, [part for part, _ in parts[1:]])
            return ast.copy_location(new, node), BOOL
        tests: list[ast.expr] = []
        for n, ((x, a), (y, b), op) in enumerate(pairs):
            if n + 1 < len(pairs) and not isinstance(y, ast.Name | ast.Constant):
                name = self.temporary()
                parts[n + 1] = ast.copy_location(ast.Name(name, ast.Load()), y), b
                pairs[n + 1] = parts[n + 1], *pairs[n + 1][1:]
                y = ast.copy_location(ast.NamedExpr(ast.copy_location(ast.Name(name, ast.Store()), y), y), y)
            tests.append(self._comparison(node, (x, a), (y, b), op))
        new_test = tests[0] if len(tests) == 1 else ast.copy_location(ast.BoolOp(ast.And(), tests), node)
        return new_test, BOOL

    def _compares(self, a: Kind, b: Kind, symbol: str) -> bool:
        """Whether Python compares two operands as Numba does."""
        if symbol not in operators.COMPARISONS:
            return True
        one, other = scalar(a), scalar(b)
        if one is None or other is None:
            return a is not None and b is not None
        meet = binary(symbol, one.name, other.name)[0]  # type: ignore[index]
        if one.name in INTEGERS and other.name in INTEGERS:
            return meet != "float64"
        return self.meets(one, other, meet) or _exact(a, b) or _exact(b, a)

    def _compared(self, node: ast.Compare, a: Kind, b: Kind, symbol: str) -> bool:
        """Whether Numba has a comparison. One of narrower types that is made in fp64 is noted, except with a constant
        that is exact in them."""
        one, other = scalar(a), scalar(b)
        if one is None or other is None or symbol not in operators.COMPARISONS:
            return True
        rule = self.resolved(node, f"a {SIGNS[symbol]} b", one.name, other.name)
        if rule is not None and rule[0] == "float64" and not _exact(a, b) and not _exact(b, a):
            self.doubled(node, f"{one.name} and {other.name}")
        return rule is not None

    def _comparison(self, node: ast.Compare, left: Typed, right: Typed, op: ast.cmpop) -> ast.expr:
        (x, a), (y, b) = left, right
        symbol = type(op).__name__
        if not self._compares(a, b, symbol):
            one, other = scalar(a), scalar(b)
            if one is None or other is None:
                return self.apply(dynamic.binary(symbol), f"any_{symbol}", node, x, y)
            meet = binary(symbol, one.name, other.name)[0]  # type: ignore[index]
            if one.name != meet:
                x = self.converted(x, a, meet)
            if other.name != meet:
                y = self.converted(y, b, meet)
        return ast.copy_location(ast.Compare(x, [op], [y]), node)

    def meets(self, one: Scalar, other: Scalar, meet: str) -> bool:
        """Whether NumPy promotes two scalars to a type."""
        if one.name in FLOATS and other.name in FLOATS:
            return True
        if one.form != "np" or other.form != "np":
            return False
        return np.result_type(one.name, other.name).name == meet


def _exact(constant: Kind, other: Kind) -> bool:
    """Whether a constant is exact in the float type of the other operand."""
    known = scalar(other)
    if not isinstance(constant, Known) or known is None or known.name not in FLOATS:
        return False
    if type(constant.value) not in (int, float):
        return False
    with np.errstate(all="ignore"):
        return float(getattr(np, known.name)(np.float64(constant.value))) == constant.value
