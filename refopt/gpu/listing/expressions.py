"""The text of expressions for the values that a function closes over."""

import ast
import operator
import re
from collections.abc import Callable, Sequence
from functools import cache
from types import SimpleNamespace
from typing import Any, Protocol

from refopt.gpu.listing.source import File, Scope

UNKNOWN: Any = object()  # a value that is known only when the kernel runs
SIMPLE = bool, int, float, str, type(None)
PURE = min, max, abs, int  # calls that may be omitted if nothing reads their results
ATOM = re.compile(r"[\w.]+(\[[^\[\]]*\])*")
COMPARE: dict[type, Callable[[Any, Any], bool]] = {
    ast.Eq: lambda x, y: x == y, ast.NotEq: lambda x, y: x != y, ast.Is: lambda x, y: x is y,
    ast.IsNot: lambda x, y: x is not y, ast.Lt: lambda x, y: x < y, ast.LtE: lambda x, y: x <= y,
    ast.Gt: lambda x, y: x > y, ast.GtE: lambda x, y: x >= y,
}
FOLDED: dict[type, Callable[..., int]] = {ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul}


class Symbols(Protocol):
    """Gives the text for the value of a name."""

    def text(self, value: Any, name: str, scope: Scope) -> str: ...


class Expressions:
    """Writes the expressions of one function.

    Attributes:
        used: local names and parameters that the written text reads.
    """

    def __init__(
        self, file: File, node: ast.FunctionDef | ast.Lambda | ast.expr, scope: Scope, symbols: Symbols
    ) -> None:
        self.file, self.node, self.scope, self.symbols = file, node, scope, symbols
        self.locals = own_names(node)
        self.used: set[str] = set()

    def text(self, node: ast.expr) -> str:
        """The text of an expression."""
        if isinstance(node, ast.Name) and node.id in self.locals:
            if isinstance(node.ctx, ast.Load):
                self.used.add(node.id)
            return node.id
        static = self.static(node)
        if static is not UNKNOWN:
            return self.symbols.text(static, _alias(node), self.scope)
        value = UNKNOWN if isinstance(node, ast.Constant) else self.value(node)
        if type(value) in SIMPLE:
            return repr(value)
        if isinstance(node, ast.IfExp) and (test := self.value(node.test)) is not UNKNOWN:
            return self.text(node.body if test else node.orelse)
        if isinstance(node, ast.BoolOp):
            return self._either(node)
        if isinstance(node, ast.BinOp) and type(node.op) in FOLDED:
            return self._folded(node)
        return self._spliced(node)

    def _either(self, node: ast.BoolOp) -> str:
        """``and`` and ``or`` without operands that are known to change nothing."""
        stops = isinstance(node.op, ast.Or)
        kept = [x for x in node.values if (value := self.value(x)) is UNKNOWN or bool(value) == stops]
        if len(kept) == len(node.values):
            return self._spliced(node)
        texts = [self.text(x) for x in kept]
        if len(kept) > 1:
            texts = [f"({text})" if isinstance(x, ast.BoolOp | ast.IfExp) and not ATOM.fullmatch(text) else text
                     for x, text in zip(kept, texts, strict=True)]
        return (" or " if stops else " and ").join(texts)

    def _folded(self, node: ast.BinOp) -> str:
        """The result of an operation on two known integers, unless both are literals."""
        sides = [self._number(x) for x in (node.left, node.right)]
        if None in sides or all(isinstance(x, ast.Constant) for x in (node.left, node.right)):
            return self._spliced(node)
        return repr(FOLDED[type(node.op)](*sides))

    def _number(self, node: ast.expr) -> int | None:
        """An integer literal, or one of the closure; those of modules keep their more telling names."""
        known = isinstance(node, ast.Constant) or (isinstance(node, ast.Name) and node.id in self.scope.closed)
        value = self.value(node) if known else None
        return value if type(value) is int else None

    def static(self, node: ast.expr) -> Any:
        """The value that a name, or an attribute of a namespace, has outside the function."""
        if isinstance(node, ast.Name):
            return UNKNOWN if node.id in self.locals else self.scope[node.id]
        if isinstance(node, ast.Attribute):
            of = self.static(node.value)
            fields = isinstance(of, SimpleNamespace) or (isinstance(of, tuple) and hasattr(of, "_fields"))
            return getattr(of, node.attr) if fields else UNKNOWN
        return UNKNOWN

    def value(self, node: ast.expr) -> Any:
        """The value of an expression, if the values of the function's scope determine it."""
        if isinstance(node, ast.Constant):
            return node.value
        if isinstance(node, ast.Name | ast.Attribute):
            static = self.static(node)
            return static if type(static) in SIMPLE else UNKNOWN
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            inner = self.value(node.operand)
            return UNKNOWN if inner is UNKNOWN else not inner
        if isinstance(node, ast.BoolOp):
            return self._truth(node)
        if isinstance(node, ast.Compare) and len(node.ops) == 1 and type(node.ops[0]) in COMPARE:
            pair = self.value(node.left), self.value(node.comparators[0])
            return UNKNOWN if UNKNOWN in pair else COMPARE[type(node.ops[0])](*pair)
        return UNKNOWN

    def _truth(self, node: ast.BoolOp) -> Any:
        """The value of ``and`` and ``or``."""
        stops = isinstance(node.op, ast.Or)
        for operand in node.values:
            value = self.value(operand)
            if value is not UNKNOWN and bool(value) == stops:
                return stops
            if not self.pure(operand):  # it must be evaluated, whatever follows
                return UNKNOWN
        return UNKNOWN if any(self.value(x) is UNKNOWN for x in node.values) else not stops

    def pure(self, node: ast.expr) -> bool:
        """Whether an expression has no side effects."""
        if isinstance(node, ast.IfExp) and (test := self.value(node.test)) is not UNKNOWN:
            return self.pure(node.body if test else node.orelse)
        if isinstance(node, ast.Call) and self.static(node.func) not in PURE:
            return False
        return all(self.pure(x) for x in ast.iter_child_nodes(node) if isinstance(x, ast.expr))

    def _spliced(self, node: ast.AST) -> str:
        return self.with_edits(*self.file.span(node), self.edits(node))

    def _span(self, node: ast.expr, text: str) -> tuple[int, int]:
        """The span that a text replaces: the expression's, with brackets that it no longer needs."""
        first, stop = self.file.span(node)
        before, after = self.file.text[first - 2 : first], self.file.text[stop : stop + 1]
        bare = ATOM.fullmatch(text) and before[:1] in b" (["
        return (first - 1, stop + 1) if bare and before[1:] == b"(" and after == b")" else (first, stop)

    def with_edits(self, first: int, stop: int, edits: Sequence[tuple[int, int, str]]) -> str:
        parts, at = [], first
        for begin, end, text in sorted(edits):
            parts += [self.file.text[at:begin].decode(), text]
            at = end
        return "".join([*parts, self.file.text[at:stop].decode()])

    def edits(self, node: ast.AST) -> list[tuple[int, int, str]]:
        """The replacements of the expressions within a node that change."""
        edits = []
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.expr):
                text = self.text(child)
                if text != self.file.segment(child):
                    edits.append((*self._span(child, text), text))
            elif not isinstance(child, ast.arguments):
                edits += self.edits(child)
        return edits


@cache
def own_names(node: ast.AST) -> frozenset[str]:
    """The parameters of a function and what it assigns, comprehensions included."""
    names = set()
    for x in ast.walk(node):
        if isinstance(x, ast.arg):
            names.add(x.arg)
        elif isinstance(x, ast.Name) and not isinstance(x.ctx, ast.Load):
            names.add(x.id)
        elif isinstance(x, ast.alias):
            names.add((x.asname or x.name).partition(".")[0])
    return frozenset(names)


def _alias(node: ast.expr) -> str:
    return node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")
