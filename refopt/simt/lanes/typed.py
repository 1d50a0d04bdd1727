"""The typed tree of a function, from which its form for lanes is generated."""

from __future__ import annotations

import ast
import copy
import types
from typing import Any

from ..base.conversions import wrapped
from ..base.places import is_kernels
from ..base.scalars import UNSIGNED
from ..base.source import definition
from ..compiled.calls import Callee
from ..compiled.expressions import Later, Typed
from ..compiled.expressions import Unsupported as Untypable
from ..compiled.kinds import INT64, Kind, Scalar, limits
from ..compiled.specialize import Typer

_LOW, _HIGH = limits("int64")


class Refused(Exception):
    """A kernel, or a launch of it, cannot run by lanes; the message says why."""


class LaneTyper(Typer):
    """The typing of a function whose values are arrays over the lanes, in which an int64 wraps anyway."""

    def __init__(self, function: types.FunctionType, node: Any, kinds: tuple[Kind, ...], callee: Any) -> None:
        super().__init__(function, node, kinds)
        self.callee = callee

    def refuse(self, node: ast.AST, reason: str, instead: str, later: bool = False) -> None:
        """Numba's refusals were reported when the kernel was typed for threads."""
        if later:
            raise Later from Untypable(reason)

    def raw(self, node: ast.expr, test: bool = False) -> Typed:
        """An expression, with its kind as an attribute."""
        new, kind = super().raw(node, test)
        new = copy.copy(new) if new is node else new  # its tree may be shared with other functions
        new.typed_as = kind  # type: ignore[attr-defined]
        return new, kind

    def settled(self, node: ast.expr, kind: Kind) -> Typed:
        """An integer wrapped to 64 bits: only Python ints, for values that all lanes share, can exceed them."""
        if not isinstance(kind, Scalar) or (kind.low >= _LOW and kind.high <= _HIGH) or kind.name in UNSIGNED:
            return node, kind
        return self.apply(wrapped, "wrapped", node, node), INT64._replace(form=kind.form)

    def _guarded(self, *_: Any) -> None:
        """None, so that a division or a shift calls its function, which tests the second operand."""

    def device_function(self, node: ast.AST, function: types.FunctionType, kinds: list[Kind]) -> Callee | None:
        """The form of a device function for lanes, and the kind of its result."""
        return self.callee(function, tuple(kinds)) if is_kernels(function.__code__.co_filename) else None


def typed(
    function: types.FunctionType, kinds: tuple[Kind, ...], callee: Any
) -> tuple[LaneTyper, ast.FunctionDef, Kind]:
    """The typing of a function for kinds of arguments, its tree, and the kind of its result.

    ``callee`` makes the forms of the functions that it calls.

    Raises:
        Refused: it cannot be typed.
    """
    node = definition(function)
    if node is None:
        raise Refused(f"the source of {function.__name__} cannot be read")
    try:
        typer = LaneTyper(function, node, kinds, callee)
        body = node.body if isinstance(node, ast.FunctionDef) else ast.copy_location(ast.Return(node.body), node.body)
        new = typer.settle(body if isinstance(body, list) else [body])
        result = typer.result()
        typer.namespace()
    except Untypable as reason:
        raise Refused(f"{function.__name__} is not typed: {reason}") from None
    tree = ast.FunctionDef(function.__name__, node.args, new, [], None)
    return typer, ast.fix_missing_locations(ast.copy_location(tree, node)), result
