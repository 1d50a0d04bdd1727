"""Typing of calls of types, and of functions of Python, `math` and NumPy."""

from __future__ import annotations

import ast
import functools
import types
from typing import Any

import numpy as np

from ..base import record
from ..base.conversions import CONVERSIONS
from ..base.scalars import COMPLEX, INTEGERS, UNSIGNED
from . import functions, operators
from .expressions import Typed
from .kinds import (
    BOOL,
    INT64,
    Array,
    Kind,
    Known,
    Method,
    Range,
    Scalar,
    Tuple,
    any_number,
    column,
    element,
    item_of,
    items_of,
    joined,
    limits,
    made,
    number,
    operand,
    scalar,
    several,
    variable,
    whole,
)
from .operations import Operations
from .uses import sort

SIZE = 2**48  # more elements or bytes than any memory has
_PLAIN_TYPES: dict[Any, str] = {int: "int64", float: "float64", bool: "bool", complex: "complex128"}
_ITERATORS = {zip, enumerate, np.ndenumerate, np.ndindex}


class Library(Operations):
    """The visits of calls other than those of device functions and of the executor."""

    def _type(self, node: ast.Call, function: type, args: list[Typed], starred: bool) -> Typed:
        """A conversion to a type."""
        if function is tuple and len(args) == 1 and not starred:
            return node, args[0][1] if isinstance(args[0][1], Tuple) else None
        if function is range and not starred:
            return self._range(node, args)
        if function in _ITERATORS:
            return node, _iterator(function, [kind for _, kind in args], starred)
        name = _PLAIN_TYPES.get(function)
        if name is None and issubclass(function, np.generic):
            name = np.dtype(function).name
        if function is complex and len(args) == 2 and not starred:
            return self._complex(node, args)
        if name not in CONVERSIONS or len(args) != 1 or starred:
            return node, None
        x, kind = args[0]
        if function is float and isinstance(kind, Known) and isinstance(kind.value, str):
            return self.apply(np.float64, name, node, node), number(name)
        plain = function in _PLAIN_TYPES
        spelled = function.__name__ if plain else f"np.{np.dtype(name).type.__name__}"
        name = self.resolved(node, f"{spelled}(a)", kind)[1]
        known = scalar(kind)
        assert known is not None
        if known.name == name and name not in INTEGERS:
            self.changed = True
            return (node if isinstance(kind, Known) and not plain else x), number(name)
        if isinstance(kind, Known) and not plain and name == "float64":
            return node, number(name)
        result = known if name == known.name else made(name)
        return self.converted(x, kind, name), result

    def _complex(self, node: ast.Call, args: list[Typed]) -> Typed:
        """A complex number of two parts."""
        rule = self.resolved(node, "complex(a, b)", *(kind for _, kind in args))
        parts = [self.converted(*arg, COMPLEX[rule[2]]) for arg in args]
        return self.apply(operators.complex_of, "complex_of", node, *parts), number(rule[2])

    def _range(self, node: ast.Call, args: list[Typed]) -> Typed:
        rule = self.resolved(node, f"range({', '.join('abc'[: len(args)])})", *(kind for _, kind in args))
        kinds = [known for _, kind in args if (known := scalar(kind))]
        item = counted(kinds, rule[-1])
        low, high = limits(item.name)
        for n, ((x, kind), known) in enumerate(zip(args, kinds, strict=True)):
            if known.name not in INTEGERS or known.low < low or known.high > high:
                node.args[n] = self.converted(x, kind, item.name)
        return node, Range(item)

    def _builtin(self, node: ast.Call, function: Any, args: list[Typed]) -> Typed | None:
        """A call of a function of Python, `math` or NumPy."""
        if not is_function(function):
            return None
        if function is print:
            node.func = self.constant(functions.printed, "print", node)
            return node, None
        if function in (min, max) and (len(args) > 1 or items_of(args[0][1])):
            given = [kind for _, kind in args] if len(args) > 1 else [*(items_of(args[0][1]) or ())]
            args = args if len(args) > 1 else [(ast.Starred(args[0][0], ast.Load()), None)]
            return self._extreme(node, function is max, args, given)
        if (symbol := operators.IN_PLACE.get(function)) and len(args) == 2:
            return self.operation(node, symbol, args[0], args[1], True)
        if function in (iter, next):
            item = item_of(args[0][1])
            return node, Range(item) if function is iter else item
        if function in (isinstance, hasattr, np.iscomplexobj, np.isrealobj):
            return node, BOOL
        if args and isinstance(array := args[0][1], Array) and record.has(text := f"A.{function.__name__}()"):
            return node, any_number(self.resolved(node, text, array)[1]) if len(args) == 1 else None
        if function in (min, max) and args and isinstance(args[0][1], Array):
            return node, element(args[0][1])
        if function is len and (isinstance(args[0][1], Array) or sort(args[0][1]) in ("text", "texts")):
            return node, whole(0, SIZE)
        if function is len and (items := items_of(args[0][1])) is not None:
            return node, whole(len(items), len(items))
        if function is sum and len(args) == 1 and (items := items_of(args[0][1])):
            return self._sum(node, args[0][0], items)
        return self._recorded(node, function, args)

    def _recorded(self, node: ast.Call, function: Any, args: list[Typed]) -> Typed | None:
        """A call of a function for which there is a record of Numba's types."""
        text, places = record.calls().get((id(function), len(args)), ("", ()))
        if not text:
            return None
        kinds = [args[n][1] for n in places]
        if text.startswith("cuda.ld") and (items := items_of(kinds[1])):  # the index
            kinds[1] = functools.reduce(joined, items)
        if function in (np.shape, np.size) and isinstance(kinds[0], Array):
            attribute = ast.copy_location(ast.Attribute(args[0][0], function.__name__, ast.Load()), node)
            return attribute, array_attribute(kinds[0], function.__name__)
        rule = self.resolved(node, text, *kinds)
        if text.startswith("cuda."):
            return self._of_cuda(node, args, dict(zip(places, rule, strict=False)), rule[-1])
        return self._of_scalars(node, function, args, [operand(kind) or "" for kind in kinds], rule)

    def _of_cuda(self, node: ast.Call, args: list[Typed], to: dict[int, str], result: str) -> Typed:
        """A call of a function of the executor, with the types that its operands are converted to."""
        for n, name in to.items():
            if scalar(args[n][1]) is not None:
                node.args[n] = self.converted(*args[n], name)
        return node, several(result)

    def _of_scalars(
        self, node: ast.Call, function: Any, args: list[Typed], names: list[str], rule: record.Signature
    ) -> Typed | None:
        """A call of a function of Python, `math` or NumPy with scalars of known types."""
        nodes = [arg for arg, _ in args]
        if function is abs:
            return self._absolute(node, args[0], names[0])
        if function is pow:
            return self.operation(node, "Pow", args[0], args[1])
        if function is divmod:
            return self._divmod(node, args, rule)
        if function in functions.TESTS:
            node.func = self.constant(functions.TESTS[function], function.__name__, node)
            return node, BOOL
        if rule[-1] == "float64":
            self.doubled(node, f"{function.__name__} of {' and '.join(names)}")
        if isinstance(function, np.ufunc):
            return self._ufunc(node, args, rule)
        if function in functions.ANGLES:
            factor = self.constant(getattr(np, rule[-1])(functions.ANGLES[function]), f"per_{rule[-1]}", node)
            return self._infix(node, "Mult", self.converted(*args[0], rule[-1]), factor), number(rule[-1])
        label = "_".join([function.__name__, *names])
        return self.apply(functions.typed(function, *rule), label, node, *nodes), several(rule[-1])

    def _divmod(self, node: ast.Call, args: list[Typed], rule: record.Signature) -> Typed:
        """The floor of a quotient, and the remainder."""
        pairs = [self._twice(self.converted(*arg, name)) for arg, name in zip(args, rule, strict=False)]
        kinds = any_number(rule[0]), any_number(rule[1])
        parts = [
            self.settled(*self.operation(node, symbol, (x, kinds[0]), (y, kinds[1])))
            for symbol, (x, y) in zip(("FloorDiv", "Mod"), zip(*pairs, strict=True), strict=True)
        ]
        both = ast.Tuple([part for part, _ in parts], ast.Load())
        return ast.copy_location(both, node), Tuple(tuple(kind for _, kind in parts))

    def _sum(self, node: ast.Call, arg: ast.expr, items: tuple) -> Typed:
        """`sum` of a tuple, starting from the int64 0."""
        first, again = self._twice(arg)
        total: Typed = ast.copy_location(ast.Constant(0), node), Known(0)
        for n, item in enumerate(items):
            index = ast.copy_location(ast.Constant(n), node)
            part = ast.copy_location(ast.Subscript(again if n else first, index, ast.Load()), node)
            total = self.operation(node, "Add", total, (part, variable(item)))
        return total

    def _absolute(self, node: ast.Call, arg: Typed, name: str) -> Typed:
        known = scalar(arg[1])
        assert known is not None
        if name == "int64" and known.form == "py":
            return node, whole(0, max(abs(known.low), abs(known.high)))
        if name in COMPLEX:
            return self.apply(operators.absolute, "absolute", node, arg[0]), number(COMPLEX[name])
        if name not in INTEGERS or (name in UNSIGNED and known.form == "np"):
            return node, number(name)
        name = "int8" if name == "bool" else name
        return self.apply(operators.absolute, "absolute", node, arg[0]), number(name, "any")

    def _ufunc(self, node: ast.Call, args: list[Typed], rule: record.Signature) -> Typed:
        *inputs, result = rule
        for n, (x, kind) in enumerate(args):
            node.args[n] = self.converted(x, kind, inputs[n])
            if inputs[n] == "int64" and not (isinstance(kind, Scalar) and kind.name == "int64" and kind.form == "np"):
                node.args[n] = self.apply(np.int64, "int64", node, node.args[n])
        return node, any_number(result)

    def _extreme(self, node: ast.Call, greatest: bool, args: list[Typed], given: list[Kind]) -> Typed:
        for other in given[1:]:
            self.resolved(node, "max(a, b)", given[0], other, called="max" if greatest else "min")
        nodes: list[ast.expr] = [arg for arg, _ in args]
        known: list[Any] = [scalar(kind) for kind in given]
        joint: Any = functools.reduce(joined, known)
        names = [kind.name for kind in known]
        if set(names) == {"int64"} or (joint.name == "int64" and all(kind.form == "py" for kind in known)):
            choose = max if greatest else min
            node.args = nodes
            bounds = choose(kind.low for kind in known), choose(kind.high for kind in known)
            return node, Scalar("int64", joint.form if set(names) == {"int64"} else "py", *bounds)
        pick = operators.extreme(greatest, *names)
        label = "_".join(["max" if greatest else "min", *names])
        return self.apply(pick, label, node, *nodes), made(joint.name)


