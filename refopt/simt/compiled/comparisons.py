"""Typing of comparisons."""

from __future__ import annotations

import ast

import numpy as np

from ..base.scalars import FLOATS, INTEGERS, SIGNS
from . import operators
from .constants import Constants
from .expressions import Typed
from .kinds import BOOL, Kind, Known, scalar
from .refused.uses import incomparable


class Comparisons(Constants):
    """The visits of comparisons."""

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


def _exact(constant: Kind, other: Kind) -> bool:
    """Whether a constant is exact in the float type of the other operand."""
    known = scalar(other)
    if not isinstance(constant, Known) or known is None or known.name not in FLOATS:
        return False
    if type(constant.value) not in (int, float):
        return False
    with np.errstate(all="ignore"):
        return float(getattr(np, known.name)(np.float64(constant.value))) == constant.value
