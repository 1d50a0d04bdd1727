"""Names and attributes in a kernel whose values Numba cannot compile."""

from __future__ import annotations

import builtins
import cmath
import enum
import operator
import sys
import types
from typing import Any

import numpy as np

from ...base import record
from ...base.numba_types import Type, is_numba_type
from ...base.places import is_internal
from ..syntax import NewArray

# As numba-cuda 0.30 has them, besides those of the record.
_BUILTINS = "enumerate hasattr isinstance iter len next print slice sum tuple type zip"
_OPERATOR = """add and_ contains eq floordiv ge getitem gt iadd iand ifloordiv ilshift imod imul invert ior ipow irshift
is_ is_not isub itruediv ixor le lshift lt mod mul ne neg not_ or_ pos pow rshift setitem sub truediv xor"""
_NUMPY = """all any argmax argmin array_equal asarray atleast_1d atleast_2d atleast_3d average broadcast_shapes
count_nonzero dsplit iscomplexobj isrealobj isscalar mean nanmean nanprod nanstd nansum nanvar prod searchsorted std
sum var vsplit"""
_TYPES = {np.dtype(code).type.__name__ for code in "?bhilqBHILQefdFD"}
_INSTEAD = {
    "all": "write a loop, or cuda.syncthreads_and(int(...)) for the threads of a block",
    "any": "write a loop, or cuda.syncthreads_or(int(...)) for the threads of a block",
    "chr": "pass numbers, and convert them to text in the caller",
    "dict": "use a tuple or an array, by index",
    "filter": "write a loop with if",
    "getattr": "name the attribute: x.size",
    "list": "use a tuple, or cuda.local.array with a constant size",
    "map": "write a loop",
    "open": "read the file in the caller, and pass an array",
    "reversed": "count down: range(n - 1, -1, -1)",
    "set": "use a tuple, or an array",
    "sorted": "sort before the launch, or write the loops in cuda.local.array",
    "str": 'print takes several values: print("x is", x)',
}
_MATHS = {
    **{name: f"math.{name}" for name in ("sqrt", "exp", "floor", "ceil", "trunc", "log1p", "expm1", "exp2", "fabs")},
    "absolute": "abs", "power": "**", "add": "+", "subtract": "-", "multiply": "*", "square": "x * x",
    "reciprocal": "1 / x", "isfinite": "math.isfinite", "isinf": "math.isinf", "copysign": "math.copysign",
    "cbrt": "cuda.cbrt", "clip": "min(max(x, low), high)", "where": "a if condition else b", "max": "a loop with max",
    "min": "a loop with min", "round": "round", "rint": "round",
}
_ALLOCATE = """arange array asarray_chkfinite ascontiguousarray concatenate copy empty empty_like eye full full_like
identity linspace ones ones_like stack zeros zeros_like"""
_OF_ARRAYS = "use cuda.local.array or cuda.shared.array with a constant size, or pass an array"


_MODULES = {builtins: _BUILTINS, cmath: "isclose rect", operator: _OPERATOR, np: _NUMPY}
_COMPILED = {id(getattr(module, name, module)) for module, names in _MODULES.items() for name in names.split()}
_HOST = {"arrays", "devices", "elementwise", "host_memory", "kernel", "pinned", "reduction", "streams"}
_HEAP = 1 << 9  # Py_TPFLAGS_HEAPTYPE: a class that was made by a class statement


