"""Typing of expressions: rewrites each to compute in the types that Numba infers.

A visit returns the new expression and its kind. An integer that may exceed 64 bits, as a sum of Python ints can, is
wrapped where it is used for anything but a further sum, difference or product: `Expressions.settled`.
"""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Callable
from typing import Any

import numpy as np

from ..base import record
from ..base.conversions import CONVERSIONS, computed, convert_tuple
from ..base.scalars import FLOATS, INTEGERS, UNSIGNED
from .kinds import (
    INT64,
    Array,
    Kind,
    Known,
    Record,
    Scalar,
    Tuple,
    column,
    element,
    field,
    frozen_value,
    items_of,
    joined,
    limits,
    operand,
    scalar,
    variable,
)
from .uses import unfit_operand

_LOW, _HIGH = limits("int64")
_EXACT = 2**53  # float64 represents all integers up to here
_EXTENDED = ("cuda.popc", "cuda.clz", "cuda.ffs", "cuda.brev")  # functions that Numba types like operators
_OPERAND = re.compile(r"\b[abA]\b")  # of an expression of the record

Typed = tuple[ast.expr, Kind]


class Unsupported(Exception):
    """Raised for code that cannot be typed: the function runs unchanged."""


class Later(Exception):
    """Raised for an error that counts only if it still occurs in the last pass over a function."""


class Untyped(Unsupported, Later):
    """Raised for a computation with a value of unknown type, such as the result of a function without source."""

    def __init__(self, node: ast.AST) -> None:
        super().__init__(f"an operand in line {node.lineno} has no type")  # type: ignore[attr-defined]


