"""Typing of operators."""

from __future__ import annotations

import ast

import numpy as np

from ..base import record
from ..base.conversions import CONVERSIONS
from ..base.scalars import FLOATS, INTEGERS, SIGNS, UNSIGNED
from . import operators
from .constants import Constants, folded
from .expressions import Typed, Unsupported
from .kinds import (
    BOOL,
    INT64,
    Kind,
    Known,
    Scalar,
    Tuple,
    items_of,
    joined,
    limits,
    made,
    named_of,
    number,
    scalar,
    whole,
)
from .uses import incomparable, sort

_RING = {"Add", "Sub", "Mult"}
_FLOAT = {"Add", "Sub", "Mult", "Div"}


class Operations(Constants):
    """The visits of operators."""

    def _BinOp(self, node: ast.BinOp) -> Typed:
        symbol = type(node.op).__name__
        if symbol not in operators.SYMBOLS:
            raise Unsupported(f"{symbol} in line {node.lineno}")
        if isinstance(plain := folded(node), ast.Constant):
            self.changed = True
            return self.raw(plain)
        return self.operation(node, symbol, self.raw(node.left), self.raw(node.right))

    def operation(self, node: ast.expr, symbol: str, left: Typed, right: Typed, in_place: bool = False) -> Typed:
        """An arithmetic operator applied to two operands."""
        (x, a), (y, b) = left, right
        if (items := _of_tuples(symbol, a, b)) is not None or (symbol == "Add" and sort(a) == sort(b) == "text"):
            return self._infix(node, symbol, x, y), Tuple(items) if items is not None else None
        text = f"a {SIGNS[symbol]}{'=' * in_place} b"
        rule = self.resolved(node, text if record.has(text) else f"a {SIGNS[symbol]} b", a, b)
        one, other, result = scalar(a), scalar(b), rule[2]
        assert one is not None and other is not None
        if symbol == "Pow" and isinstance(b, Known) and type(b.value) is int:
            return self._constant_power(node, self.settled(x, a), b.value, rule)
        if result == "float64":
            self.doubled(node, f"{one.name} and {other.name}")
        if result in FLOATS and symbol in _FLOAT:
            x, y = (self.converted(*self.settled(*operand), result) for operand in (left, right))
            return self._infix(node, symbol, x, y), number(result)
        if result == "int64" and (new := self._whole_operation(node, symbol, (x, one), (y, other))):
            return new
        (x, _), (y, _) = self.settled(x, a), self.settled(y, b)
        function = operators.typed(symbol, one.name, other.name)
        return self.apply(function, function.__name__, node, x, y), made(result)

    def _infix(self, node: ast.expr, symbol: str, x: ast.expr, y: ast.expr) -> ast.expr:
        return ast.copy_location(ast.BinOp(x, getattr(ast, symbol)(), y), node)

    def _constant_power(self, node: ast.expr, base: Typed, exponent: int, rule: tuple[str, ...]) -> Typed:
        x, a = base
        one = scalar(a)
        assert one is not None
        if one.name in INTEGERS:
            function = operators.typed("Pow", one.name, "int64")
            power = ast.copy_location(ast.Constant(exponent), node)
            return self.apply(function, function.__name__, node, x, power), made(rule[2])
        name = rule[0]
        x = self.converted(x, a, name)
        if exponent == 2:
            x, again = self._twice(x)
            return self._infix(node, "Mult", x, again), number(name)
        power = ast.copy_location(ast.Constant(exponent), node)
        return self.apply(operators.squarings, "squarings", node, x, power), number(name)

    def _whole_operation(
        self, node: ast.expr, symbol: str, left: tuple[ast.expr, Scalar], right: tuple[ast.expr, Scalar]
    ) -> Typed | None:
        """An operation on integers with an int64 result, as a Python operator; None if it needs a function."""
        (x, one), (y, other) = left, right
        if "uint64" in (one.name, other.name) or symbol == "Pow":
            return None
        if symbol not in _RING:
            (x, kind), (y, second) = self.settled(x, one), self.settled(y, other)
            one, other = scalar(kind) or one, scalar(second) or other
        bounds = _bounds(symbol, one, other)
        if bounds is None:
            return self._guarded(node, symbol, (x, one), (y, other))
        if max(abs(bounds[0]), abs(bounds[1])) > 1 << 256:
            (x, kind), (y, second) = self.settled(x, one), self.settled(y, other)
            one, other = scalar(kind) or one, scalar(second) or other
            bounds = _bounds(symbol, one, other) or bounds
        x, y = self._python(x, one), self._python(y, other)
        return self._infix(node, symbol, x, y), whole(*bounds)

    def _guarded(
        self, node: ast.expr, symbol: str, left: tuple[ast.expr, Scalar], right: tuple[ast.expr, Scalar]
    ) -> Typed | None:
        """A division or a shift: Python's operator if the second operand allows it, else a function.

        The second operand is tested first. So where order matters, the first is stored in a variable before.
        """
        (x, one), (y, other) = left, right
        low, high = (1, other.high) if symbol in ("FloorDiv", "Mod") else (0, 63)
        usual = other._replace(low=low, high=min(high, other.high))
        bounds = _bounds(symbol, one, usual) if usual.low <= usual.high else None
        if bounds is None:
            return None
        matters = any(isinstance(part, ast.Call | ast.NamedExpr) for operand in (x, y) for part in ast.walk(operand))
        held, x = self._held(x) if matters else (None, x)
        y, again = self._twice(self._python(y, other))
        within: ast.expr = ast.Compare(ast.Constant(low), [ast.LtE()], [y])
        if usual.high != other.high:
            within = ast.Compare(ast.Constant(low), [ast.LtE(), ast.LtE()], [y, ast.Constant(high)])
        if held is not None:
            within = ast.Subscript(ast.Tuple([held, within], ast.Load()), ast.Constant(1), ast.Load())
        plain = self._infix(node, symbol, self._python(x, one), again)
        plain, _ = self.settled(plain, whole(*bounds))
        function = operators.typed(symbol, one.name, other.name)
        rest = self.apply(function, function.__name__, node, x, again)
        choice = ast.fix_missing_locations(ast.copy_location(ast.IfExp(within, plain, rest), node))
        return choice, INT64

    def _python(self, node: ast.expr, kind: Scalar) -> ast.expr:
        """An integer as a Python int."""
        if kind.form == "py" and kind.name != "bool":
            return node
        return self.apply(int, "int", node, node)

    def _UnaryOp(self, node: ast.UnaryOp) -> Typed:
        symbol = type(node.op).__name__
        if symbol == "Not":
            value, _ = self.raw(node.operand, test=True)
            return ast.copy_location(ast.UnaryOp(ast.Not(), value), node), BOOL._replace(form="py")
        if isinstance(plain := folded(node), ast.Constant):
            self.changed = True
            return self.raw(plain)
        x, a = self.visit(node.operand)
        plain = ast.copy_location(ast.UnaryOp(node.op, x), node)
        one, result = scalar(a), self.resolved(node, f"{SIGNS[symbol]}a", a)[1]
        assert one is not None
        if result not in INTEGERS:
            return plain, number(result)
        own = one.name not in ("bool", "int16", "int64")  # whether it is negated in its own width
        least = own and one.low == limits(one.name)[0] and symbol == "USub"
        if result == "int64" and symbol != "Invert" and not least:
            plain.operand = self._python(x, one)
            bounds = (-one.high, -one.low) if symbol == "USub" else (one.low, one.high)
            return plain, whole(*bounds)
        function = operators.negation(symbol, one.name)
        return self.apply(function, f"{symbol}_{one.name}", node, x), number(result, "any")

    def _Compare(self, node: ast.Compare) -> Typed:
        parts = [self.visit(part) for part in (node.left, *node.comparators)]
        kinds = [kind for _, kind in parts]
        meets = [self._meet(node, *pair) for pair in zip(kinds, kinds[1:], node.ops, strict=False)]
        if not any(meets):
            new = ast.Compare(parts[0][0], node.ops, [part for part, _ in parts[1:]])
            return ast.copy_location(new, node), BOOL
        tests: list[ast.expr] = []
        (x, a), *others = parts
        for n, ((y, b), op, meet) in enumerate(zip(others, node.ops, meets, strict=True)):
            y, again = self._twice(y) if n + 1 < len(others) else (y, y)
            pair = [self.converted(z, kind, meet) if meet else z for z, kind in ((x, a), (y, b))]
            tests.append(ast.copy_location(ast.Compare(pair[0], [op], pair[1:]), node))
            x, a = again, b
        return tests[0] if len(tests) == 1 else ast.copy_location(ast.BoolOp(ast.And(), tests), node), BOOL

    def _meet(self, node: ast.Compare, a: Kind, b: Kind, op: ast.cmpop) -> str:
        """The type in which Numba compares two operands; empty if Python compares them so anyway.

        A comparison of narrower types that is made in fp64 is noted, except with a constant that is exact in them.
        """
        one, other, symbol = scalar(a), scalar(b), type(op).__name__
        if symbol not in operators.COMPARISONS or ((one is None or other is None) and not incomparable(symbol, a, b)):
            return ""
        meet, exact = self.resolved(node, f"a {SIGNS[symbol]} b", a, b)[0], _exact(a, b) or _exact(b, a)
        assert one is not None and other is not None
        if meet == "float64" and not exact:
            self.doubled(node, f"{one.name} and {other.name}")
        if one.name in INTEGERS and other.name in INTEGERS:
            return meet if meet == "float64" else ""
        promoted = one.form == other.form == "np" and np.result_type(one.name, other.name).name == meet
        return "" if exact or promoted or {one.name, other.name} <= FLOATS.keys() else meet

    def _BoolOp(self, node: ast.BoolOp, test: bool = False) -> Typed:
        if test:
            return ast.copy_location(ast.BoolOp(node.op, [self.raw(v, True)[0] for v in node.values]), node), BOOL
        new, kinds = self._alternatives(node, {True, False})
        kind = kinds[0]
        for other in kinds[1:]:
            kind = joined(kind, other)
        joint = scalar(kind)
        if joint is None or all((s := scalar(k)) is not None and s.name == joint.name for k in kinds):
            return new, kind
        form = "any" if joint.name in INTEGERS else "np"
        return self.apply(CONVERSIONS[joint.name], f"to_{joint.name}", node, new), number(joint.name, form)

    def _alternatives(self, node: ast.expr, truths: set[bool]) -> tuple[ast.expr, list[Kind]]:
        """An operand of ``and`` or ``or`` that is the result only if its truth is in ``truths``; its possible kinds."""
        if not isinstance(node, ast.BoolOp):
            value, kind = self.visit(node)
            return value, [kind] if truths else []
        stops = {isinstance(node.op, ast.Or)}
        reached = self.reached(node)
        parts = [self._alternatives(value, truths & stops) for value in reached[:-1]]
        parts.append(self._alternatives(reached[-1], truths))
        values, kinds = [value for value, _ in parts], [kind for _, each in parts for kind in each]
        return ast.copy_location(ast.BoolOp(node.op, values), node) if len(values) > 1 else values[0], kinds

    def _IfExp(self, node: ast.IfExp) -> Typed:
        if (way := self.decided(node.test)) is not None:
            return self.visit(node.body if way else node.orelse)
        test, _ = self.raw(node.test, test=True)
        (x, a), (y, b) = self.visit(node.body), self.visit(node.orelse)
        kind = joined(a, b)
        joint = scalar(kind)
        if joint is not None:
            x, y = self.converted(x, a, joint.name), self.converted(y, b, joint.name)
        return ast.copy_location(ast.IfExp(test, x, y), node), kind


