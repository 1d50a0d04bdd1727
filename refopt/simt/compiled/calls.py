"""Typing of calls of device functions and of the executor's functions, and of attributes."""

from __future__ import annotations

import ast
import operator
import types
from collections.abc import Callable
from typing import Any

import numpy as np

from ..base import record, state
from ..base.conversions import CONVERSIONS
from ..base.scalars import COMPLEX, INTEGERS
from ..machine import indices, warps
from ..machine.vector_types import Vector
from ..memory import buffers as memory
from ..memory import shared
from .constants import as_operator
from .expressions import Typed, Unsupported, Untyped
from .kinds import (
    BOOL,
    INT64,
    TEXTS,
    Array,
    Kind,
    Known,
    Method,
    Named,
    Record,
    Scalar,
    Tuple,
    any_number,
    array_of,
    element,
    field,
    items_of,
    limits,
    made,
    named_of,
    number,
    of_type,
    of_value,
    operand,
    scalar,
    several,
    variable,
    whole,
    widened,
)
from .library import Library, array_attribute, is_function
from .uses import described

Callee = tuple[Any, Kind]
_MOST = 2**31 - 1
_DIMENSIONS = {
    id(state.threadIdx): whole(0, 1023, "int32"),
    id(state.blockIdx): whole(0, _MOST, "int32"),
    id(state.blockDim): whole(1, 1024, "int32"),
    id(state.gridDim): whole(1, _MOST, "int32"),
}
_LANE = whole(0, 31, "int32")


