"""What Numba refuses of calls, of what is looped over, and of the attributes of modules."""

from __future__ import annotations

import ast
import inspect
import math
import types
from collections.abc import Iterator
from typing import Any

import numpy as np

from ...base import state
from ...base.places import is_internal
from ...machine import atomics, barriers, half, indices
from ...machine.warps import syncwarp
from ...memory import shared
from .. import functions
from ..kinds import Array, Kind, Known, Record, Scalar, Tuple, items_of, scalar
from .elements import described, mixed
from .shapes import declared, not_constant
from .syntax import NewArray, Refusal

_OF_NUMBERS = (abs, int, float, bool, round, divmod, complex, pow, *vars(math).values())
_TAKE_NO_NAMES = (*_OF_NUMBERS[:8], min, max, enumerate, zip, range, len, tuple)
_PREDICATES = (barriers.syncthreads_count, barriers.syncthreads_and, barriers.syncthreads_or)
# What takes no arguments by name.
_PLACES = (syncwarp, barriers.nanosleep, half.fma, half.cbrt, indices.selp, indices.popc, indices.clz, indices.brev,
           indices.ffs)  # fmt: skip
_REDUCTIONS = {"sum", "prod", "mean", "std", "var", "all", "any", "argmax", "argmin", "item"}
_WHOLE_ATOMICS = {"and_", "or_", "xor", "inc", "dec", "exch", "cas", "compare_and_swap"}
_ELEMENTS = "loop over the elements, or let each thread take one: x[i]"
_METHODS = {
    "append": "use cuda.local.array with a constant size, and count what is in it",
    "copy": "copy by elements into cuda.local.array",
    "astype": "convert each element: np.float32(x[i])",
    "max": "write a loop with max", "min": "write a loop with min", "sort": "sort before the launch",
    "dot": "write the loop of the product", "format": 'print takes several values: print("x is", x)',
    "tolist": "use the array itself", "cumsum": "write a loop", "flatten": "use x.reshape, or several indices",
    "ravel": "use x.reshape, or several indices",
}  # fmt: skip
_NAMESPACES = (shared.shared, shared.local, shared.const, barriers.cg)
# What numba.cuda has for kernels and the executor has not: it says so itself, where a kernel comes there.
_LACKED = {"libdevice", "bf16", "bfloat16", "experimental", "htanh", "htanh_approx"}


def method(name: str) -> str:
    """What to write instead of a method that kernels do not have."""
    return _METHODS.get(name, "write it with loops, operators and math, or do it in the caller")


def lacking(owner: Any, name: str, spelled: str) -> tuple[str, str] | None:
    """Why an object that a kernel names has no such attribute, and what to write."""
    if isinstance(owner, state.Dim3) and name not in "xyz":
        return f"{spelled}: there are x, y and z", "take one of these"
    if any(owner is each for each in (int, float, bool, complex, str)):
        return f"{spelled}: a type of Python's has no methods in a kernel", method(name)
    executors = isinstance(owner, types.ModuleType) and is_internal(str(getattr(owner, "__file__", "")))
    if executors or any(owner is each for each in (*_NAMESPACES, half.fp16)):
        known = name in vars(owner) or name in ("laneid", *_LACKED)
        below = owner.__dict__.get("_below") if executors else None
        if known or (below and below(name)):
            return None
        return f"{spelled}: there is no such name", "see docs/executor-names.md for those that there are"
    home = owner.__name__.partition(".")[0] if isinstance(owner, types.ModuleType) else ""
    if home in ("math", "numpy", "operator") and not hasattr(owner, name):
        return f"{spelled}: the module has no {name}", method(name)
    return None


def iterated(node: ast.expr, kind: Kind) -> Iterator[Refusal]:
    """What Numba refuses to loop over."""
    if scalar(kind) is not None:
        yield node, f"a loop over {described(kind)}", "loop over range(n)"
    elif isinstance(kind, Known) and isinstance(kind.value, str):
        yield node, "a loop over text", "loop over a tuple of numbers"
    elif mixed(kind):
        yield node, "a loop over a tuple of several types", "make them one type, or write the steps out"


