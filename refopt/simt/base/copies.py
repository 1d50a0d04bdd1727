"""Copies of functions, with other globals, cells or code, and the names by which a function finds what it uses."""

from __future__ import annotations

from types import CellType, CodeType, FunctionType
from typing import Any


def copied(
    function: FunctionType,
    scope: dict[str, Any] | None = None,
    cells: tuple | None = None,
    code: CodeType | None = None,
) -> FunctionType:
    """A function that is as another but for its globals, the cells of its closure, or its code."""
    cells = function.__closure__ if cells is None else cells
    scope = function.__globals__ if scope is None else scope
    copy = FunctionType(code or function.__code__, scope, function.__name__, function.__defaults__, cells or None)
    copy.__kwdefaults__, copy.__dict__ = function.__kwdefaults__, dict(function.__dict__)
    copy.__module__, copy.__qualname__, copy.__doc__ = function.__module__, function.__qualname__, function.__doc__
    return copy


def names_in(code: CodeType) -> set[str]:
    """The names of globals and attributes in a function and those defined in it."""
    names = set(code.co_names)
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            names |= names_in(constant)
    return names


def content(cell: CellType) -> Any:
    """What a cell holds; the cell itself if nothing is in it yet."""
    try:
        return cell.cell_contents
    except ValueError:
        return cell
