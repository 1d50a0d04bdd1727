"""Integers that an int32 does not hold: which of them are meant to be cut off, and which are overflow."""

from __future__ import annotations

import ast
import linecache
from typing import Any

import numpy as np

from ..base.errors import IntegerError
from ..base.places import here, report
from ..base.state import current


def check_stored(value: Any, dtype: np.dtype, array: str) -> None:
    """Check an int32 that the running thread is about to store, and that may be what is left of a larger integer.

    What is cast and stored in an int32 array is meant to be cut off. So may be bits, of up to 32, that nobody has
    added, subtracted or multiplied on the line that stores them.
    """
    whole, lowest, line = current.thread.lost
    current.thread.lost = None
    if lowest != value or dtype.kind != "i":
        return
    place = here()
    if dtype.itemsize == 4:
        text = linecache.getline(place.filename or "", place.line or 0).strip()
        if line != place.line or "int32(" in text or (0 <= whole < 2**32 and not _is_sum(text)):
            return
    elif dtype.itemsize < 8:
        return
    what = f"overflow of int32: {whole} is stored in {array}, {dtype}, as {value} (rule int32-overflow)"
    report(IntegerError(what, place, array=array))


def _is_sum(text: str) -> bool:
    """Whether a line stores a sum, a difference or a product."""
    try:
        node: Any = ast.parse(text).body[0]
    except (SyntaxError, IndexError):
        return False
    node = node if isinstance(node, ast.AugAssign) else getattr(node, "value", None)
    return isinstance(getattr(node, "op", None), ast.Add | ast.Sub | ast.Mult)


def check_added(old: Any, value: Any, new: Any, sign: int) -> None:
    """Check a sum that an atomic has made of int32s, by what was added."""
    if int(old) + sign * int(value) != int(new):
        what = f"overflow of int32: an atomic adds {sign * int(value)} to {old} (rule int32-overflow)"
        report(IntegerError(what, here()))
