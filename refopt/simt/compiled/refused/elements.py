"""Elements of arrays and tuples, and how kinds are told in words."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import Any

from ...base.scalars import FLOATS
from ..kinds import Array, Kind, Known, Range, Record, Scalar, Tuple, items_of, scalar
from .syntax import NewArray, Refusal


def described(kind: Kind) -> str:
    """A kind in words."""
    one = scalar(kind)
    if one is not None:
        return f"a number ({one.name})"
    if isinstance(kind, Array):
        return f"an array of {kind.axes} dimension{'s' * (kind.axes != 1)} ({kind.dtype or kind.record or 'records'})"
    if (items := items_of(kind)) is not None:
        return f"a tuple of {len(items)}"
    if isinstance(kind, Record):
        return "a record"
    if isinstance(kind, Known):
        named = getattr(kind.value, "__name__", None)
        return f"the function {named}" if named else "text" if isinstance(kind.value, str) else repr(kind.value)
    return "something else"


def mixed(kind: Kind) -> bool:
    """Whether a tuple has parts of several types, as far as they are known."""
    items = items_of(kind) or ()
    types = {_type(item) for item in items}
    return len(types) > 1 and None not in types


def _type(kind: Kind) -> Any:
    one = scalar(kind)
    if one is not None:
        return one.name
    if isinstance(kind, Array):
        return ("array", kind.dtype, kind.axes) if kind.dtype else None
    inner = items_of(kind)
    if inner is not None:
        types = tuple(map(_type, inner))
        return None if None in types else types
    return None


def index(node: ast.Subscript, base: Kind, at: Kind) -> Iterator[Refusal]:
    """What Numba refuses of an index."""
    if scalar(base) is not None:
        what = "an assignment by index into" if isinstance(node.ctx, ast.Store) else "an index into"
        yield node, f"{what} {described(base)}", "index an array: a number has no elements"
    if isinstance(base, Range):
        yield node, "an index into a range", "compute the number: start + i * step"
    items = items_of(base)
    if items is not None and not isinstance(node.slice, ast.Slice):
        value = at.value if isinstance(at, Known) else None
        if type(value) is int and not -len(items) <= value < len(items):
            yield node, f"index {value} into a tuple of {len(items)}", "take an index that it has"
        if value is None and scalar(at) is not None and mixed(base):
            instead = "make them one type, or choose by if: i == 0"
            yield node, "a tuple of several types with an index that is not constant", instead
    if isinstance(base, Array):
        yield from _of_array(node, base, at)


def _of_array(node: ast.Subscript, base: Array, at: Kind) -> Iterator[Refusal]:
    written = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
    parts = at.items if isinstance(at, Tuple) else (at,)
    for part in parts:
        one = scalar(part)
        if one is not None and (one.name in FLOATS or one.name == "bool"):
            yield node, f"an index that is {one.name}", "convert it: int(i), or i // 2 in the place of i / 2"
        if isinstance(part, Known) and isinstance(part.value, str) and not base.record:
            yield node, f"the field {part.value!r} of an array without fields", "index it by numbers"
        if isinstance(part, Array) and isinstance(node.ctx, ast.Load):
            reason = NewArray("an array as index, whose result would be a new array")
            yield node, reason, "index by one number at a time"
    count = len(parts) - sum(isinstance(w, ast.Constant) and w.value in (None, ...) for w in written)
    if isinstance(at, Scalar | Tuple | Known) and count > base.axes and not (base.record and not base.axes):
        yield node, f"{count} indices into {described(base)}", "take as many indices as it has dimensions"
