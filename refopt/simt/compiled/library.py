"""Typing of calls of types, and of functions of Python, `math` and NumPy."""

from __future__ import annotations

import ast
import math
import types
from typing import Any

import numpy as np

from ..base import record
from ..base.conversions import CONVERSIONS
from ..base.scalars import COMPLEX, INTEGERS, UNSIGNED
from ..machine import barriers, indices, warps
from . import dynamic, functions, operators
from .expressions import Typed
from .kinds import (
    BOOL,
    INT64,
    Array,
    Kind,
    Known,
    Range,
    Scalar,
    Tuple,
    any_number,
    items_of,
    joined,
    limits,
    number,
    scalar,
    variable,
    whole,
)
from .operations import Operations

SIZE = 2**48  # more elements or bytes than any memory has
_PLAIN_TYPES: dict[Any, str] = {int: "int64", float: "float64", bool: "bool", complex: "complex128"}
# The limits of results of the executor's functions.
_LIMITS: dict[Any, tuple[int, int]] = {
    barriers.syncthreads_count: (0, 1024), barriers.syncthreads_and: (0, 1), barriers.syncthreads_or: (0, 1),
    indices.popc: (0, 64), indices.clz: (0, 64), indices.ffs: (0, 64),
}
_SHUFFLES = {warps.shfl_sync, warps.shfl_up_sync, warps.shfl_down_sync, warps.shfl_xor_sync}


