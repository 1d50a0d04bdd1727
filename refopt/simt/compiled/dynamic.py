"""Operations on values whose types are known only at run time, from each value's class."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

from ..base.conversions import CONVERSIONS, name_of
from ..base.scalars import FLOATS, INTEGERS
from . import operators


@cache
def binary(symbol: str, in_place: bool = False) -> Callable[[Any, Any], Any]:
    """The operator for values of any type: Python's for anything but scalars."""
    plain = (operators.IN_PLACE if in_place else operators.SYMBOLS)[symbol]
    typed = operators.typed

    def apply(x: Any, y: Any) -> Any:
        a, b = name_of(x), name_of(y)
        return plain(x, y) if a is None or b is None else typed(symbol, a, b)(x, y)

    return apply


@cache
def unary(symbol: str) -> Callable[[Any], Any]:
    """-x, +x or ~x."""

    def apply(x: Any) -> Any:
        name = name_of(x)
        if name is None:
            return {"USub": lambda: -x, "UAdd": lambda: +x, "Invert": lambda: ~x}[symbol]()
        return operators.negation(symbol, name)(x)

    return apply


@cache
def conversion(name: str) -> Callable[[Any], Any]:
    """A scalar converted to a type; other values are returned unchanged."""
    convert = CONVERSIONS[name]
    return lambda x: x if name_of(x) is None else convert(x)


def extreme(greatest: bool) -> Callable[..., Any]:
    """``max`` or ``min``."""
    plain = max if greatest else min

    def apply(*values: Any) -> Any:
        names = [name_of(value) for value in values]
        return plain(*values) if None in names or len(names) < 2 else operators.extreme(greatest, *names)(*values)

    return apply


def whole(x: Any) -> Any:
    """``int``."""
    name = name_of(x)
    return int(x) if name is None else x if name in INTEGERS and name != "bool" else CONVERSIONS["int64"](x)


def real(x: Any) -> Any:
    """``float``."""
    name = name_of(x)
    return float(x) if name is None else x if name in FLOATS else CONVERSIONS["float64"](x)
