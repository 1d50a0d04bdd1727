"""Checks of plain arguments: integers, numbers, flags, names, lists. Each has one rule everywhere."""

import math
import operator
from collections.abc import Iterable, Mapping, Sequence
from numbers import Integral, Real
from typing import Any

import numpy as np

RANKS = 2**20  # the maximum, where something is allocated for each rank, device or micro-step
TEXT = str | bytes | bytearray | memoryview  # sequences that are never meant as lists


def is_whole(value: Any) -> bool:
    """Whether it is an integer of any type: Python's, NumPy's or a 0-d array, but not a bool or a timedelta."""
    return type(value) is int or _is(value, Integral, "iu")  # the usual case first, for thousands of ops and extents


def is_number(value: Any) -> bool:
    """Whether it is a real number of any type, including NaN and inf, but not a bool or a timedelta."""
    return type(value) in (float, int) or _is(value, Real, "iuf")


def _is(value: Any, kind: type, dtypes: str) -> bool:
    if isinstance(value, np.ndarray):  # subclasses are refused: float() of np.ma.masked is NaN
        return type(value) is np.ndarray and value.ndim == 0 and value.dtype.kind in dtypes
    return isinstance(value, kind) and not isinstance(value, bool | np.timedelta64)


def whole(where: str, value: Any, least: int | None = None, most: int | None = None) -> int:
    """Convert an integer of any type to an int.

    Args:
        where: function and argument, for the error.
        value: the argument.
        least, most: inclusive bounds.

    Raises:
        TypeError: if it is not an integer.
        ValueError: if it is out of range.
    """
    if is_whole(value):
        integer = operator.index(value)
        if (least is None or integer >= least) and (most is None or integer <= most):
            return integer
    expected = "an integer"
    if most is not None:
        expected += f" from {0 if least is None else least} to {most}"
    elif least is not None:
        expected += f" of at least {least}"
    raise (ValueError if is_whole(value) else TypeError)(f"{where}: expected {expected}, got {shown(value)}")


def number(
    where: str, value: Any, least: float | None = None, most: float | None = None, *, above: float | None = None,
    below: float | None = None, finite: bool = False, real: Any = None,
) -> float:
    """Convert a real number of any type to a float. NaN is in no range.

    Args:
        where: function and argument, for the error.
        value: the argument.
        least, most: inclusive bounds.
        above, below: exclusive bounds.
        finite: whether inf and NaN are refused.
        real: a type; rounded to it, the number must be finite, and within the bounds, too.

    Raises:
        TypeError: if it is not a number.
        ValueError: if it is out of range.
    """
    if is_number(value):
        converted = to_float(where, value)
        stored = converted if real is None else float(rounded(converted, real))
        limits_of = (least, operator.ge), (most, operator.le), (above, operator.gt), (below, operator.lt)
        in_range = all(holds(x, bound) for bound, holds in limits_of if bound is not None for x in (converted, stored))
        if in_range and (math.isfinite(stored) or (real is None and not finite)):
            return converted
    bounds = {"of at least": least, "above": above, "of at most": most, "below": below}
    limits = " and ".join(f"{word} {bound:.10g}" for word, bound in bounds.items() if bound is not None)
    kind = f"finite {np.dtype(real).name}" if real else "finite number" if finite else "number"
    expected = " ".join(filter(None, ("a", kind, limits)))
    raise (ValueError if is_number(value) else TypeError)(f"{where}: expected {expected}, got {shown(value)}")


def to_float(where: str, value: Any) -> float:
    """Convert a number to a float; raise if it is an integer or a fraction beyond the range of float64."""
    try:
        return float(value)
    except OverflowError:
        raise ValueError(f"{where}: expected a number in the range of float64, got one beyond it") from None


def rounded(values: Any, dtype: Any) -> np.ndarray:
    """Numbers as an array of a dtype, with overflow to inf and underflow to 0 whatever ``np.errstate`` says."""
    with np.errstate(all="ignore"):
        return np.asarray(values, dtype)


def flag(where: str, value: Any) -> bool:
    """A Python or NumPy truth value as a bool; raises for anything else, such as ``"no"``."""
    if not isinstance(value, bool | np.bool_):
        raise TypeError(f"{where}: expected True or False, got {shown(value)}")
    return bool(value)


def chosen(where: str, value: Any, options: Iterable[Any]) -> Any:
    """One of some options; raises for any other value, including arrays and lists."""
    known = tuple(options)
    plain = bool(value) if isinstance(value, np.bool_) else value
    for option in known:
        if isinstance(plain, type(option)) and plain == option:
            return option
    raise ValueError(f"{where}: expected one of {', '.join(map(str, known))}, got {shown(value)}")


def listed(where: str, value: Any, of: str = "arrays") -> list[Any]:
    """The entries of a sequence; text, bytes, arrays, mappings and generators are refused.

    Args:
        where: function and argument, for the error.
        value: the argument.
        of: what the entries are, for the error.
    """
    if not isinstance(value, Sequence) or isinstance(value, TEXT):
        raise TypeError(f"{where}: expected a list of {of}, got {kind_of(value)}")
    return list(value)


def collected(where: str, value: Any, of: str) -> tuple[Any, ...]:
    """The entries of an iterable, which is iterated over once; text and bytes are refused.

    Args:
        where: function and argument, for the error.
        value: the argument.
        of: what the entries are, for the error.
    """
    if not isinstance(value, Iterable) or isinstance(value, TEXT) or getattr(value, "shape", None) == ():
        raise TypeError(f"{where}: expected a sequence of {of}, got {shown(value)}")
    return tuple(value)


def names(where: str, value: Any) -> tuple[str, ...]:
    """Names, as by `collected`; raises for an entry that is not text, with its index."""
    entries = collected(where, value, "names")
    for k, name in enumerate(entries):
        if not isinstance(name, str):
            raise TypeError(f"{where}[{k}]: expected a name, got {shown(name)}")
    return entries


def mapped(where: str, value: Any, known: Iterable[str] | None = None, needed: Iterable[str] = ()) -> dict[str, Any]:
    """The entries of a mapping by name.

    Args:
        where: function and argument, for the error.
        value: the argument.
        known: the allowed names; if None, any.
        needed: the required names.

    Raises:
        TypeError: if it is not a mapping, has a key that is not text or not known, or lacks a required one.
    """
    required = tuple(needed)
    if not isinstance(value, Mapping):
        of = f" with {', '.join(required)}" if required else ""
        raise TypeError(f"{where}: expected a dictionary{of}, got {kind_of(value)}")
    keys = names(f"{where}: keys", value)
    if missing := [name for name in required if name not in value]:
        raise TypeError(f"{where}: expected a dictionary with {', '.join(required)}, got none of {', '.join(missing)}")
    allowed = None if known is None else tuple(known)
    if allowed is not None and (others := [name for name in keys if name not in allowed]):
        raise TypeError(f"{where}: expected no more than {', '.join(allowed)}, got {', '.join(map(shown, others))}")
    return {name: value[name] for name in keys}


def kind_of(value: Any) -> str:
    """The name of a value's type, for an error."""
    return type(value).__name__


def shown(value: Any) -> str:
    """The repr of a value for an error, on one line and shortened."""
    if isinstance(value, np.ndarray) and value.ndim:
        return f"an array of shape {value.shape}"
    try:
        text = " ".join(repr(value).split())
    except ValueError:  # integers of thousands of digits, which Python does not convert
        text = f"{kind_of(value)} of many digits"
    return text if len(text) <= 80 else f"{text[:77]}..."
