"""Values of lanes: an array with an element for each lane, or a scalar that all share; and tuples of these."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cache, partial
from typing import Any, NamedTuple

import numpy as np

from ..base.conversions import CONVERSIONS
from ..base.scalars import COMPLEX, FLOATS, INTEGERS, SIGNED
from ..compiled import operators
from .places import View
from .typed import Refused

_PLAIN = {bool: np.dtype(bool), int: np.dtype(np.int64), float: np.dtype(np.float64)}
Parts = list[tuple[np.ndarray, Any]]  # positions of lanes, and a value there


class Range(NamedTuple):
    """A `range` with limits for each lane."""

    start: Any
    stop: Any
    step: Any


def lane_range(*limits: Any) -> Any:
    """`range`."""
    if not any(type(x) is np.ndarray for x in limits):
        return range(*limits)
    start, stop, step = (0, limits[0], 1) if len(limits) == 1 else (*limits, 1)[:3]
    if np.any(step == 0):
        raise Refused("a range with step 0")
    return Range(start, stop, step)


def take(value: Any, at: np.ndarray) -> Any:
    """The value for some lanes, by their positions."""
    if type(value) is np.ndarray:
        return value.take(at)
    if isinstance(value, tuple):
        parts = [take(part, at) for part in value]
        return tuple(parts) if type(value) is tuple else type(value)(*parts)
    return View(value.base, take(value.parts, at)) if type(value) is View else value


def assembled(count: int, parts: Parts) -> Any:
    """One value for `count` lanes, from those of parts of them; None is a variable without a value."""
    first = next((value for _, value in parts if value is not None), None)
    if all(value is first for _, value in parts):
        return first
    if isinstance(first, tuple):
        if not all(value is None or (isinstance(value, tuple) and len(value) == len(first)) for _, value in parts):
            raise Refused("a variable that is a tuple on one path and not on another")
        columns = [
            assembled(count, [(at, None if value is None else value[k]) for at, value in parts])
            for k in range(len(first))
        ]
        return tuple(columns) if type(first) is tuple else type(first)(*columns)
    if type(first) is View and {type(value) for _, value in parts} <= {View, type(None)}:
        if any(value is not None and value.base is not first.base for _, value in parts):
            raise Refused("a variable that is a view of one array on one path and of another on the other")
        return View(first.base, assembled(count, [(at, value and value.parts) for at, value in parts]))
    if type(first) in (int, bool) and all(type(value) is type(first) and value == first for _, value in parts):
        return first
    missing = any(value is None for _, value in parts)
    new = (np.zeros if missing else np.empty)(count, _joint(value for _, value in parts if value is not None))
    for at, value in parts:
        if value is not None:
            new[at] = value
    return new


def _joint(values: Iterable[Any]) -> np.dtype:
    """The common dtype of values of one type; integers may have several."""
    dtypes = {_dtype_of(value) for value in values}
    joint = np.result_type(*dtypes)
    if len(dtypes) > 1 and joint.kind in "fc":
        raise Refused("a value of two types")
    return joint


def _dtype_of(value: Any) -> np.dtype:
    """The dtype of a number or of numbers."""
    if isinstance(value, np.ndarray | np.generic):
        return value.dtype
    if type(value) not in _PLAIN:
        raise Refused(f"a variable that is {type(value).__name__} on one path and another type on the other")
    return _PLAIN[type(value)]


def truth(value: Any) -> Any:
    """The truth of a value."""
    if type(value) is not np.ndarray:
        return bool(value)
    return value if value.dtype == bool else value != 0


def opposite(value: Any) -> Any:
    """``not``."""
    value = truth(value)
    return ~value if type(value) is np.ndarray else not value


def pick(test: Any, yes: Any, no: Any) -> Any:
    """``yes if test else no``, both of which have been evaluated."""
    test = truth(test)
    if type(test) is not np.ndarray:
        return yes if test else no
    if isinstance(yes, tuple):
        return tuple(pick(test, a, b) for a, b in zip(yes, no, strict=True))
    if yes is no:
        return yes
    joint = _joint((yes, no))
    return np.where(test, np.asarray(yes, joint), np.asarray(no, joint))


def both(first: Any, second: Any) -> Any:
    """``and`` of truth values."""
    first, second = truth(first), truth(second)
    return first & second if type(first) is type(second) is np.ndarray else pick(first, second, False)


def any_of(first: Any, second: Any) -> Any:
    """``or`` of truth values."""
    first, second = truth(first), truth(second)
    return first | second if type(first) is type(second) is np.ndarray else pick(first, True, second)


def cast(name: str, value: Any) -> Any:
    """`conversions.CONVERSIONS`."""
    if type(value) is not np.ndarray:
        return CONVERSIONS[name](value)
    kind = value.dtype
    if kind == name:
        return value
    if name == "bool":
        return value != 0
    if kind.kind != "f" or name not in INTEGERS:
        return value.astype(np.float64).astype(name) if name == "float16" else value.astype(name)
    return _whole(name, value)


def _whole(name: str, value: np.ndarray) -> np.ndarray:
    """Floats as integers, by the rules of `conversions`."""
    bits, half = INTEGERS[name], value.dtype == np.float16
    wide = 16 if bits == 8 and not half else bits
    low, high = (-(1 << wide - 1), (1 << wide - 1) - 1) if name in SIGNED else (0, (1 << wide) - 1)
    x = value.astype(np.float64)
    x = np.rint(x) if half else np.trunc(x)
    kind = np.int64 if name in SIGNED else np.uint64
    inside = (x > low) & (x < high)
    new = np.where(inside, x, 0).astype(kind)
    new[x >= high], new[x <= low] = high, low
    new[x != x] = np.array(1 << wide - 1, np.uint64).astype(kind) if value.dtype == np.float64 or wide == 64 else 0
    return new.astype(name)


def wrap(value: Any) -> Any:
    """`conversions.wrapped`; arrays have already wrapped."""
    return value if type(value) is np.ndarray else CONVERSIONS["int64"](value)


def operate(scalar: Callable, symbol: str, rule: tuple[str, str, str], x: Any, y: Any) -> Any:
    """An operator by Numba's rules; ``scalar`` is its function from `operators.typed`."""
    if type(x) is not np.ndarray and type(y) is not np.ndarray:
        return scalar(x, y)
    to_x, to_y, result = rule
    x, y = cast(to_x, x), cast(to_y, y)
    plain = operators.SYMBOLS[symbol]
    if symbol in operators.COMPARISONS:
        return plain(x, y)
    if result in COMPLEX:
        return operators.of_complex(symbol, x, y)
    if result in FLOATS and symbol != "Pow":
        x, y = (cast(result, x), cast(result, y)) if symbol == "Div" else (x, y)
        return operators.divisions.get(symbol, plain)(x, y)
    if symbol in ("LShift", "RShift"):
        x, inside = cast(result, x), (y >= 0) & (y < 64)
        count = cast(result, np.where(inside, y, 0))
        beyond = x >> 63 if symbol == "RShift" and result == "int64" else np.zeros_like(x)
        return np.where(inside, plain(x, count), beyond)
    if symbol == "Pow":
        return each(scalar)(x, y)
    x, y = cast(result, x), cast(result, y)
    if symbol == "FloorDiv" and result == "int64":  # NumPy's division by 0 gives 0 too
        return np.where((x == -(2**63)) & (y == -1), 0, x // y)
    return plain(x, y)


def extreme(greatest: bool, names: tuple[str, ...], *values: Any) -> Any:
    """`operators.extreme`, and `max` and `min` of int64s, for which no type names are given."""
    names = names or ("int64",) * len(values)
    if not any(type(value) is np.ndarray for value in values):
        return operators.extreme(greatest, *names)(*values)
    return operators.folded_extreme(greatest, names, values, cast, pick)


@cache
def each(function: Callable) -> Callable:
    """A function of scalars, applied to each lane."""

    def apply(*args: Any) -> Any:
        counts = [len(arg) for arg in args if type(arg) is np.ndarray]
        if not counts:
            return function(*args)
        columns = [arg if type(arg) is np.ndarray else [arg] * counts[0] for arg in args]
        rows = [function(*row) for row in zip(*columns, strict=True)]
        if isinstance(rows[0], tuple):
            return tuple(np.array(column) for column in zip(*rows, strict=True))
        return np.array(rows)

    return apply


def of_scalars(function: Any) -> Callable | None:
    """The form for lanes of a scalar function that `compiled` calls; None for other functions."""
    for name, convert in CONVERSIONS.items():
        if function is convert:
            return partial(cast, name)
    spec = getattr(function, "spec", None)
    if spec is None:
        return None
    what, *rest = spec
    return partial(operate, function, what, *rest) if isinstance(what, str) else partial(extreme, what, *rest)
