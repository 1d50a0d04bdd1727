"""Calls, and attributes of modules, that Numba refuses."""

from __future__ import annotations

import ast
import inspect
import math
import types
from collections.abc import Iterator
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

from ...base import record, state
from ...base.places import is_internal
from ...machine import atomics, barriers, half, indices
from ...machine.warps import syncwarp
from ...memory import shared
from ..kinds import TEXTS, Array, Kind, Known, Scalar, Tuple, items_of
from ..syntax import NewArray, Refusal
from ..uses import sort, unfit
from .shapes import declared, not_constant

_USES = {id(function): function.__name__ for function in (print, len, tuple)}
# Functions that take no keyword arguments, besides atomics.
_BY_PLACE = set(map(id, (
    abs, int, float, bool, round, divmod, complex, pow, min, max, enumerate, zip, range, len, tuple, print, syncwarp,
    barriers.nanosleep, half.fma, half.cbrt, indices.selp, indices.popc, indices.clz, indices.brev, indices.ffs,
)))
_REDUCTIONS = {"sum", "prod", "mean", "std", "var", "all", "any", "argmax", "argmin", "item"}
_METHODS = {
    "append": "use cuda.local.array with a constant size, and count its elements",
    "copy": "copy element by element into a cuda.local.array",
    "astype": "convert each element: np.float32(x[i])",
    "max": "write a loop with max", "min": "write a loop with min", "sort": "sort before the launch",
    "dot": "write the loop of the product", "format": 'print takes several values: print("x is", x)',
    "tolist": "use the array itself", "cumsum": "write a loop", "flatten": "use x.reshape, or several indices",
    "ravel": "use x.reshape, or several indices",
}
_NAMESPACES = (shared.shared, shared.local, shared.const, barriers.cg)
# Names that numba.cuda offers to kernels and the executor lacks: using one raises `Unsupported` at run time.
_LACKED = {"libdevice", "bf16", "bfloat16", "experimental", "htanh", "htanh_approx"}


def method(name: str) -> str:
    """What to write instead of a method that is not available in kernels."""
    return _METHODS.get(name, "write it with loops, operators and math, or do it in the caller")


def lacking(owner: Any, name: str, spelled: str) -> tuple[str, str] | None:
    """Why an object in a kernel does not have an attribute, and what to write instead."""
    if isinstance(owner, state.Dim3) and name not in "xyz":
        return f"{spelled}: there are only x, y and z", "use one of these"
    if any(owner is each for each in (int, float, bool, complex, str)):
        return f"{spelled}: a Python type has no methods in a kernel", method(name)
    executors = isinstance(owner, types.ModuleType) and is_internal(str(getattr(owner, "__file__", "")))
    if executors or any(owner is each for each in (*_NAMESPACES, half.fp16)):
        known = name in vars(owner) or name in ("laneid", *_LACKED)
        below = owner.__dict__.get("_below") if executors else None
        if known or (below and below(name)):
            return None
        return f"{spelled}: there is no such name", "see docs/executor-names.md for the names that exist"
    home = owner.__name__.partition(".")[0] if isinstance(owner, types.ModuleType) else ""
    if home in ("math", "numpy", "operator") and not hasattr(owner, name):
        return f"{spelled}: the module has no {name}", method(name)
    return None


_signatures: WeakKeyDictionary[Any, inspect.Signature] = WeakKeyDictionary()


def _signature(function: types.FunctionType) -> inspect.Signature:
    """The signature of a function, which may be called for many kinds of arguments."""
    if function not in _signatures:
        _signatures[function] = inspect.signature(function)
    return _signatures[function]


def device(node: ast.Call, function: types.FunctionType) -> Iterator[Refusal]:
    """What Numba refuses in a call of a Python function, by the function's definition."""
    if is_internal(function.__code__.co_filename) or hasattr(function, "__simt_types__"):
        return
    if function.__code__.co_flags & inspect.CO_VARKEYWORDS:
        yield node, f"{function.__name__} has a ** parameter", "name each parameter"
    yield from _arguments(node, function, f"a call of {function.__name__} with the wrong arguments")


def _arguments(node: ast.Call, function: types.FunctionType, what: str) -> Iterator[Refusal]:
    """Arguments that a function does not take."""
    if not any(isinstance(arg, ast.Starred) for arg in node.args):
        try:
            _signature(function).bind(*node.args, **{str(keyword.arg): None for keyword in node.keywords})
        except TypeError as error:
            yield node, f"{what}: {error}", f"pass {', '.join(_signature(function).parameters)}"


