"""Typing of calls of device functions and of the executor's functions, and of attributes."""

from __future__ import annotations

import ast
import types
from collections.abc import Callable
from typing import Any

import numpy as np

from ..base import state
from ..base.conversions import CONVERSIONS
from ..base.scalars import INTEGERS
from ..machine import atomics, barriers, indices, warps
from ..memory import shared
from .expressions import Typed
from .kinds import (
    BOOL,
    Array,
    Kind,
    Known,
    Method,
    Named,
    Record,
    Scalar,
    Tuple,
    array_of,
    field,
    items_of,
    joined,
    limits,
    number,
    of_type,
    scalar,
    variable,
    whole,
    widened,
)
from .library import SIZE, Library, is_function

_MOST = 2**31 - 1
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


class Calls(Library):
    """The visits of calls and of attributes."""

    def device_function(self, function: types.FunctionType, kinds: list[Kind]) -> tuple[Any, Kind] | None:
        """A device function typed for arguments, and the kind of its result; None if it runs unchanged."""
        raise NotImplementedError

    def named_function(self, names: Any, name: str, value: Any) -> None:
        """Note where a device function was found."""
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
        if isinstance(kind, Scalar):
            return (node, kind) if name == "real" else (node, Method(kind, name))
        if isinstance(kind, Tuple) and name in (fields := getattr(kind.named, "_fields", ())):
            return node, variable(kind.items[fields.index(name)])
        return node, None

    def _known_attribute(self, node: ast.Attribute, value: Any, name: str) -> Typed:
        if name in ("laneid", "warpsize") and isinstance(value, types.ModuleType) and hasattr(value, "syncwarp"):
            return node, _LANE if name == "laneid" else Known(warps.WARP_SIZE)
        if isinstance(value, types.ModuleType | types.SimpleNamespace | type | np.dtype):
            try:
                known = Known(getattr(value, name))
            except AttributeError:
                return node, None
            if isinstance(value, types.ModuleType):
                self.named_function(value.__dict__, name, known.value)
            return self.fixed(node, known), known
        return node, None

    def called(self, node: ast.Call, test: bool) -> Typed:
        """A call."""
        callee, kind = self.visit(node.func)
        args = [self.visit(arg) for arg in node.args]
        named = {k.arg: self.visit(k.value) for k in node.keywords}
        keywords = [ast.keyword(name, value) for name, (value, _) in named.items()]
        new = ast.copy_location(ast.Call(callee, [arg for arg, _ in args], keywords), node)
        if isinstance(kind, Method):
            return self._method(new, kind, args)
        if not isinstance(kind, Known):
            return self._unknown(new), None
        called = kind.value  # or a kernel that another calls: as it is translated, or as it was written
        function = getattr(called, "function", getattr(called, "py_func", called))
        starred = any(isinstance(arg, ast.Starred) for arg in node.args)
        if isinstance(function, type) and hasattr(function, "_fields"):
            return new, self._namedtuple(function, args, named) if not starred else None
        if isinstance(function, type):
            return self._type(new, function, args, starred)
        if isinstance(getattr(function, "dtype", None), np.dtype) and callable(function):  # a Numba type
            return self._type(new, function.dtype.type, args, starred)
        if not starred and not keywords and (handled := self._builtin(new, function, args)):
            return handled
        if (executor := self._executor(new, function, args)) is not None:
            return executor
        if isinstance(function, types.FunctionType):
            return self._function(new, function, node, args, {name: kind for name, (_, kind) in named.items()})
        return new, None

    def _namedtuple(self, function: Any, args: list[Typed], named: dict[str | None, Typed]) -> Kind:
        """The kind of a namedtuple that is constructed from all its fields."""
        parts = dict(zip(function._fields, (kind for _, kind in args), strict=False))
        parts |= {str(name): kind for name, (_, kind) in named.items()}
        whole = parts.keys() == {*function._fields}
        return Tuple(tuple(parts[name] for name in function._fields), function) if whole else None

    def _method(self, node: ast.Call, method: Method, args: list[Typed]) -> Typed:
        """A method of a number."""
        place = node.func
        assert isinstance(place, ast.Attribute)
        if method.name in ("item", "conjugate") and not args:
            return place.value, method.owner
        if method.owner.form != "np":
            place.value = self.apply(getattr(np, method.owner.name), method.owner.name, node, place.value)
        if method.name == "view" and len(args) == 1 and isinstance(kind := args[0][1], Known):
            target = kind.value if isinstance(kind.value, type) else getattr(kind.value, "dtype", None)
            name = np.dtype(target).name if target is not None else None
            return node, number(name) if name in CONVERSIONS else None
        return node, None

    def _unknown(self, node: ast.Call) -> ast.expr:
        """A call of an object that is known only at run time."""
        if isinstance(node.func, ast.Attribute | ast.Call):
            return node
        node.func = self.apply(self.resolver(), "device", node, node.func)
        return node

    def resolver(self) -> Callable[[Any], Any]:
        """The function that wraps a function so that it is typed when it is called."""
        raise NotImplementedError

    def _executor(self, node: ast.Call, function: Any, args: list[Typed]) -> Typed | None:
        """A function of the executor's `cuda`."""
        owner = getattr(function, "__self__", None)
        if owner is not None or not is_function(function):
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
        if function.__module__ == atomics.__name__ and kinds and isinstance(kinds[0], Array):
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

    def _function(
        self,
        node: ast.Call,
        function: types.FunctionType,
        old: ast.Call,
        args: list[Typed],
        named: dict[str | None, Kind],
    ) -> Typed:
        """A device function, or a Python function."""
        signatures = getattr(function, "__simt_signatures__", ())
        for _, taken in signatures:
            self.device_function(_inner(function), [of_type(type_) for type_ in taken])  # for its side effects
        if len(signatures) == 1 and not named and (found := self._as_declared(node, function, args, *signatures)):
            return found
        if (result := getattr(function, "__simt_types__", None)) is not None:
            kinds = tuple(number(name, "any" if name in INTEGERS else "np") for name in result)
            return node, kinds[0] if len(kinds) == 1 else Tuple(kinds) if kinds else Known(None)
        passed: list[Kind] = []
        for arg, (_, kind) in zip(old.args, args, strict=True):
            if not isinstance(arg, ast.Starred):
                passed.append(widened(kind))
            elif (items := items_of(kind)) is not None:
                passed += [widened(item) for item in items]
            else:
                return self._unknown(node), None
        if None in named:
            return self._unknown(node), None
        passed += [Named(str(name), widened(kind)) for name, kind in named.items()]
        typed = self.device_function(function, passed)
        if typed is None:
            return node, None
        if typed[0] is not function:
            node.func = self.constant(typed[0], f"typed_{function.__name__.strip('<>')}", node)
        return node, typed[1]

    def _as_declared(self, node: ast.Call, function: Any, args: list[Typed], signature: Any) -> Typed | None:
        """A call of a device function with one explicit signature; None if only the values decide what it does."""
        returned, taken = signature[0], [of_type(type_) for type_ in signature[1]]
        if len(args) != len(taken) or not all(map(_fits, (kind for _, kind in args), taken)):
            return None
        new = [self._passed(*arg, type_) for arg, type_ in zip(args, taken, strict=True)]
        typed = self.device_function(_inner(function), [kind for _, kind in new])
        result = of_type(returned)
        if typed is None or (scalar(typed[1]) is None if result else str(returned or "none") != "none"):
            return None
        callee = self.constant(typed[0], f"typed_{function.__name__}", node)
        call = ast.copy_location(ast.Call(callee, [arg for arg, _ in new], []), node)
        return self._passed(call, typed[1], result)

    def _passed(self, node: ast.expr, kind: Kind, type_: Kind) -> Typed:
        """A value passed for a type: a number is converted, unless it is an int within the limits of the type."""
        one, other = scalar(kind), scalar(type_)
        if one is None or other is None or one.name == other.name:
            return node, widened(kind)
        low, high = limits(other.name) if other.name in INTEGERS and one.name != "bool" else (0, -1)
        if one.form == "py" and low <= one.low <= one.high <= high and other.name != "bool":
            return node, widened(one._replace(name=other.name))
        form = "py" if other.name in ("int64", "bool") else "np"
        return self.converted(node, kind, other.name), number(other.name, form)


def _fits(kind: Kind, type_: Kind) -> bool:
    """Whether a declared type certainly accepts an argument."""
    known = isinstance(type_, Array) and (type_.dtype or type_.record)
    return kind == type_ if known else isinstance(type_, Scalar) and scalar(kind) is not None


def _inner(call: types.FunctionType) -> types.FunctionType:
    """The function inside a wrapper with explicit signatures (`device_functions.declared`)."""
    return dict(zip(call.__code__.co_freevars, call.__closure__ or (), strict=True))["function"].cell_contents


def _declared(kinds: list[Kind]) -> Kind:
    axes = items_of(kinds[0])
    try:
        return array_of(kinds[1].value, 1 if axes is None else len(axes)) if isinstance(kinds[1], Known) else None
    except TypeError:
        return None


def _array_attribute(kind: Array, name: str) -> Kind:
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
    return None
