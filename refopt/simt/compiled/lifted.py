"""Lifts functions of scalars, of the executor, NumPy and `math`, to functions of undefined values.

Kernels compute with NumPy's scalars and the executor's functions, which know nothing of `Undefined`. So when a kernel
that shuffles is watched, a copy of it runs: in its namespace, and those of the functions that it calls, wrappers that
propagate undefined values replace these functions.
"""

from __future__ import annotations

import functools
import itertools
import weakref
from collections.abc import Callable
from types import FunctionType
from typing import Any

import numpy as np

from ..base.copies import copied
from ..base.places import is_kernels
from ..base.undefined import Undefined
from .captures import global_names

_BUILTINS = {one.__name__: one for one in (abs, bool, complex, divmod, float, int, max, min, pow, round)}
# Where the functions are that act on threads or memory: these report undefined values, or pass them on.
_ACTS = tuple(
    f"{__package__.rpartition('.')[0]}.{name}"
    for name in ("machine.atomics", "machine.barriers", "machine.cache_hints", "machine.warps", "memory", "vectors")
)
_SCALARS = bool, int, float, complex, np.generic
_PREFIX = "_simt_"  # of the executor's functions in a compiled namespace
SHUFFLES = "_simt_shuffles"  # in the namespace of a compiled function: whether it contains a shuffle
_copies: weakref.WeakKeyDictionary[FunctionType, FunctionType] = weakref.WeakKeyDictionary()


def with_undefined(function: Any) -> Any:
    """A copy of a compiled kernel that can compute with undefined values; the kernel itself if it never gets any."""
    if not isinstance(function, FunctionType) or not _shuffles(function, set()):
        return function
    if function not in _copies:
        _copies[function] = _copy(function, {})
    return _copies[function]


def _shuffles(function: FunctionType, seen: set[FunctionType]) -> bool:
    """Whether a compiled function, or a function that it calls, contains a shuffle."""
    seen.add(function)
    names = function.__globals__
    return SHUFFLES in names and (
        names[SHUFFLES]
        or any(_shuffles(one, seen) for one in names.values() if isinstance(one, FunctionType) and one not in seen)
    )


def _copy(function: FunctionType, known: dict[FunctionType, FunctionType]) -> FunctionType:
    if function not in known:
        names: dict[str, Any] = {name: lifted(value) for name, value in _BUILTINS.items()}
        known[function] = copied(function, names)
        scope = function.__globals__
        used = scope if SHUFFLES in scope else global_names(function)  # a scope without it is a whole module's
        names |= {name: _lifted(name, scope[name], known) for name in used}
    return known[function]


def _lifted(name: str, value: Any, known: dict[FunctionType, FunctionType]) -> Any:
    """The value in a copy for a name of a compiled namespace."""
    if isinstance(value, FunctionType) and (SHUFFLES in value.__globals__ or is_kernels(value.__code__.co_filename)):
        return _copy(value, known)
    if isinstance(value, type) and issubclass(value, np.generic):
        return _type(value)
    acts = not callable(value) or str(getattr(value, "__module__", "")).startswith(_ACTS)
    ours = value is _BUILTINS.get(name) or (name.startswith(_PREFIX) and not acts)
    return lifted(value) if ours else value


def lifted(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function that returns an undefined value if an argument is undefined and the result depends on it."""

    @functools.wraps(function, updated=())
    def apply(*args: Any, **named: Any) -> Any:
        for first in args:
            if type(first) is Undefined:
                break
        else:
            return function(*args, **named)
        if not all(isinstance(arg, (Undefined, *_SCALARS)) for arg in args):
            return function(*args, **named)
        # Both truth values are tried: `o | True` is true whatever o is.
        ways = [(False, True) if _is_open(arg) else (arg.value if type(arg) is Undefined else arg,) for arg in args]
        results = [function(*values, **named) for values in itertools.product(*ways)]
        if all(_is_open(arg) or type(arg) is not Undefined for arg in args) and all(r == results[0] for r in results):
            return results[0]
        result = results[-1]
        if isinstance(result, tuple):
            return tuple(Undefined(one, first.why, first.place, first.rule) for one in result)
        return Undefined(result, first.why, first.place, first.rule)

    return apply


_types: dict[Any, Any] = {}


def _type(base: Any) -> Any:
    """A subclass of a NumPy type whose conversion propagates undefined values."""
    if base is np.bool_:  # which cannot be subclassed
        return base
    if base not in _types:
        compute = lifted(base)
        _types[base] = type(base.__name__, (base,), {"__new__": lambda cls, *args: compute(*args)})
    return _types[base]


def _is_open(arg: Any) -> bool:
    return type(arg) is Undefined and isinstance(arg.value, bool | np.bool_)
