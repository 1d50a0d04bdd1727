"""Typing of calls: of conversions, of Python's, `math`'s and NumPy's functions, and of device functions."""

from __future__ import annotations

import ast
import types
from collections.abc import Callable
from typing import Any

import numpy as np

from .. import atomics, barriers, indices, shared, state, warps
from . import dynamic, functions, operators
from .convert import CONVERSIONS, name_of
from .expressions import Expressions, Typed
from .kinds import (
    BOOL,
    INT64,
    Array,
    Kind,
    Known,
    Range,
    Record,
    Scalar,
    Tuple,
    array_of,
    field,
    items_of,
    joined,
    number,
    scalar,
    whole,
    widened,
)
from .rules import INTEGERS, unify

_MOST = 2**31 - 1
_SIZE = 2**48  # more elements or bytes than any memory has
_DIMENSIONS = {
    id(state.threadIdx): whole(0, 1023, "int32"),
    id(state.blockIdx): whole(0, _MOST, "int32"),
    id(state.blockDim): whole(1, 1024, "int32"),
    id(state.gridDim): whole(1, _MOST, "int32"),
}
_LANE = whole(0, 31, "int32")
_INT32, _MASK = whole(-(2**31), _MOST, "int32"), whole(0, 2**32 - 1, "uint32")
_RESULTS: dict[Any, Kind] = {
    barriers.syncthreads_count: whole(0, 1024, "int32"),
    barriers.syncthreads_and: whole(0, 1, "int32"),
    barriers.syncthreads_or: whole(0, 1, "int32"),
    warps.all_sync: BOOL,
    warps.any_sync: BOOL,
    warps.eq_sync: BOOL,
    warps.ballot_sync: _INT32,
    warps.match_any_sync: _INT32,
    warps.match_all_sync: Tuple((_INT32, BOOL)),
    warps.activemask: _MASK,
    warps.lanemask_lt: _MASK,
}
_SHUFFLES = {warps.shfl_sync, warps.shfl_up_sync, warps.shfl_down_sync, warps.shfl_xor_sync}
_BITS = {indices.popc, indices.clz, indices.ffs, indices.brev}
_ATOMICS = {value for value in vars(atomics).values() if isinstance(value, types.FunctionType)}
_PLAIN_TYPES: dict[Any, str] = {int: "int64", float: "float64", bool: "bool"}


