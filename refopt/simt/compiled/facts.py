"""Properties of a function's definition that do not depend on its arguments."""

from __future__ import annotations

import ast
from functools import cache
from typing import NamedTuple

from ..base.source import Definition
from ..base.variables import unassigned


class Facts(NamedTuple):
    """Properties of a definition.

    Attributes:
        stored: the names that are assigned.
        unassigned: variables that may be read before they are assigned.
        shuffles: whether a shuffle may give it an undefined value, so that it needs a namespace of its own.
    """

    stored: frozenset[str]
    unassigned: set[str]
    shuffles: bool


@cache
def facts_of(node: Definition) -> Facts:
    """The facts of a definition, computed once, since a function may be typed many times."""
    parts = list(ast.walk(node))
    names = [part for part in parts if isinstance(part, ast.Name)]
    shuffles = any(str(getattr(part, "attr", getattr(part, "id", ""))).startswith("shfl_") for part in parts)
    stored = frozenset(name.id for name in names if isinstance(name.ctx, ast.Store))
    return Facts(stored, unassigned(node), shuffles)