def literals(typer: Any, node: ast.Call, function: types.FunctionType, needed: frozenset[str]) -> Iterator[Refusal]:
    """Arguments that a device function uses as sizes of arrays: each must be a literal."""
    names = function.__code__.co_varnames
    given = dict(zip(names, node.args, strict=False)) | {keyword.arg: keyword.value for keyword in node.keywords}
    for name in sorted(needed & given.keys()):
        if not_constant(typer, given[name]) is not None:
            reason = f"{ast.unparse(given[name])}, which {function.__name__} uses as an array size, is not a constant"
            yield given[name], reason, "pass a number, or a global that is one"


def call(typer: Any, node: ast.Call) -> Iterator[Refusal]:
    """What Numba refuses in a call, by the kinds of the function and of its arguments."""
    kind, place = typer.kinds.get(node.func), node.func
    kinds = [typer.kinds.get(arg) for arg in node.args]
    yield from unfit("call", node, kind)
    of_array = isinstance(place, ast.Attribute) and isinstance(typer.kinds.get(place.value), Array)
    if isinstance(place, ast.Attribute) and of_array and (node.keywords or (node.args and place.attr in _REDUCTIONS)):
        yield node, NewArray(f"{place.attr} of an array with arguments"), "write a loop, or x[i]"
    if not isinstance(kind, Known):
        return
    function, name = kind.value, ast.unparse(node.func)
    executors = isinstance(function, types.FunctionType) and is_internal(function.__code__.co_filename)
    atomic = executors and function.__module__ == atomics.__name__
    if node.keywords and (id(function) in _BY_PLACE or atomic):
        reason = f"{name} with the keyword argument {node.keywords[0].arg}"
        yield node.keywords[0].value, reason, "pass arguments by position, or write a loop"
    use = _USES.get(id(function), "")
    for arg, given in zip(node.args, kinds, strict=True):
        if use == "print" and any(sort(part) == "text" for part in items_of(given) or ()):
            given = TEXTS  # Numba prints constant text, but not inside a tuple
        yield from unfit(use, arg, given, name)
    yield from _counted(node, function, name)
    if isinstance(function, np.ufunc) and node.keywords:
        instead = "pass the array for the result as the last argument"
        yield node.keywords[0].value, f"{name} with {node.keywords[0].arg}", instead
    if executors:
        yield from _executors(typer, node, function, name)
    if atomic and kinds:
        yield from _atomic(node, function.__name__, kinds, name)


def _counted(node: ast.Call, function: Any, name: str) -> Iterator[Refusal]:
    """Calls with a number of arguments that Numba does not support."""
    count = len(node.args)
    if any(isinstance(arg, ast.Starred) for arg in node.args):
        return
    takes = record.counts().get(id(function), [count])
    plain = isinstance(function, types.BuiltinFunctionType | type) and function not in (max, min)
    if plain and count not in takes:
        hint = "math.log(x) / math.log(base)" if function is math.log else f"pass {takes[0]}"
        yield node, f"{name} with {count} argument{'s' * (count != 1)}", hint


def _executors(typer: Any, node: ast.Call, function: types.FunctionType, name: str) -> Iterator[Refusal]:
    """What Numba refuses in a call of a `numba.cuda` function."""
    if not node.keywords:
        yield from _arguments(node, function, name)
    if function in (shared.shared.array, shared.local.array):
        yield from declared(typer, node)
    if function in (indices.grid, indices.gridsize):
        axes = typer.kinds.get(node.args[0] if node.args else node.keywords[0].value)
        if not isinstance(axes, Known) or axes.value not in (1, 2, 3):
            yield node, f"{name} with an argument other than the number 1, 2 or 3", "write the number of dimensions"


def _atomic(node: ast.Call, operation: str, kinds: list[Kind], name: str) -> Iterator[Refusal]:
    array = kinds[0]
    if not isinstance(array, Array) or array.dtype is None:
        return
    if operation != "compare_and_swap" and len(kinds) > 1:
        parts = kinds[1].items if isinstance(kinds[1], Tuple) else (kinds[1],)
        single = isinstance(kinds[1], Tuple) and array.axes == 1
        if isinstance(kinds[1], Tuple | Scalar | Known) and (len(parts) != array.axes or single):
            reason = f"{name} with {len(parts)} of {array.axes} indices"
            yield node, reason, "give one for each dimension, two or three in a tuple"
