"""Integers that do not fit in an int32: which are truncated on purpose, and which overflow."""

from __future__ import annotations

import ast
import linecache
from collections.abc import Iterator
from typing import Any

import numpy as np

from ..base.errors import IntegerError
from ..base.places import here, report
from ..base.source import around, covers
from ..base.state import current
from ..base.variables import stores

_BITS = ast.BitOr, ast.BitXor, ast.BitAnd, ast.LShift, ast.Invert


def check_stored(value: Any, dtype: np.dtype, array: str) -> None:
    """Check an int32 that the running thread is about to store and that may be a truncated larger integer.

    A value that is cast and stored in an int32 array is truncated on purpose. So may be a word of up to 32 bits that
    bitwise operators have assembled.
    """
    whole, lowest, line = current.thread.lost
    current.thread.lost = None
    if lowest != value or dtype.kind != "i":
        return
    place = here()
    if dtype.itemsize == 4:
        file, at = place.filename or "", place.line or 0
        cast = line != at or "int32(" in linecache.getline(file, at)
        if cast or (0 <= whole < 2**32 and _are_bits(file, at)):
            return
    elif dtype.itemsize < 8:
        return
    what = f"overflow of int32: {whole} is stored in {array}, {dtype}, as {value} (rule int32-overflow)"
    report(IntegerError(what, place, array=array))


def check_wrapped(value: int, name: str) -> None:
    """Report an integer that a signed type cannot represent, except on a line with bitwise operators, as in a hash."""
    place = here()
    every = ast.walk(around(place.filename or "", place.line or 0) or ast.Pass())
    if not any(isinstance(getattr(one, "op", None), _BITS) and covers(one, place.line or 0) for one in every):
        report(IntegerError(f"overflow of {name}: {value}; a GPU may not wrap it (rule signed-overflow)", place))


def _are_bits(filename: str, line: int) -> bool:
    """Whether a line stores a constant, or a value assembled by bitwise operators, there or in its variables."""
    function = around(filename, line)
    stored = [one for one in ast.walk(function or ast.Pass()) if isinstance(one, ast.Assign | ast.AugAssign)]
    relevant = [one for one in stored if covers(one, line)]
    if all(isinstance(one, ast.Assign) and isinstance(one.value, ast.Constant) for one in relevant):
        return True
    for one in relevant:  # grows during the loop
        parts = list(_parts(one.value))
        if any(isinstance(getattr(part, "op", None), _BITS) for part in (one, *parts)):
            return True
        names = {part.id for part in parts if isinstance(part, ast.Name)}
        relevant += [other for other in stored if other not in relevant and names & stores([other])]
    return False


def _parts(node: ast.AST) -> Iterator[ast.AST]:
    """The parts of an expression, without indices."""
    yield node
    for part in [node.value] if isinstance(node, ast.Subscript) else ast.iter_child_nodes(node):
        yield from _parts(part)


def check_added(old: Any, value: Any, new: Any, sign: int) -> None:
    """Check the sum of int32s that an atomic has computed, against the exact sum."""
    if int(old) + sign * int(value) != int(new):
        what = f"overflow of int32: an atomic adds {sign * int(value)} to {old} (rule int32-overflow)"
        report(IntegerError(what, here()))