def device(node: ast.Call, function: types.FunctionType) -> Iterator[Refusal]:
    """What Numba refuses of a call of a function of Python's, by its definition."""
    if is_internal(function.__code__.co_filename) or hasattr(function, "__simt_types__"):
        return
    if function.__code__.co_flags & inspect.CO_VARKEYWORDS:
        yield node, f"{function.__name__} has a ** parameter", "name each parameter"
    if any(isinstance(arg, ast.Starred) for arg in node.args):
        return
    try:
        inspect.signature(function).bind(*node.args, **{str(keyword.arg): None for keyword in node.keywords})
    except TypeError as error:
        yield node, f"a call of {function.__name__} whose arguments do not fit: {error}", "see its parameters"


def literals(typer: Any, node: ast.Call, function: types.FunctionType, needed: frozenset[str]) -> Iterator[Refusal]:
    """Arguments that a device function uses as sizes of arrays: each has to be a literal."""
    names = function.__code__.co_varnames
    given = dict(zip(names, node.args, strict=False)) | {keyword.arg: keyword.value for keyword in node.keywords}
    for name in sorted(needed & given.keys()):
        if not_constant(typer, given[name]) is not None:
            reason = f"{ast.unparse(given[name])}, which {function.__name__} has as the size of an array: no constant"
            yield given[name], reason, "pass a number, or a global that is one"


def call(typer: Any, node: ast.Call) -> Iterator[Refusal]:
    """What Numba refuses of a call, by the kinds of the function and of its arguments."""
    kind = typer.kinds.get(node.func)
    kinds = [typer.kinds.get(arg) for arg in node.args]
    plain = isinstance(kind, Known) and (kind.value is None or isinstance(kind.value, str | tuple))
    if plain or isinstance(kind, Array | Tuple | Record) or scalar(kind) is not None:
        yield node, f"a call of {described(kind)}", "an element is x[i], with brackets"
    place = node.func
    of_array = isinstance(place, ast.Attribute) and isinstance(typer.kinds.get(place.value), Array)
    if isinstance(place, ast.Attribute) and of_array and (node.keywords or (node.args and place.attr in _REDUCTIONS)):
        yield node, NewArray(f"{place.attr} of an array with arguments"), "write a loop, or x[i]"
    if not isinstance(kind, Known):
        return
    function, name = kind.value, ast.unparse(node.func)
    starred = any(isinstance(arg, ast.Starred) for arg in node.args)
    yield from _of_python(node, function, kinds)
    if isinstance(function, type) and issubclass(function, np.generic) and any(map(_is_text, kinds)):
        yield node, f"{name} of text", "write the number"
    if isinstance(function, np.ufunc):
        yield from _ufunc(node, function, kinds, name)
    whole = [kind for kind in kinds if isinstance(kind, Array | Tuple) or _is_text(kind)]
    if whole and any(function is each for each in _OF_NUMBERS) and not (function is float and _is_text(kinds[0])):
        yield node, f"{name} of {described(whole[0])}", _ELEMENTS
    of_math = isinstance(function, types.BuiltinFunctionType)
    if of_math and (function in functions.ONE or function in functions.TWO):
        takes = 1 if function in functions.ONE else 2
        if len(kinds) != takes and not starred:
            hint = "math.log(x) / math.log(base)" if function is math.log else f"give it {takes}"
            yield node, f"{name} with {len(kinds)} argument{'s' * (len(kinds) != 1)}", hint
    if isinstance(function, types.FunctionType) and is_internal(function.__code__.co_filename):
        yield from _executors(typer, node, function, kinds, starred)


def _is_text(kind: Kind) -> bool:
    return isinstance(kind, Known) and isinstance(kind.value, str)