def _iterator(function: Any, kinds: list[Kind], starred: bool) -> Kind:
    """The kind of what gives tuples in a loop; that of `zip` of tuples is a tuple."""
    rows = [items_of(kind) for kind in kinds]
    if function is np.ndindex:
        return Range(Tuple((INT64,) * len((rows[0] if rows else None) or kinds)))
    if starred:
        rows = [items_of(item) for item in rows[0] or ()]
    if function is zip and None not in rows:
        return Tuple(tuple(Tuple(column) for column in zip(*rows, strict=False)))
    items = tuple(map(item_of, kinds))
    if function is np.ndenumerate and isinstance(array := kinds[0], Array):
        return Range(Tuple((Tuple((INT64,) * array.axes), element(array))))
    return Range(Tuple((INT64, *items) if function is enumerate else items))


def is_function(value: Any) -> bool:
    plain = types.FunctionType | types.BuiltinFunctionType | types.MethodType
    return isinstance(value, plain | np.ufunc | type(np.sum))


def counted(kinds: list[Scalar], name: str) -> Scalar:
    """The integers of a `range` of a type."""
    start, stop = (whole(0, 0), kinds[0]) if len(kinds) == 1 else kinds[:2]
    step = kinds[2] if len(kinds) > 2 else whole(1, 1)
    low, high = limits(name)
    if any(kind.low < low or kind.high > high or kind.name not in INTEGERS for kind in kinds):
        return number(name, "py")
    if step.low > 0:
        return whole(start.low, max(start.low, stop.high - 1), name)
    return whole(min(start.low, stop.low), max(start.high, stop.high), name)


def array_attribute(kind: Array, name: str) -> Kind:
    size = whole(0, SIZE)
    if name in ("size", "nbytes", "itemsize"):
        return size
    if name == "shape":
        return Tuple((size,) * kind.axes)
    if name == "strides":
        return Tuple((whole(-SIZE, SIZE),) * kind.axes)
    if name == "ndim":
        return Known(kind.axes)
    if name == "T":
        return kind
    if name == "dtype" and kind.dtype:
        return Known(np.dtype(kind.dtype))
    if name in ("real", "imag"):
        return kind._replace(dtype=COMPLEX.get(kind.dtype or "", kind.dtype))
    if name == "flat":
        return kind._replace(axes=1)
    if (part := column(kind, name)) is not None:
        return part
    return Method(kind, name)
