"""Sizes and types of shared and local arrays: which expressions Numba accepts as compile-time constants."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import Any

from ..kinds import Kind, Known, Scalar, Tuple, items_of
from ..syntax import Refusal

_SIZE = "write a number, or the name of a global that is one: N = 64 outside the kernel"


def declared(typer: Any, node: ast.Call) -> Iterator[Refusal]:
    """What Numba refuses in calls of ``cuda.shared.array`` and ``cuda.local.array``."""
    named = {keyword.arg: keyword.value for keyword in node.keywords}
    given = dict(zip(("shape", "dtype"), node.args, strict=False)) | named
    if "shape" not in given or "dtype" not in given:
        yield node, "an array without a size or a type", "write cuda.shared.array(64, np.float32)"
        return
    if (part := not_constant(typer, given["shape"])) is not None:
        spelled = ast.unparse(part)
        yield part, f"the size {spelled} of an array is not a compile-time constant", _SIZE
    kind = typer.kinds.get(given["dtype"])
    if isinstance(kind, Scalar | Tuple) or (isinstance(kind, Known) and kind.value in (int, float, bool, complex)):
        spelled = ast.unparse(given["dtype"])
        yield given["dtype"], f"{spelled} as the type of an array", "write np.float32, np.int32 and the like"


def not_constant(typer: Any, node: ast.expr) -> ast.expr | None:
    """The part of a size that is not constant, if any."""
    if isinstance(node, ast.Tuple):
        return next((found for part in node.elts if (found := not_constant(typer, part)) is not None), None)
    return None if is_constant(typer, node) else node


def is_constant(typer: Any, node: ast.expr) -> bool:
    """Whether an expression is a literal to Numba; for a parameter, the caller decides."""
    kind = typer.kinds.get(node)
    if isinstance(node, ast.Attribute) and node.attr == "warpsize":
        return False
    if isinstance(kind, Known):
        return _whole(kind)
    if isinstance(node, ast.Name):
        values = typer.values_of(node.id)
        if node.id in typer.parameters:
            typer.literals.setdefault(node.id, node)
            return True
        items = items_of(kind)
        if items is not None:
            return all(_whole(item) or (isinstance(item, Scalar) and item.low == item.high) for item in items)
        single = isinstance(kind, Scalar) and kind.name == "int64" and kind.low == kind.high
        return single and bool(values) and all(isinstance(value, ast.Constant | ast.Name) for value in values)
    if isinstance(node, ast.Subscript):
        base = items_of(typer.kinds.get(node.value))
        at = typer.kinds.get(node.slice)
        return base is not None and isinstance(at, Known) and isinstance(kind, Scalar) and kind.low == kind.high
    return False


def _whole(kind: Kind) -> bool:
    if not isinstance(kind, Known):
        return False
    values = kind.value if type(kind.value) is tuple else (kind.value,)
    return all(type(value) is int and value >= 0 for value in values)