def _of_python(node: ast.Call, function: Any, kinds: list[Kind]) -> Iterator[Refusal]:
    """What Numba refuses of a call of a function of Python's own."""
    if function is print:
        if node.keywords:
            yield node.keywords[0].value, f"print with {node.keywords[0].arg}", "print values alone"
        for arg, kind in zip(node.args, kinds, strict=True):
            if isinstance(kind, Array) or (isinstance(kind, Known) and isinstance(kind.value, complex | None)):
                yield arg, f"print of {described(kind)}", "print its elements"
    elif node.keywords and any(function is each for each in _TAKE_NO_NAMES):
        reason = f"{function.__name__} with {node.keywords[0].arg} by name"
        yield node.keywords[0].value, reason, "give arguments by their places, or write a loop"
    if function is pow and len(kinds) > 2:
        yield node, "pow with three arguments", "write pow(x, n) % m"
    if function is int and len(kinds) > 1:
        yield node, "int with a base", "read numbers in the caller"
    if function is range and any(isinstance(kind, Array | Tuple) or _is_text(kind) for kind in kinds):
        yield node, f"range of {described(kinds[0])}", "write range(x.size) or range(len(x))"
    if function is tuple and kinds and isinstance(kinds[0], Array):
        yield node, "a tuple of an array", "index the array: how long it is, is known at run time alone"
    if function is len and kinds and scalar(kinds[0]) is not None:
        yield node, f"len of {described(kinds[0])}", "is it an argument that should be an array?"


def _ufunc(node: ast.Call, function: np.ufunc, kinds: list[Kind], name: str) -> Iterator[Refusal]:
    if node.keywords:
        yield node.keywords[0].value, f"{name} with {node.keywords[0].arg}", "give the result's array as last argument"
    elif any(isinstance(kind, Array) for kind in kinds) and len(kinds) <= function.nin:
        yield node, NewArray(f"{name} of a whole array, whose result would be a new array"), _ELEMENTS


def _executors(
    typer: Any, node: ast.Call, function: types.FunctionType, kinds: list[Kind], starred: bool
) -> Iterator[Refusal]:
    """What Numba refuses of a call of a function of `numba.cuda`."""
    name = ast.unparse(node.func)
    if not starred and not node.keywords:
        try:
            inspect.signature(function).bind(*node.args)
        except TypeError as error:
            yield node, f"{name}: {error}", "see its parameters"
    if node.keywords and (any(function is each for each in _PLACES) or function.__module__ == atomics.__name__):
        yield node.keywords[0].value, f"{name} with {node.keywords[0].arg} by name", "give arguments by their places"
    if function in (shared.shared.array, shared.local.array):
        yield from declared(typer, node)
    if function in (indices.grid, indices.gridsize):
        axes = typer.kinds.get(node.args[0] if node.args else node.keywords[0].value)
        if not isinstance(axes, Known) or axes.value not in (1, 2, 3):
            yield node, f"{name} with other than the number 1, 2 or 3", "write how many dimensions as a number"
    one = scalar(kinds[0] if kinds else None)
    if function in _PREDICATES and one is not None and one.name in ("bool", "float16", "float32", "float64"):
        yield node.args[0], f"{name} of {described(kinds[0])}", "make it an integer: int(...)"
    if function.__module__ == atomics.__name__ and kinds:
        yield from _atomic(node, function.__name__, kinds, name)


def _atomic(node: ast.Call, operation: str, kinds: list[Kind], name: str) -> Iterator[Refusal]:
    array = kinds[0]
    if scalar(array) is not None or items_of(array) is not None:
        yield node.args[0], f"{name} on {described(array)}", "it takes an array, then an index, then a value"
    if not isinstance(array, Array) or array.dtype is None:
        return
    allowed = atomics.COUNTERS if operation in ("inc", "dec") else atomics.WHOLE
    types_of_it = allowed if operation in _WHOLE_ATOMICS else atomics.NUMBERS
    if array.dtype not in types_of_it:
        expected = ", ".join(sorted(types_of_it))
        yield node, f"{name} on {described(array)}", f"it takes arrays of {expected}"
    if operation != "compare_and_swap" and len(kinds) > 1:
        parts = kinds[1].items if isinstance(kinds[1], Tuple) else (kinds[1],)
        single = isinstance(kinds[1], Tuple) and array.axes == 1
        if isinstance(kinds[1], Tuple | Scalar | Known) and (len(parts) != array.axes or single):
            reason = f"{name} with {len(parts)} of {array.axes} indices"
            yield node, reason, "give as many as it has dimensions, two or three in a tuple"
    for arg, kind in zip(node.args[2:], kinds[2:], strict=True):
        nothing = isinstance(kind, Known) and kind.value is None
        if isinstance(kind, Array | Tuple) or nothing or _is_text(kind):
            yield arg, f"{name} of {described(kind)}", "give it one number"
