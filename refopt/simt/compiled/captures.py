"""Captured device arrays, which are treated like arguments; other captured values are frozen when a kernel is typed."""

from __future__ import annotations

from collections.abc import Callable
from types import CellType, FunctionType
from typing import Any

from ..base.copies import content, copied, names_in
from ..memory.arrays import DeviceArray


def bound(function: Callable, argument: Callable[[DeviceArray, str], Any]) -> Callable:
    """A kernel with its captured device arrays as a launch sees them: `argument` wraps each."""
    if not isinstance(function, FunctionType):
        return function
    names, cells = global_names(function), [content(cell) for cell in function.__closure__ or ()]
    if not any(isinstance(value, DeviceArray) for value in (*map(function.__globals__.get, names), *cells)):
        return function
    scope = dict(function.__globals__)
    for name in names:
        if isinstance(scope[name], DeviceArray):
            scope[name] = argument(scope[name], name)
    new = [
        CellType(argument(held, name)) if isinstance(held, DeviceArray) else cell
        for name, held, cell in zip(function.__code__.co_freevars, cells, function.__closure__ or (), strict=True)
    ]
    return copied(function, scope, tuple(new))


def global_names(function: FunctionType) -> list[str]:
    """The names that a function, or an inner function, looks up in its module."""
    return [name for name in names_in(function.__code__) if name in function.__globals__]
