"""The names in the text of a function."""

from __future__ import annotations

import ast
from functools import cache
from typing import NamedTuple

from .unassigned import unassigned


class Names(NamedTuple):
    """The names in a function's text.

    Attributes:
        every: all of them.
        stored: those that are assigned.
        maybe: variables that may be read unassigned.
        shuffles: whether it may get an undefined value from a shuffle: it needs a namespace of its own.
    """

    every: frozenset[str]
    stored: frozenset[str]
    maybe: frozenset[str]
    shuffles: bool


@cache  # one text is typed for each closure over it, and for each kind of its arguments
def names_of(node: ast.FunctionDef | ast.Lambda) -> Names:
    """The names in a definition, functions inside it included."""
    parts = list(ast.walk(node))
    names = [part for part in parts if isinstance(part, ast.Name)]
    every = frozenset(name.id for name in names)
    stored = frozenset(name.id for name in names if isinstance(name.ctx, ast.Store))
    called = every | {part.attr for part in parts if isinstance(part, ast.Attribute)}
    shuffles = any(name.startswith("shfl_") for name in called)
    return Names(every, stored, frozenset(unassigned(node)), shuffles)