class Calls(Library):
    """The visits of calls and of attributes."""

    device_function: Callable[[ast.AST, types.FunctionType, list[Kind]], Callee | None]
    captured_by: Callable[[ast.Call, types.FunctionType], dict[str, ast.expr]]
    named_function: Callable[[Any, str, Any], None]

    def attribute(self, node: ast.Attribute, kind: Kind, name: str) -> Typed:
        """An attribute of a value of a kind."""
        if (number_of_it := scalar(kind)) is not None:
            return self._part(node, number_of_it, name)
        if isinstance(kind, Method) and (kind.name, name) == ("ctypes", "data"):
            return node, number("uint64", "any")
        if (items := items_of(kind)) and name in (fields := getattr(named_of(kind), "_fields", ())):
            return node, variable(items[fields.index(name)])
        if isinstance(kind, Known) and kind is not TEXTS:
            if isinstance(kind.value, str):
                return node, Method(kind, name)
            if id(kind.value) in _DIMENSIONS and name in "xyz":
                return node, _DIMENSIONS[id(kind.value)]
            return self._known_attribute(node, kind.value, name)
        if isinstance(kind, Array):
            return node, array_attribute(kind, name)
        if isinstance(kind, Record):
            return node, field(kind, name)
        return node, Method(kind, name) if kind is TEXTS else None

    def _part(self, node: ast.Attribute, kind: Scalar, name: str) -> Typed:
        """The real or imaginary part of a number, or a method of it."""
        if name not in ("real", "imag"):
            return node, Method(kind, name)
        rule = self.resolved(node, f"a.{name}", kind, called=name)
        same = name == "real" and rule[1] == kind.name
        return node, kind if same else any_number(rule[1])

    def _known_attribute(self, node: ast.Attribute, value: Any, name: str) -> Typed:
        if name in ("laneid", "warpsize") and isinstance(value, types.ModuleType) and hasattr(value, "syncwarp"):
            return node, _LANE if name == "laneid" else Known(warps.WARP_SIZE)
        if isinstance(value, types.ModuleType | types.SimpleNamespace | type | np.dtype | np.finfo | np.iinfo):
            try:
                known = Known(getattr(value, name))
            except AttributeError:
                return node, None
            if isinstance(value, types.ModuleType):
                self.named_function(value.__dict__, name, known.value)
            if is_function(known.value):
                return self.constant(known.value, name, node), known
            kind = of_value(known.value) if isinstance(known.value, np.ndarray) else known
            return self.fixed(node, known), kind
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
            return self._unknown(new) if kind is None else (new, None)
        called = kind.value  # or a kernel that another calls: as it is translated, or as it was written
        function = getattr(called, "function", getattr(called, "py_func", called))
        if (operation := as_operator(node, function)) is not None:
            return self.raw(operation, test)
        if id(function) in record.counts():
            args = self._spread(args)
            new.args = [arg for arg, _ in args]
        starred = any(isinstance(arg, ast.Starred) for arg, _ in args)
        if isinstance(function, type) and issubclass(function, Vector):
            return new, Tuple((number(np.dtype(function.base).name),) * function.count, function)
        if isinstance(function, type) and hasattr(function, "_fields"):
            return new, self._namedtuple(function, args, named) if not starred else None
        if function in (np.finfo, np.iinfo) and args and (named_type := _type_of(args[0][1])):
            return new, Known(function(named_type))
        if isinstance(function, type):
            return self._type(new, function, args, starred)
        if isinstance(getattr(function, "dtype", None), np.dtype) and callable(function):  # a Numba type
            return self._type(new, function.dtype.type, args, starred)
        if not starred and not keywords and (handled := self._builtin(new, function, args)):
            return handled
        if (executor := self._executor(new, function, args, named)) is not None:
            return executor
        if isinstance(function, types.FunctionType):
            return self._function(new, function, node, args, {name: kind for name, (_, kind) in named.items()})
        return new, None

    def _spread(self, args: list[Typed]) -> list[Typed]:
        """Arguments with the items of starred variables that are tuples, each by its index."""
        new: list[Typed] = []
        for arg, kind in args:
            items = items_of(kind) if isinstance(arg, ast.Starred) and isinstance(arg.value, ast.Name) else None
            for n, item in enumerate(items or ()):
                index, _ = self.raw(ast.copy_location(ast.Constant(n), arg))
                part = ast.copy_location(ast.Subscript(arg.value, index, ast.Load()), arg)  # type: ignore[attr-defined]
                new.append((part, variable(item)))
            new += [(arg, kind)] if items is None else []
        return new

    def _namedtuple(self, function: Any, args: list[Typed], named: dict[str | None, Typed]) -> Kind:
        """The kind of a namedtuple that is constructed from all its fields."""
        parts = dict(zip(function._fields, (kind for _, kind in args), strict=False))
        parts |= {str(name): kind for name, (_, kind) in named.items()}
        whole = parts.keys() == {*function._fields}
        return Tuple(tuple(parts[name] for name in function._fields), function) if whole else None

    def _method(self, node: ast.Call, method: Method, args: list[Typed]) -> Typed:
        """A method of a number or of an array."""
        place, owner = node.func, method.owner
        assert isinstance(place, ast.Attribute)
        if isinstance(owner, Array):
            return node, self._of_array(node, owner, method.name, args)
        if not isinstance(owner, Scalar):  # text
            return node, BOOL if method.name.startswith("is") else INT64
        target = _type_of(args[0][1]) if method.name == "view" and len(args) == 1 else None
        inside = f"np.{np.dtype(target).type.__name__}" if target else ""
        rule = self.resolved(node, f"a.{method.name}({inside})", owner, called=method.name)
        if method.name == "item" or (method.name == "conjugate" and owner.name not in COMPLEX):
            return place.value, owner
        if owner.form != "np":
            place.value = self.apply(getattr(np, owner.name), owner.name, node, place.value)
        return node, any_number(rule[1])

    def _of_array(self, node: ast.Call, owner: Array, name: str, args: list[Typed]) -> Kind:
        """The kind of the result of an array's method."""
        kinds = [kind for _, kind in args]
        if name == "reshape":
            items = items_of(kinds[0]) if len(kinds) == 1 else kinds
            return owner._replace(axes=1 if items is None else len(items))
        if name == "view" and len(kinds) == 1 and (target := _type_of(kinds[0])):
            return array_of(target, owner.axes)
        if name in ("transpose", "conj", "conjugate", "ravel", "flatten"):
            return owner
        if owner.dtype is None or args or not record.has(f"A.{name}()"):
            return None
        return any_number(self.resolved(node, f"A.{name}()", owner, called=name)[1])

    def _unknown(self, node: ast.Call) -> Typed:
        """A call that cannot be typed."""
        if isinstance(node.func, ast.Attribute | ast.Call):
            return node, None
        raise Unsupported(f"the call in line {node.lineno} has no type")

    def _executor(self, node: ast.Call, function: Any, args: list[Typed], named: dict[Any, Typed]) -> Typed | None:
        """A function of the executor's `cuda`."""
        owner = getattr(function, "__self__", None)
        if owner is not None or not is_function(function):
            return None
        kinds = [kind for _, kind in args]
        if function in (indices.grid, indices.gridsize) and kinds and isinstance(kinds[0], Known):
            each, axes = whole(0, 2**41), kinds[0].value
            return node, each if axes == 1 else Tuple((each,) * axes)
        if function is indices.elements:
            return node, Tuple(tuple(map(element, items_of(kinds[0]) or ())))
        if function in (shared.shared.array, shared.local.array):
            given = dict(zip(("shape", "dtype"), args, strict=False)) | named
            return node, _declared(given["shape"][1], given["dtype"][1]) if {"shape", "dtype"} <= given.keys() else None
        if function is memory.load and isinstance(one := _type_of(kinds[1]) if len(kinds) > 1 else None, str):
            count = kinds[2].value if len(kinds) > 2 and isinstance(kinds[2], Known) else 1
            return node, Tuple((number(one),) * count) if isinstance(count, int) else None
        if function is shared.const.array_like:
            return node, kinds[0] if isinstance(kinds[0], Array) else None
        return None

    def _function(
        self,
        node: ast.Call,
        function: types.FunctionType,
        old: ast.Call,
        args: list[Typed],
        named: dict[str | None, Kind],
    ) -> Typed:
        """A device function, or a Python function."""
        if signatures := getattr(function, "__simt_signatures__", ()):
            return self._by_signature(node, function, args, signatures)
        if (result := getattr(function, "__simt_types__", None)) is not None:
            return node, several(",".join(result) or "none")
        passed: list[Kind] = []
        for arg, (_, kind) in zip(old.args, args, strict=True):
            if not isinstance(arg, ast.Starred):
                passed.append(widened(kind))
            elif (items := items_of(kind)) is not None:
                passed += [widened(item) for item in items]
            else:
                return self._unknown(node)
        if None in named:
            return self._unknown(node)
        for name, value in self.captured_by(node, function).items():
            if name not in named and name not in function.__code__.co_varnames[: len(passed)]:
                new, named[name] = self.visit(value)
                node.keywords.append(ast.keyword(name, new))
        passed += [Named(str(name), widened(kind)) for name, kind in named.items()]
        typed = self.device_function(node, function, passed)
        if typed is None:
            return node, None
        node.func = self.constant(typed[0], f"typed_{function.__name__.strip('<>')}", node)
        return node, typed[1]

    def _by_signature(self, node: ast.Call, function: Any, args: list[Typed], signatures: tuple) -> Typed:
        """A call of a device function with explicit signatures: the first that changes the fewest types is taken."""
        args = self._spread(args)
        count = len(args) + len(function.__defaults__ or ()) - function.__code__.co_argcount
        args = args + [(self.constant(x, "default", node), Known(x)) for x in (function.__defaults__ or ())[count:]]
        kinds = [kind for _, kind in args]
        found = [(returned, [of_type(type_) for type_ in types]) for returned, types in signatures]
        fitting = [each for each in found if len(each[1]) == len(kinds) and all(map(_fits, kinds, each[1]))]
        if not fitting:
            given = ", ".join(map(described, kinds))
            reason = f"{function.__name__} is compiled for other arguments than {given}"
            self.refuse(node, reason, f"pass ({') or ('.join(', '.join(map(str, types)) for _, types in signatures)})")
            raise Untyped(node)
        types_of = [operand(kind) for kind in kinds]
        returned, taken = min(fitting, key=lambda each: sum(map(operator.ne, types_of, map(operand, each[1]))))
        new = [self._passed(*arg, type_) for arg, type_ in zip(args, taken, strict=True)]
        typed = self.device_function(node, function, [kind for _, kind in new])
        if typed is None:
            raise Untyped(node)
        callee = self.constant(typed[0], f"typed_{function.__name__}", node)
        call = ast.copy_location(ast.Call(callee, [arg for arg, _ in new], []), node)
        result = None if returned is None else of_type(returned)
        return (call, typed[1]) if result is None else self._passed(call, typed[1], result)

    def _passed(self, node: ast.expr, kind: Kind, type_: Kind) -> Typed:
        """A value passed for a type: a number is converted, unless it is an int within the limits of the type."""
        one, other = scalar(kind), scalar(type_)
        if one is None or other is None:
            tuples = items_of(kind) is not None and isinstance(type_, Tuple)
            return (self.brought(node, kind, type_), type_) if tuples else (node, widened(kind))
        if one.name == other.name:
            return node, widened(kind)
        low, high = limits(other.name) if other.name in INTEGERS and one.name != "bool" else (0, -1)
        if one.form == "py" and low <= one.low <= one.high <= high and other.name != "bool":
            return node, widened(one._replace(name=other.name))
        return self.converted(node, kind, other.name), made(other.name)


def _fits(kind: Kind, type_: Kind) -> bool:
    """Whether a declared type accepts an argument."""
    if isinstance(type_, Array):
        return kind == type_ if type_.dtype or type_.record else isinstance(kind, Array)
    if isinstance(type_, Tuple):
        items = items_of(kind) or ()
        return len(items) == len(type_.items) and all(map(_fits, items, type_.items))
    return type_ is None or scalar(kind) is not None


def _declared(shape: Kind, dtype: Kind) -> Kind:
    axes = items_of(shape)
    try:
        return array_of(dtype.value, 1 if axes is None else len(axes)) if isinstance(dtype, Known) else None
    except TypeError:
        return None


def _type_of(kind: Kind) -> str | None:
    """The scalar type that a known type or dtype names."""
    value = kind.value if isinstance(kind, Known) else None
    target = value if isinstance(value, type) else getattr(value, "dtype", value)
    try:
        name = np.dtype(target).name if target is not None else None
    except TypeError:
        return None
    return name if name in CONVERSIONS else None