def _exact(constant: Kind, other: Kind) -> bool:
    """Whether a constant is exact in the float type of the other operand."""
    known = scalar(other)
    if not isinstance(constant, Known) or known is None or known.name not in FLOATS:
        return False
    if type(constant.value) not in (int, float):
        return False
    with np.errstate(all="ignore"):
        return float(getattr(np, known.name)(np.float64(constant.value))) == constant.value


def _of_tuples(symbol: str, a: Kind, b: Kind) -> tuple | None:
    """The items of a sum of tuples, or of a tuple that is repeated; None for other operands."""
    one, other = items_of(a), items_of(b)
    if one is None or named_of(a) or named_of(b):
        return None
    if symbol == "Mult" and isinstance(b, Known) and type(b.value) is int:
        return one * b.value
    return (*one, *other) if symbol == "Add" and other is not None else None


def _bounds(symbol: str, a: Scalar, b: Scalar) -> tuple[int, int] | None:
    """The limits of the result of an operation on integers; None if Python's operator could fail or differ."""
    if symbol == "Add":
        return a.low + b.low, a.high + b.high
    if symbol == "Sub":
        return a.low - b.high, a.high - b.low
    is_shift = symbol in ("LShift", "RShift") and 0 <= b.low <= b.high < 64 and a.name not in UNSIGNED
    if symbol == "Mult" or (symbol == "FloorDiv" and b.low > 0) or is_shift:
        corners = [operators.SYMBOLS[symbol](x, y) for x in (a.low, a.high) for y in (b.low, b.high)]
        return min(corners), max(corners)
    if symbol == "Mod" and b.low > 0:
        return 0, b.high - 1 if a.low < 0 else min(a.high, b.high - 1)
    if symbol == "BitAnd" and (a.low >= 0 or b.low >= 0):
        return 0, min(x.high for x in (a, b) if x.low >= 0)
    if symbol in ("BitAnd", "BitOr", "BitXor"):
        if a.low >= 0 and b.low >= 0:
            return 0, (1 << max(a.high, b.high).bit_length()) - 1
        bits = max(x.bit_length() for x in (a.low, a.high, b.low, b.high))
        return -(1 << bits), (1 << bits) - 1
    return None