class Calls(Expressions):
    """The visits of calls and of attributes."""

    def device_function(self, function: types.FunctionType, kinds: list[Kind]) -> tuple[Any, Kind] | None:
        """A device function typed for arguments, and what it returns; None if it runs as it is."""
        raise NotImplementedError

    def attribute(self, node: ast.Attribute, kind: Kind, name: str) -> Typed:
        """An attribute of a value of a kind."""
        if isinstance(kind, Known):
            if id(kind.value) in _DIMENSIONS and name in "xyz":
                return node, _DIMENSIONS[id(kind.value)]
            return self._known_attribute(node, kind.value, name)
        if isinstance(kind, Array):
            return node, _array_attribute(kind, name)
        if isinstance(kind, Record):
            return node, field(kind, name)
        if isinstance(kind, Scalar) and name == "real":
            return node, kind
        return node, None

    def _known_attribute(self, node: ast.Attribute, value: Any, name: str) -> Typed:
        if name in ("laneid", "warpsize") and isinstance(value, types.ModuleType) and hasattr(value, "syncwarp"):
            return node, _LANE if name == "laneid" else Known(warps.WARP_SIZE)
        if isinstance(value, types.ModuleType | types.SimpleNamespace | type | np.dtype):
            try:
                known = Known(getattr(value, name))
            except AttributeError:
                return node, None
            return self.fixed(node, known), known
        return node, None

    def called(self, node: ast.Call, test: bool) -> Typed:
        """A call."""
        callee, kind = self.visit(node.func)
        args = [self.visit(arg) for arg in node.args]
        keywords = [ast.keyword(k.arg, self.visit(k.value)[0]) for k in node.keywords]
        new = ast.copy_location(ast.Call(callee, [arg for arg, _ in args], keywords), node)
        if not isinstance(kind, Known):
            return self._unknown(new), None
        function = getattr(kind.value, "py_func", kind.value)  # a kernel that another calls
        starred = any(isinstance(arg, ast.Starred) for arg in node.args)
        if isinstance(function, type):
            return self._type(new, function, args, starred)
        if isinstance(getattr(function, "dtype", None), np.dtype) and callable(function):  # a type of Numba's
            return self._type(new, function.dtype.type, args, starred)
        if not starred and not keywords and (handled := self._builtin(new, function, args)):
            return handled
        if (executor := self._executor(new, function, args)) is not None:
            return executor
        if isinstance(function, types.FunctionType):
            return self._function(new, function, node, args)
        return new, None

    def _unknown(self, node: ast.Call) -> ast.expr:
        """A call of something that is known only when it runs."""
        if isinstance(node.func, ast.Attribute | ast.Call):
            return node
        node.func = self.apply(self.resolver(), "device", node, node.func)
        return node

    def resolver(self) -> Callable[[Any], Any]:
        """What makes of a function one that is typed by its arguments when it is called."""
        raise NotImplementedError

    def _type(self, node: ast.Call, function: type, args: list[Typed], starred: bool) -> Typed:
        """A conversion to a type."""
        if function is tuple and len(args) == 1 and not starred:
            return node, args[0][1] if isinstance(args[0][1], Tuple) else None
        if function is range and not starred:
            return node, Range(counted([scalar(kind) for _, kind in args]))
        if function is zip:
            return node, _zipped([kind for _, kind in args], node)
        name = _PLAIN_TYPES.get(function)
        if name is None and issubclass(function, np.generic):
            name = np.dtype(function).name
        if name not in CONVERSIONS or len(args) != 1 or starred:
            return node, None
        x, kind = args[0]
        known = scalar(kind)
        if function in (int, float) and known is not None and (known.name in INTEGERS) == (function is int):
            name = "int64" if known.name == "bool" else known.name
        elif known is None:
            plain = {int: dynamic.whole, float: dynamic.real}.get(function, dynamic.conversion(name))
            kind = None if function in (int, float) else number(name)
            return self.apply(plain, f"as_{function.__name__}", node, x), kind
        elif function is float and known.name == "float16":
            name = "float16"
        if known.name in CONVERSIONS and known.name not in INTEGERS and name == known.name and function is not float:
            return (node if isinstance(kind, Known) else x), number(name)
        if isinstance(kind, Known) and function not in (int, float, bool) and name == "float64":
            return node, number(name)
        result = known if name == known.name else number(name, "py" if name in ("int64", "bool") else "np")
        return self.converted(x, kind, name), result

    def _builtin(self, node: ast.Call, function: Any, args: list[Typed]) -> Typed | None:
        """A function of Python's, `math`'s or NumPy's."""
        if not _hashable(function):
            return None
        kinds = [scalar(kind) for _, kind in args]
        nodes = [arg for arg, _ in args]
        if function in (min, max) and len(args) > 1:
            return self._extreme(node, function is max, args)
        if function is len and isinstance(args[0][1], Array):
            return node, whole(0, _SIZE)
        if function is len and (items := items_of(args[0][1])) is not None:
            return node, whole(len(items), len(items))
        if any(kind is None for kind in kinds) or not args:
            return None
        names = [kind.name for kind in kinds if kind]
        if function is abs:
            return self._absolute(node, args[0], names[0])
        if function is round and len(args) == 1:
            return self.apply(functions.rounding(names[0]), f"round_{names[0]}", node, *nodes), INT64
        if function is pow and len(args) == 2:
            return self.operation(node, "Pow", args[0], args[1])
        if function is divmod:
            pair, results = functions.quotient(*names)
            parts = tuple(number(name, "py" if name == "int64" else "np") for name in results)
            return self.apply(pair, f"divmod_{names[0]}_{names[1]}", node, *nodes), Tuple(parts)
        if function in functions.TESTS:
            node.func = self.constant(functions.TESTS[function], function.__name__, node)
            return node, BOOL
        if function in functions.ONE and len(args) == 1:
            compute: Any
            compute, result = functions.one(functions.ONE[function], names[0])
        elif function in functions.TWO and len(args) == 2:
            compute, result = functions.two(functions.TWO[function], *names)
        elif isinstance(function, np.ufunc):
            return self._ufunc(node, function, args, names)
        else:
            return None
        if result == "float64":
            self.doubled(node, f"{function.__name__} of {names[0]}")
        return self.apply(compute, f"{function.__name__}_{'_'.join(names)}", node, *nodes), number(result)

    def _absolute(self, node: ast.Call, arg: Typed, name: str) -> Typed:
        known = scalar(arg[1])
        assert known is not None
        if name == "int64" and known.form == "py":
            return node, whole(0, max(abs(known.low), abs(known.high)))
        if name not in INTEGERS or (name != "bool" and known.form == "np"):
            return node, number(name)
        return self.apply(operators.absolute, "absolute", node, arg[0]), number(name, "any")

    def _ufunc(self, node: ast.Call, function: np.ufunc, args: list[Typed], names: list[str]) -> Typed | None:
        name = function.__name__
        if name in ("minimum", "maximum", "fmin", "fmax", "add", "subtract", "multiply") or len(args) != 1:
            return None
        result = functions.ufunc_type(name, names[0])
        if result is None:
            return node, None
        x, kind = args[0]
        if names[0] == "float16" and result == "float32":
            node.args = [self.converted(x, kind, "float32")]
        elif names[0] in INTEGERS and result in ("float32", "float64"):
            node.args = [self.converted(x, kind, result)]
            if result == "float64":
                self.doubled(node, f"{name} of {names[0]}")
        return node, number(result, "any" if result in INTEGERS else "np")

    def _extreme(self, node: ast.Call, greatest: bool, args: list[Typed]) -> Typed:
        kinds = [scalar(kind) for _, kind in args]
        nodes = [arg for arg, _ in args]
        if any(kind is None for kind in kinds):
            return self.apply(dynamic.extreme(greatest), "max" if greatest else "min", node, *nodes), None
        known = [kind for kind in kinds if kind]
        joint = known[0]
        for other in known[1:]:
            joint = joined(joint, other)  # type: ignore[assignment]
        names = [kind.name for kind in known]
        if set(names) == {"int64"} or (joint.name == "int64" and all(kind.form == "py" for kind in known)):
            choose = max if greatest else min
            bounds = choose(kind.low for kind in known), choose(kind.high for kind in known)
            return node, Scalar("int64", joint.form if set(names) == {"int64"} else "py", *bounds)
        pick = operators.extreme(greatest, *names)
        label = "_".join(["max" if greatest else "min", *names])
        return self.apply(pick, label, node, *nodes), number(joint.name, "py" if joint.name == "int64" else "np")

    def _executor(self, node: ast.Call, function: Any, args: list[Typed]) -> Typed | None:
        """A function of the executor's `cuda`."""
        owner = getattr(function, "__self__", None)
        if owner is not None or not _hashable(function):
            return None
        kinds = [kind for _, kind in args]
        if function in _RESULTS:
            return node, _RESULTS[function]
        if function in _SHUFFLES and len(kinds) > 1:
            return node, widened(kinds[1])
        if function in (indices.grid, indices.gridsize) and kinds and isinstance(kinds[0], Known):
            each, axes = whole(0, 2**41), kinds[0].value
            return node, each if axes == 1 else Tuple((each,) * axes)
        if function in _BITS:
            return self._bits(node, function, args)
        if function in _ATOMICS and kinds and isinstance(kinds[0], Array):
            return node, number(kinds[0].dtype) if kinds[0].dtype else None
        if function is indices.selp and len(kinds) == 3:
            return node, joined(kinds[1], kinds[2])
        if function in (shared.shared.array, shared.local.array) and len(args) == 2:
            return node, _declared(kinds)
        if function is shared.const.array_like:
            return node, kinds[0] if isinstance(kinds[0], Array) else None
        return None

    def _bits(self, node: ast.Call, function: Any, args: list[Typed]) -> Typed:
        x, kind = args[0]
        known = scalar(kind)
        if known is None or known.name not in INTEGERS:
            return node, None
        name = known.name
        if function is indices.brev:
            name = "uint64" if name == "uint64" else "uint32"
        if known.form != "np" or known.name != name:
            node.args = [self.apply(np.int64 if name == "int64" else CONVERSIONS[name], f"box_{name}", node, x)]
        if function is indices.brev:
            return self.apply(CONVERSIONS[name], f"to_{name}", node, node), number(name)
        return node, whole(0, 64, "uint32" if function is indices.ffs else "int8" if name == "bool" else name)

    def _function(self, node: ast.Call, function: types.FunctionType, old: ast.Call, args: list[Typed]) -> Typed:
        """A device function, or one of Python's."""
        if (result := getattr(function, "__simt_types__", None)) is not None:
            kinds = tuple(number(name, "any" if name in INTEGERS else "np") for name in result)
            return node, kinds[0] if len(kinds) == 1 else Tuple(kinds) if kinds else Known(None)
        kinds_given: list[Kind] = []
        for arg, (_, kind) in zip(old.args, args, strict=True):
            if not isinstance(arg, ast.Starred):
                kinds_given.append(widened(kind))
            elif (items := items_of(kind)) is not None:
                kinds_given += [widened(item) for item in items]
            else:
                return self._unknown(node), None
        if node.keywords:
            return self._unknown(node), None
        typed = self.device_function(function, kinds_given)
        if typed is None:
            return node, None
        if typed[0] is not function:
            node.func = self.constant(typed[0], f"typed_{function.__name__.strip('<>')}", node)
        return node, typed[1]