class Library(Operations):
    """The visits of calls other than those of device functions and of the executor."""

    def _type(self, node: ast.Call, function: type, args: list[Typed], starred: bool) -> Typed:
        """A conversion to a type."""
        if function is tuple and len(args) == 1 and not starred:
            return node, args[0][1] if isinstance(args[0][1], Tuple) else None
        if function is range and not starred:
            return self._range(node, args)
        if function is zip:
            return node, _zipped([kind for _, kind in args], node)
        name = _PLAIN_TYPES.get(function)
        if name is None and issubclass(function, np.generic):
            name = np.dtype(function).name
        if function is complex and len(args) == 2 and not starred:
            return self._complex(node, args)
        if name not in CONVERSIONS or len(args) != 1 or starred:
            return node, None
        x, kind = args[0]
        known = scalar(kind)
        if known is None:
            convert = {int: dynamic.whole, float: dynamic.real}.get(function, dynamic.conversion(name))
            kind = None if function in (int, float) else number(name)
            return self.apply(convert, f"as_{function.__name__}", node, x), kind
        plain = function in _PLAIN_TYPES
        spelled = function.__name__ if plain else f"np.{np.dtype(name).type.__name__}"
        rule = self.resolved(node, f"{spelled}(a)", known.name)
        if rule is None:
            return node, None
        name = rule[1]
        if known.name == name and name not in INTEGERS:
            return (node if isinstance(kind, Known) and not plain else x), number(name)
        if isinstance(kind, Known) and not plain and name == "float64":
            return node, number(name)
        result = known if name == known.name else number(name, "py" if name in ("int64", "bool") else "np")
        return self.converted(x, kind, name), result

    def _complex(self, node: ast.Call, args: list[Typed]) -> Typed:
        """A complex number of two parts."""
        names = [known.name for _, kind in args if (known := scalar(kind))]
        if len(names) < 2 or (rule := self.resolved(node, "complex(a, b)", *names, called="complex")) is None:
            return node, None
        parts = [self.converted(*arg, COMPLEX[rule[2]]) for arg in args]
        return self.apply(operators.complex_of, "complex_of", node, *parts), number(rule[2])

    def _range(self, node: ast.Call, args: list[Typed]) -> Typed:
        kinds = [known for _, kind in args if (known := scalar(kind))]
        if len(kinds) != len(args) or not kinds:
            return node, Range(INT64)
        rule = self.resolved(node, f"range({', '.join('abc'[: len(kinds)])})", *(kind.name for kind in kinds))
        if rule is None:
            return node, Range(INT64)
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
        if function in (min, max) and len(args) == 1 and len(several := items_of(args[0][1]) or ()) > 1:
            args = [(ast.Starred(args[0][0], ast.Load()), Tuple(several))]
            return self._extreme(node, function is max, args, list(several))
        if function in (min, max) and len(args) > 1:
            return self._extreme(node, function is max, args, [kind for _, kind in args])
        if (symbol := operators.SYMBOL_OF.get(function)) and len(args) == 2:
            return self.operation(node, symbol, args[0], args[1])
        if function in (isinstance, hasattr):
            return node, BOOL
        if args and isinstance(array := args[0][1], Array) and record.has(text := f"A.{function.__name__}()"):
            rule = self.resolved(node, text, array.dtype or "") if len(args) == 1 else None
            return node, any_number(rule[1]) if rule else None
        if function is len and isinstance(args[0][1], Array):
            return node, whole(0, SIZE)
        if function is len and (items := items_of(args[0][1])) is not None:
            return node, whole(len(items), len(items))
        if function is sum and len(args) == 1 and (items := items_of(args[0][1])):
            return self._sum(node, args[0][0], items)
        return self._recorded(node, function, args)

    def _recorded(self, node: ast.Call, function: Any, args: list[Typed]) -> Typed | None:
        """A call of a function for which there is a record of Numba's types."""
        text, places = record.calls().get((id(function), len(args)), ("", ()))
        names = [_operand(args[n][1], "A" in text and n == places[0]) for n in places]
        if not text or None in names:
            return None
        rule = self.resolved(node, text, *names, called=ast.unparse(node.func))  # type: ignore[arg-type]
        if rule is None:
            return node, None
        if text.startswith("cuda."):
            return self._of_cuda(node, function, args, dict(zip(places, rule, strict=False)), rule[-1])
        return self._of_scalars(node, function, args, names, rule)  # type: ignore[arg-type]

    def _of_cuda(self, node: ast.Call, function: Any, args: list[Typed], to: dict[int, str], result: str) -> Typed:
        """A call of a function of the executor, with the types that its operands are converted to."""
        for n, name in to.items():
            if scalar(args[n][1]) is not None:
                node.args[n] = self.converted(*args[n], name)
        if function in _SHUFFLES:
            return node, variable(args[1][1])
        if function is indices.selp:
            return node, joined(args[1][1], args[2][1])
        if result == "none":
            return node, Known(None)
        kinds = tuple(
            whole(*_LIMITS[function], name) if function in _LIMITS else any_number(name) for name in result.split(",")
        )
        return node, kinds[0] if len(kinds) == 1 else Tuple(kinds)

    def _of_scalars(
        self, node: ast.Call, function: Any, args: list[Typed], names: list[str], rule: record.Signature
    ) -> Typed | None:
        """A call of a function of Python, `math` or NumPy with scalars of known types."""
        nodes = [arg for arg, _ in args]
        if function is abs:
            return self._absolute(node, args[0], names[0])
        if function is round and len(args) == 1:
            return self.apply(functions.rounding(names[0]), f"round_{names[0]}", node, *nodes), INT64
        if function is round:
            rounded, result = functions.rounding_to(*names)
            return self.apply(rounded, f"round_{'_'.join(names)}", node, *nodes), number(result)
        if function is pow:
            return self.operation(node, "Pow", args[0], args[1])
        if function is divmod:
            pair, held = functions.quotient(*names)
            parts = tuple(number(name, "py" if name == "int64" else "np") for name in held)
            return self.apply(pair, f"divmod_{names[0]}_{names[1]}", node, *nodes), Tuple(parts)
        if function in functions.TESTS:
            node.func = self.constant(functions.TESTS[function], function.__name__, node)
            return node, BOOL
        if function.__module__ == "cmath":
            compute, results = functions.of_cmath(function.__name__, names[0])
            kinds = tuple(any_number(name) for name in results)
            new = self.apply(compute, f"{function.__name__}_{names[0]}", node, *nodes)
            return new, kinds[0] if len(kinds) == 1 else Tuple(kinds)
        if isinstance(function, np.ufunc):
            return self._ufunc(node, function.__name__, args, names, rule)
        return self._of_math(node, function, nodes, names)

    def _of_math(self, node: ast.Call, function: Any, nodes: list[ast.expr], names: list[str]) -> Typed | None:
        compute: Any
        if function in (math.modf, math.frexp) and len(nodes) == 1:
            compute, results = functions.parts(function, names[0])
            parts = tuple(number(name) for name in results)
            return self.apply(compute, f"{function.__name__}_{names[0]}", node, *nodes), Tuple(parts)
        if function in functions.ONE and len(nodes) == 1:
            compute, result = functions.one(functions.ONE[function], names[0])
        elif function in functions.TWO and len(nodes) == 2:
            compute, result = functions.two(functions.TWO[function], *names)
        else:
            return None
        if result == "float64":
            self.doubled(node, f"{function.__name__} of {names[0]}")
        return self.apply(compute, f"{function.__name__}_{'_'.join(names)}", node, *nodes), number(result)

    def _sum(self, node: ast.Call, arg: ast.expr, items: tuple) -> Typed:
        """`sum` of a tuple, starting from the int64 0."""
        kinds, result = [scalar(item) for item in items], "int64"
        if any(kind is None for kind in kinds):
            return node, None
        names = tuple(kind.name for kind in kinds if kind)
        for name in names:
            rule = self.resolved(node, "a + b", result, name, called="sum")
            if rule is None:
                return node, None
            result = rule[2]
        compute = functions.total(names)
        form = "py" if result == "int64" else "np"
        return self.apply(compute, "_".join(["sum", *names]), node, arg), number(result, form)

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

    def _ufunc(self, node: ast.Call, name: str, args: list[Typed], names: list[str], rule: record.Signature) -> Typed:
        *inputs, result = rule
        for n, (x, kind) in enumerate(args):
            node.args[n] = self.converted(x, kind, inputs[n])
            if inputs[n] == "int64" and not (isinstance(kind, Scalar) and kind.name == "int64" and kind.form == "np"):
                node.args[n] = self.apply(np.int64, "int64", node, node.args[n])
        if result == "float64" and set(names) != {"float64"}:
            self.doubled(node, f"{name} of {' and '.join(names)}")
        return node, any_number(result)

    def _extreme(self, node: ast.Call, greatest: bool, args: list[Typed], given: list[Kind]) -> Typed:
        kinds = [scalar(kind) for kind in given]
        nodes = [arg for arg, _ in args]
        if any(kind is None for kind in kinds):
            return self.apply(dynamic.extreme(greatest), "max" if greatest else "min", node, *nodes), None
        known = [kind for kind in kinds if kind]
        for other in known[1:]:
            pair = known[0].name, other.name
            if self.resolved(node, "max(a, b)", *pair, called="max" if greatest else "min") is None:
                return node, None
        joint = known[0]
        for other in known[1:]:
            joint = joined(joint, other)  # type: ignore[assignment]
        names = [kind.name for kind in known]
        if set(names) == {"int64"} or (joint.name == "int64" and all(kind.form == "py" for kind in known)):
            choose = max if greatest else min
            node.args = nodes
            bounds = choose(kind.low for kind in known), choose(kind.high for kind in known)
            return node, Scalar("int64", joint.form if set(names) == {"int64"} else "py", *bounds)
        pick = operators.extreme(greatest, *names)
        label = "_".join(["max" if greatest else "min", *names])
        return self.apply(pick, label, node, *nodes), number(joint.name, "py" if joint.name == "int64" else "np")


def _zipped(kinds: list[Kind], node: ast.Call) -> Kind:
    """The kind of `zip` of tuples."""
    rows: list[tuple] = []
    for kind, arg in zip(kinds, node.args, strict=True):
        items = items_of(kind)
        if items is None:
            return None
        rows += [items_of(item) or () for item in items] if isinstance(arg, ast.Starred) else [items]
    return Tuple(tuple(Tuple(column) for column in zip(*rows, strict=False)))


def is_function(value: Any) -> bool:
    plain = types.FunctionType | types.BuiltinFunctionType | types.MethodType
    return isinstance(value, plain | np.ufunc | type(np.sum))


def _operand(kind: Kind, array: bool) -> str | None:
    """The type of an operand: of an array that of its elements, of an index that is a tuple of integers int64."""
    if array:
        return kind.dtype if isinstance(kind, Array) else None
    if (items := items_of(kind)) is not None:
        names = {known.name for item in items if (known := scalar(item))}
        return "int64" if names and names <= INTEGERS.keys() - {"bool"} else None
    known = scalar(kind)
    return known.name if known else None


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