class Expressions:
    """The visits of expressions. `scope` has the kinds of local variables, `constants` the objects in the new code."""

    function: Any

    def __init__(self) -> None:
        self.scope: dict[str, Kind] = {}
        self.constants: dict[str, Any] = {}
        self.doubles: set[tuple[str, int, str]] = set()  # operations in fp64: file, line, types of operands
        self.temporaries = 0
        self.changed = False

    # Defined by subclasses

    named: Callable[[str], Kind]  # of a name that is not a local variable
    called: Callable[[ast.Call, bool], Typed]
    attribute: Callable[[ast.Attribute, Kind, str], Typed]  # of a value of a kind

    def refuse(self, node: ast.AST, reason: str, instead: str, later: bool = False) -> None:
        """Report that Numba refuses a place in the source; with ``later``, if it does so in the last pass."""
        raise NotImplementedError

    # Helpers

    def resolved(self, node: ast.AST, text: str, *kinds: Kind, called: str = "") -> record.Signature:
        """The signature that Numba has for an expression's operands, of which A is an array.

        Raises:
            CompileError: it has none.
            Untyped: the type of an operand is not known.
            Unsupported: it has none, but the function is not to be refused.
        """
        names = [operand(kind, "A" in text and not n) for n, kind in enumerate(kinds)]
        if None not in names and (found := record.signature(text, *names)):
            return found
        called = called or (text.partition("(")[0] if "(" in text else _OPERAND.sub("", text).strip())
        if None in names:
            strange = kinds[names.index(None)]
            if strange is None or (isinstance(strange, Array) and strange is kinds[0] and "A" in text):
                raise Untyped(node)
            self.refuse(node, *unfit_operand(strange, called))
        else:
            later = "(" not in text or text.startswith(_EXTENDED)
            instead = record.accepted(text, *names)  # type: ignore[arg-type]
            shown = " and ".join(map(str, names[text.startswith("A[") :]))
            self.refuse(node, called.format(shown) if "{" in called else f"{called} of {shown}", instead, later)
        raise Unsupported(f"{called} in line {getattr(node, 'lineno', 0)}")

    def doubled(self, node: ast.expr, operands: str) -> None:
        """Note that an operation computes in fp64."""
        self.doubles.add((self.function.__code__.co_filename, node.lineno, operands))

    def constant(self, value: Any, label: str, at: ast.AST) -> ast.expr:
        """An expression for an object."""
        name = f"_simt_{label}"
        while self.constants.setdefault(name, value) is not value:
            name += "_"
        self.changed = True
        return ast.copy_location(ast.Name(name, ast.Load()), at)

    def temporary(self) -> str:
        self.temporaries += 1
        self.changed = True
        return f"_simt_t{self.temporaries}"

    def apply(self, function: Any, label: str, at: ast.AST, *args: ast.expr) -> ast.expr:
        """A call of a function of the executor."""
        call = ast.Call(self.constant(function, label, at), list(args), [])
        return ast.copy_location(call, at)

    def _twice(self, node: ast.expr) -> tuple[ast.expr, ast.expr]:
        """An expression, and one that returns the same value again later."""
        if isinstance(node, ast.Name | ast.Constant):
            return node, node
        return self._held(node)

    def _held(self, node: ast.expr) -> tuple[ast.expr, ast.expr]:
        """An expression that stores its value in a variable, and the variable."""
        name = self.temporary()
        stored = ast.copy_location(ast.Name(name, ast.Store()), node)
        return ast.copy_location(ast.NamedExpr(stored, node), node), ast.copy_location(ast.Name(name, ast.Load()), node)

    def settled(self, node: ast.expr, kind: Kind) -> Typed:
        """An integer wrapped to 64 bits."""
        if not isinstance(kind, Scalar) or (kind.low >= _LOW and kind.high <= _HIGH) or kind.name in UNSIGNED:
            return node, kind
        name = self.temporary()
        assigned = ast.NamedExpr(ast.Name(name, ast.Store()), node)
        inside = ast.Compare(ast.Constant(_LOW), [ast.LtE(), ast.LtE()], [assigned, ast.Constant(_HIGH)])
        wrap = ast.Call(self.constant(computed, "computed", node), [ast.Name(name, ast.Load())], [])
        new = ast.IfExp(inside, ast.Name(name, ast.Load()), wrap)
        return ast.fix_missing_locations(ast.copy_location(new, node)), INT64._replace(form=kind.form)

    def visit(self, node: ast.expr) -> Typed:
        """An expression, wrapped to 64 bits."""
        return self.settled(*self.raw(node))

    def raw(self, node: ast.expr, test: bool = False) -> Typed:
        """An expression before wrapping; with ``test``, only its truth value matters, which is that of 64 bits."""
        visitor = getattr(self, f"_{type(node).__name__}", None)
        if visitor is None:
            raise Unsupported(f"{type(node).__name__} in line {node.lineno}")
        if not test:
            return visitor(node)
        return self.settled(*(visitor(node, True) if type(node) in (ast.BoolOp, ast.Call) else visitor(node)))

    def converted(self, node: ast.expr, kind: Kind, name: str) -> ast.expr:
        """A scalar converted to a type, unless it already has that type."""
        known = scalar(kind)
        assert known is not None
        if isinstance(kind, Known) and (known.name != name or name in ("float16", "float32")):
            with np.errstate(all="ignore"):
                value = CONVERSIONS[name](kind.value)
            return self.constant(value, f"{name}_{_spelled(value)}", node)
        if known.name == name:
            if name in ("int64", "bool") or name not in INTEGERS or known.form == "np":
                return node
        elif name == "int64" and known.name != "uint64" and known.name in INTEGERS:
            return node if known.form == "py" and known.name != "bool" else self.apply(int, "int", node, node)
        elif name in FLOATS and (known.name in FLOATS or -_EXACT <= known.low <= known.high <= _EXACT):
            return self.apply(getattr(np, name), name, node, node)
        elif name == "float64":
            return self.apply(np.float64, name, node, node)
        return self.apply(CONVERSIONS[name], f"to_{name}", node, node)

    def brought(self, node: ast.expr, kind: Kind, target: Kind) -> ast.expr:
        """A value of a kind converted to the kind that it was joined to."""
        joint = scalar(target)
        if joint is not None:
            return node if scalar(kind) is None else self.converted(node, kind, joint.name)
        types = _types(target)
        if types is None or _types(kind) == types:
            return node
        return self.apply(convert_tuple(types), "to_tuple", node, node)

    # Visits

    def _Constant(self, node: ast.Constant) -> Typed:
        kind = Known(node.value)
        return self.fixed(node, kind), kind

    def fixed(self, node: ast.expr, kind: Known) -> ast.expr:
        """A constant in the class that identifies its type: a float is a float64, an int above int64 a uint64."""
        value = frozen_value(kind.value)
        return node if value is kind.value else self.constant(value, f"{type(value).__name__}_{_spelled(value)}", node)

    def _Name(self, node: ast.Name) -> Typed:
        if node.id in self.scope:
            return node, self.scope[node.id]
        return node, self.named(node.id)

    def _Attribute(self, node: ast.Attribute) -> Typed:
        base, kind = self.visit(node.value)
        new = ast.copy_location(ast.Attribute(base, node.attr, ast.Load()), node)
        return self.attribute(new, kind, node.attr)

    def _Subscript(self, node: ast.Subscript) -> Typed:
        base, kind = self.visit(node.value)
        index, at = self.visit(node.slice)
        new = ast.copy_location(ast.Subscript(base, index, ast.Load()), node)
        return new, self.item(kind, at, node.slice)

    def item(self, kind: Kind, at: Kind, index: ast.expr) -> Kind:
        """The kind of an element, or of a view."""
        if (items := items_of(kind)) is not None:
            if isinstance(index, ast.Slice):
                return _slice(items, index)
            if isinstance(at, Known) and type(at.value) is int and -len(items) <= at.value < len(items):
                return variable(items[at.value])
            return variable(functools.reduce(joined, items)) if items else None
        if isinstance(kind, Record):
            return field(kind, at.value) if isinstance(at, Known) else None
        if not isinstance(kind, Array):
            return None
        if isinstance(at, Known) and isinstance(at.value, str):
            return column(kind, at.value)
        parts = at.items if isinstance(at, Tuple) else (at,)
        written = index.elts if isinstance(index, ast.Tuple) else [index]
        slices = [isinstance(w, ast.Slice) or (isinstance(w, ast.Constant) and w.value is ...) for w in written]
        axes = kind.axes - sum(scalar(part) is not None for part in parts)
        if axes < 0 or axes + len(parts) != kind.axes + sum(slices) or any(isinstance(w, ast.Starred) for w in written):
            return None
        return kind._replace(axes=axes) if any(slices) else element(kind, axes)

    def _Slice(self, node: ast.Slice) -> Typed:
        parts = [self.visit(part)[0] if part else None for part in (node.lower, node.upper, node.step)]
        return ast.copy_location(ast.Slice(*parts), node), None

    def _Tuple(self, node: ast.Tuple) -> Typed:
        parts = [self.visit(part) for part in node.elts]
        new = ast.copy_location(ast.Tuple([part for part, _ in parts], ast.Load()), node)
        items: list[Kind] = []
        for part, (_, kind) in zip(node.elts, parts, strict=True):
            if not isinstance(part, ast.Starred):
                items.append(kind)
            elif (inner := items_of(kind)) is not None:
                items += inner
            else:
                return new, None
        return new, Tuple(tuple(items))

    def _List(self, node: ast.List) -> Typed:
        return ast.copy_location(ast.List([self.visit(part)[0] for part in node.elts], ast.Load()), node), None

    def _Starred(self, node: ast.Starred) -> Typed:
        value, kind = self.visit(node.value)
        return ast.copy_location(ast.Starred(value, ast.Load()), node), kind

    def _NamedExpr(self, node: ast.NamedExpr) -> Typed:
        value, kind = self.visit(node.value)
        self.scope[node.target.id] = kind
        return ast.copy_location(ast.NamedExpr(node.target, value), node), kind

    def _Call(self, node: ast.Call, test: bool = False) -> Typed:
        return self.called(node, test)

    def _as_it_is(self, node: Any) -> Typed:
        return node, None

    _JoinedStr = _GeneratorExp = _ListComp = _SetComp = _DictComp = _as_it_is


def _slice(items: tuple, index: ast.Slice) -> Kind:
    parts: list[int | None] = []
    for part in (index.lower, index.upper, index.step):
        if part is None:
            parts.append(None)
            continue
        try:
            parts.append(ast.literal_eval(part))
        except ValueError:
            return None
    return Tuple(items[slice(*parts)])


def _types(kind: Kind) -> Any:
    """The scalar types in a tuple; None for anything else."""
    items = items_of(kind)
    if items is None:
        return None
    return tuple(each.name if (each := scalar(item)) else _types(item) for item in items)


def _spelled(value: Any) -> str:
    return "".join(c if c.isalnum() else "_" for c in str(value))
