"""Copies of functions with other globals, cells or code, and the names that a function looks up."""

from __future__ import annotations

from collections.abc import Callable
from types import CellType, CodeType, FunctionType
from typing import Any


def copied(
    function: FunctionType,
    scope: dict[str, Any] | None = None,
    cells: tuple | None = None,
    code: CodeType | None = None,
) -> FunctionType:
    """A copy of a function with other globals, closure cells or code."""
    cells = function.__closure__ if cells is None else cells
    scope = function.__globals__ if scope is None else scope
    copy = FunctionType(code or function.__code__, scope, function.__name__, function.__defaults__, cells or None)
    copy.__kwdefaults__, copy.__dict__ = function.__kwdefaults__, dict(function.__dict__)
    copy.__module__, copy.__qualname__, copy.__doc__ = function.__module__, function.__qualname__, function.__doc__
    return copy


def names_in(code: CodeType) -> set[str]:
    """The names of globals and attributes that a function and its inner functions use."""
    names = set(code.co_names)
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            names |= names_in(constant)
    return names


def replaced(function: Any, done: dict[int, Any], value: Callable[[Any, set[str]], Any]) -> FunctionType:
    """A copy of a function in which the globals and closure variables that it uses have other values.

    Args:
        function: the function to copy.
        done: receives the copy under the function's id before `value` is called, so that recursion ends.
        value: returns the replacement of a value, given also the names that the function uses.
    """
    scope = dict(function.__globals__)
    cells = tuple(CellType() for _ in function.__closure__ or ())
    done[id(function)] = new = copied(function, scope, cells)
    names = names_in(function.__code__)
    for name in names & scope.keys():
        scope[name] = value(scope[name], names)
    for cell, old in zip(cells, function.__closure__ or (), strict=True):
        if (held := content(old)) is not old:
            cell.cell_contents = value(held, names)
    return new


def content(cell: CellType) -> Any:
    """The content of a cell; the cell itself if it is still empty."""
    try:
        return cell.cell_contents
    except ValueError:
        return cell
