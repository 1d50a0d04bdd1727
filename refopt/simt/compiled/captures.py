"""Captured arrays: Numba treats arrays of a kernel's module and closure as constants, frozen when it compiles.

Here they are frozen at the first launch: the kernel and the functions that it calls by name run as copies that see
read-only copies of the arrays. A captured device array is treated like an argument.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from types import CellType, FunctionType
from typing import Any

import numpy as np

from ..base.copies import content, copied, names_in
from ..base.places import is_kernels
from ..memory.arrays import DeviceArray
from ..memory.shared import with_fields

_frozen: weakref.WeakKeyDictionary[Any, Any] = weakref.WeakKeyDictionary()


def bound(
    function: Callable, argument: Callable[[DeviceArray, str], Any], prepare: Callable[[Any], Any] | None = None
) -> Callable:
    """A kernel with its captured values as of the first call of this; `argument` wraps each captured device array.

    ``prepare`` is applied to the frozen kernel, so that its result has the same constants.
    """
    if not isinstance(function, FunctionType):
        return function
    if function not in _frozen:
        _frozen[function] = _freeze(function, {})
    copy = _frozen[function]
    seen = copy or function
    if prepare is not None:
        seen = prepare(seen)
    return _with_arrays(seen, argument) if copy is not None and _devices(copy) else seen


def _freeze(function: FunctionType, known: dict[Any, Any]) -> FunctionType | None:
    """A copy with frozen arrays; None if there are none."""
    known[function] = None  # in case it calls itself
    scope = {name: _constant(function.__globals__[name], known) for name in global_names(function)}
    changed = {name: value for name, value in scope.items() if value is not function.__globals__[name]}
    cells, other = [], False
    for cell in function.__closure__ or ():
        held = content(cell)
        value = _constant(held, known)
        same = value is held
        cells.append(cell if same else CellType(value))
        other = other or not same or isinstance(value, DeviceArray)
    if not changed and not other and not any(isinstance(value, DeviceArray) for value in scope.values()):
        return None
    known[function] = copy = copied(function, {**function.__globals__, **changed}, tuple(cells))
    return copy


def global_names(function: FunctionType) -> list[str]:
    """The names that a function, or an inner function, looks up in its module."""
    return [name for name in names_in(function.__code__) if name in function.__globals__]


def _constant(value: Any, known: dict[Any, Any]) -> Any:
    """A captured value as it is from now on: arrays are copied and frozen."""
    if isinstance(value, np.ndarray):
        copy = np.array(value)
        copy.flags.writeable = False
        return with_fields(copy)
    inner = getattr(value, "py_func", None)  # of a function under numba.njit: a GPU would compile it anew
    if inner is not None and type(value).__module__.startswith("numba"):
        value = inner
    if not isinstance(value, FunctionType):
        return value
    if value not in known:
        known[value] = _freeze(value, known) if is_kernels(value.__code__.co_filename) else None
    return known[value] or value


def _devices(function: FunctionType) -> bool:
    values = [function.__globals__[name] for name in global_names(function)]
    values += map(content, function.__closure__ or ())
    return any(isinstance(value, DeviceArray) for value in values)


def _with_arrays(function: FunctionType, argument: Callable[[DeviceArray, str], Any]) -> FunctionType:
    scope = dict(function.__globals__)
    for name in global_names(function):
        if isinstance(scope[name], DeviceArray):
            scope[name] = argument(scope[name], name)
    cells = [
        CellType(argument(held, name)) if isinstance(held := content(cell), DeviceArray) else cell
        for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
    ]
    return copied(function, scope, tuple(cells))