def refusal(value: Any, spelled: str) -> tuple[str, str] | None:
    """Why Numba refuses the value of a name or an attribute, and what to write instead; None if it accepts it."""
    if id(value) in _COMPILED or id(value) in record.counts() or value is builtins:
        return None
    if getattr(value, "__name__", "") == "prange":
        return f"{spelled} is for the threads of a CPU", "write range, or let each thread of the grid take a step"
    if isinstance(value, dict | set | frozenset):
        return f"{spelled} is a {type(value).__name__}", "use a tuple, or an array that is an argument"
    if isinstance(value, list):
        return f"{spelled} is a list", "make it a tuple, or a NumPy array"
    if isinstance(value, types.BuiltinFunctionType | types.MethodType | np.ufunc) or _is_of_numpy(value):
        return _function(value, spelled)
    if isinstance(value, types.FunctionType):
        if _is_of_host(value.__module__):
            return f"{spelled} is for the host", "call it before or after the launch"
        marked = hasattr(value, "__simt_device__") or hasattr(value, "__simt_types__")
        if marked or is_internal(value.__code__.co_filename) or is_overloaded(value):
            return None
        return f"{value.__name__} is a plain Python function", "decorate it: @cuda.jit(device=True)"
    if isinstance(value, type):
        return _class(value, spelled)
    home = type(value).__module__
    if _is_of_host(home) and not (hasattr(value, "__cuda_array_interface__") or _is_kernel(value)):
        return f"{spelled} is for the host", "use it before or after the launch"
    if isinstance(value, types.SimpleNamespace) and not any(map(callable, vars(value).values())):
        return f"{spelled} is a SimpleNamespace", "name its values in the module, or make it a namedtuple"
    kept = tuple | np.generic | np.ndarray | enum.Enum | int | float | complex | str | types.SimpleNamespace
    own = isinstance(value, kept | Type) or is_numba_type(value) or _is_kernel(value)
    if own or home.startswith(("numba", "refopt.simt")) or hasattr(value, "__cuda_array_interface__"):
        return None
    if type(value).__flags__ & _HEAP and not callable(value):
        kind = type(value).__name__
        return f"{spelled} is an object of the class {kind}", "pass what it holds as arguments: numbers and arrays"
    return None


def _function(value: Any, spelled: str) -> tuple[str, str]:
    name = getattr(value, "__name__", spelled)
    home = str(getattr(value, "__module__", None) or "numpy").partition(".")[0]
    if home == "numpy":
        if name in _ALLOCATE.split():
            return NewArray(f"{spelled} makes an array"), _OF_ARRAYS
        hint = _MATHS.get(name)
        instead = f"write {hint}" if hint else "write its formula, or a loop"
        return NewArray(f"{spelled} does not exist on a GPU"), instead
    return f"{spelled} does not exist on a GPU", _INSTEAD.get(name, "do it in the caller, and pass the result")


def _class(value: type, spelled: str) -> tuple[str, str] | None:
    if issubclass(value, np.generic) and value.__module__ == "numpy" and value.__name__ not in _TYPES:
        return f"{spelled} is not a GPU type", "use np.float32, np.int32 and the like"
    named = issubclass(value, tuple) and hasattr(value, "_fields")
    if named or issubclass(value, np.generic | enum.Enum | BaseException):
        return None
    home = value.__module__
    if value is np.ndarray:
        return f"{spelled} is not a GPU type", "omit the test: a kernel knows the types of its arguments"
    if _is_of_host(home):
        return f"{spelled} is for the host", "use it before or after the launch"
    if home.startswith(("numba", "refopt.simt", "numpy")):
        return None
    if home == "builtins":
        name = value.__name__
        return f"{spelled} does not exist on a GPU", _INSTEAD.get(name, "use numbers, tuples and arrays")
    return f"{spelled} is a class", "pass numbers and arrays, or an array of records"


def is_overloaded(function: types.FunctionType) -> bool:
    """Whether Numba's `overload` has registered an implementation of a function for kernels."""
    if str(function.__module__).partition(".")[0] == "numba":
        return True
    for name in ("numba.cuda.typing.templates", "numba.core.typing.templates"):
        registry = getattr(sys.modules.get(name), "builtin_registry", None)
        if any(entry[0] is function for entry in getattr(registry, "globals", ())):
            return True
    return False


def _is_of_numpy(value: Any) -> bool:
    """Whether a function is NumPy's, of whichever class."""
    home = getattr(value, "__module__", None)
    plain = callable(value) and not isinstance(value, type)
    return plain and isinstance(home, str) and home.partition(".")[0] == "numpy"


def _is_of_host(module: str | None) -> bool:
    """Whether a module of the executor has names that are for the host."""
    package, _, name = str(module).rpartition(".")
    return name in _HOST and package.startswith(__name__.partition(".compiled")[0])


def _is_kernel(value: Any) -> bool:
    return hasattr(value, "py_func") or hasattr(value, "function")
