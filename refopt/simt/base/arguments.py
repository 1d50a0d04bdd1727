"""Checks of the executor's plain arguments. An error names the argument, what was expected and what was passed."""

from __future__ import annotations

from typing import Any

import numpy as np

from .errors import LaunchError
from .numba_types import dtype_of


def whole(what: str, value: Any, least: int = 0) -> int:
    """A Python or NumPy integer of at least `least`; bools are refused."""
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)):
        raise TypeError(f"{what}: expected an integer, got {shown(value)}")
    if value < least:
        raise LaunchError(f"{what}: expected an integer of at least {least}, got {shown(value)}")
    return int(value)


def wholes(what: str, value: Any) -> tuple[int, ...]:
    """One nonnegative integer, or a tuple or list of them."""
    values = value if isinstance(value, (tuple, list)) else (value,)
    return tuple(whole(what, n) for n in values)


def flag(what: str, value: Any) -> bool:
    """A truth value."""
    if not isinstance(value, (bool, np.bool_)):
        raise TypeError(f"{what}: expected True or False, got {shown(value)}")
    return bool(value)


def element(what: str, dtype: Any) -> np.dtype:
    """A dtype, or Numba's type for one, of device memory; objects are refused, since their pointers mean nothing."""
    try:
        kind = np.dtype(dtype_of(dtype))
    except (TypeError, ValueError):
        raise TypeError(f"{what}: expected a dtype, got {shown(dtype)}") from None
    if kind.hasobject or not kind.itemsize:
        raise TypeError(f"{what}: expected a dtype of numbers, got {kind}")
    return kind


def shown(value: Any) -> str:
    """A value on one line."""
    if isinstance(value, np.ndarray):
        return f"an array of shape {value.shape}"
    text = " ".join(repr(value).split())
    return text if len(text) <= 80 else f"{text[:77]}..."