def _declared(kinds: list[Kind]) -> Kind:
    axes = items_of(kinds[0])
    try:
        return array_of(kinds[1].value, 1 if axes is None else len(axes)) if isinstance(kinds[1], Known) else None
    except TypeError:
        return None


def _array_attribute(kind: Array, name: str) -> Kind:
    size = whole(0, _SIZE)
    if name in ("size", "nbytes", "itemsize"):
        return size
    if name == "shape":
        return Tuple((size,) * kind.axes)
    if name == "strides":
        return Tuple((whole(-_SIZE, _SIZE),) * kind.axes)
    if name == "ndim":
        return Known(kind.axes)
    if name == "T":
        return kind
    if name == "dtype" and kind.dtype:
        return Known(np.dtype(kind.dtype))
    return None


def _zipped(kinds: list[Kind], node: ast.Call) -> Kind:
    """The tuples that zip gives of tuples."""
    rows: list[tuple] = []
    for kind, arg in zip(kinds, node.args, strict=True):
        items = items_of(kind)
        if items is None:
            return None
        rows += [items_of(item) or () for item in items] if isinstance(arg, ast.Starred) else [items]
    return Tuple(tuple(Tuple(column) for column in zip(*rows, strict=False)))


def _hashable(value: Any) -> bool:
    return isinstance(value, types.FunctionType | types.BuiltinFunctionType | types.MethodType | np.ufunc)


__all__ = ["Calls", "name_of"]


def counted(kinds: list[Scalar | None]) -> Scalar:
    """What `range` gives."""
    if not kinds or any(kind is None for kind in kinds):
        return INT64
    known = [kind for kind in kinds if kind]
    start, stop = (whole(0, 0), known[0]) if len(known) == 1 else known[:2]
    step = known[2] if len(known) > 2 else whole(1, 1)
    name = known[0].name
    for other in known[1:]:
        name = unify(name, other.name)
    if name not in ("int32", "int64", "uint64"):
        name = "int32" if name in ("int8", "int16", "uint8", "uint16", "bool") else "int64"
    if step.low > 0:
        return whole(start.low, max(start.low, stop.high - 1), name)
    return whole(min(start.low, stop.low), max(start.high, stop.high), name)
