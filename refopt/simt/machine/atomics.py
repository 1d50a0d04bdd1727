"""Atomic operations on device and shared arrays. Each returns the old value and lets other threads run."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import numpy as np

from ..base.conversions import CONVERSIONS, as_int64, name_of
from ..base.errors import OutOfBounds
from ..base.places import unsupported
from ..base.state import current
from ..base.undefined import refuse
from ..memory.observed import ObservedArray

WHOLE = {"int32", "uint32", "int64", "uint64"}
NUMBERS = WHOLE | {"float32", "float64"}
COUNTERS = {"uint32", "uint64"}


def _update(
    array: Any, index: Any, value: Any, operation: Callable[[Any, Any], Any], types: set[str], called: str = "",
    lock: bool = False, fresh: bool = False, sign: int = 0,
) -> Any:
    """An atomic operation on an element of one of the types that Numba supports.

    `lock`: whether locks are built from it, so that a fence must follow; `fresh`: whether the old value does not
    matter; `sign`: the sign with which the value is added, 0 if it is not.
    """
    if type(index) is not int:
        index = tuple(map(_whole, index)) if type(index) is tuple else _whole(index)
    watched = type(array) is ObservedArray
    if watched:
        refuse(value, "an atomic")
        try:
            array = array.atomic(index, fresh)
        except OutOfBounds as error:
            return array.gone_past(index, error)
    old = array[index]
    name = name_of(old)
    if name not in types:
        raise TypeError(f"cuda.atomic.{called}: expected an array of {', '.join(sorted(types))}, got {old.dtype}")
    new = operation(old, CONVERSIONS[name](value))
    array[index] = new
    if watched and not lock and new != old:
        current.observer.ticket()
    if watched and sign and name == "int32":
        current.observer.added(old, value, new, sign)
    current.launch.pause(new != old)
    return old


def _whole(index: Any) -> Any:
    """An index; unlike in a subscript, it may be a float."""
    return as_int64(index) if isinstance(index, float | np.floating) else index


def _of(name: str, what: str, operation: Callable[[Any, Any], Any], types: set[str] = NUMBERS, **how: Any) -> Any:
    """The atomic operation of a name, from a function of the old value and an operand."""

    def atomic(array: Any, index: Any, value: Any) -> Any:
        return _update(array, index, value, operation, types, name, **how)

    atomic.__name__ = atomic.__qualname__ = name
    atomic.__doc__ = what
    atomic.operation = operation  # type: ignore[attr-defined]
    return atomic


_BOTH_NUMBERS = "array[index] = the {}; no change if either is NaN, as in Numba."
_A_NUMBER = "array[index] = the {}; a NaN there is replaced."
add = _of("add", "array[index] += value.", operator.add, sign=1)
sub = _of("sub", "array[index] -= value.", operator.sub, sign=-1)
and_ = _of("and_", "array[index] &= value.", operator.and_, WHOLE)
or_ = _of("or_", "array[index] |= value.", operator.or_, WHOLE)
xor = _of("xor", "array[index] ^= value.", operator.xor, WHOLE)
exch = _of("exch", "array[index] = value.", lambda old, value: value, WHOLE, lock=True, fresh=True)
max = _of("max", _BOTH_NUMBERS.format("greater"), lambda old, value: value if value > old else old)
min = _of("min", _BOTH_NUMBERS.format("lesser"), lambda old, value: value if value < old else old)
nanmax = _of("nanmax", _A_NUMBER.format("greater"), lambda old, value: value if value > old or old != old else old)
nanmin = _of("nanmin", _A_NUMBER.format("lesser"), lambda old, value: value if value < old or old != old else old)
inc = _of(
    "inc", "Count up, from `value` to 0.", lambda old, value: type(old)(0 if old >= value else old + 1), COUNTERS
)
dec = _of(
    "dec", "Count down, from 0 to `value`.",
    lambda old, value: value if old == 0 or old > value else type(old)(old - 1), COUNTERS,
)


def cas(array: Any, index: Any, old: Any, value: Any) -> Any:
    """array[index] = value if it equals `old`."""

    def swapped(current: Any, value: Any) -> Any:
        return _swapped(current, CONVERSIONS[name_of(current)](old), value)  # type: ignore[index]

    return _update(array, index, value, swapped, WHOLE, "cas", lock=True)


def _swapped(current: Any, old: Any, value: Any) -> Any:
    return value if current == old else current


cas.operation = _swapped  # type: ignore[attr-defined]


def compare_and_swap(array: Any, old: Any, val: Any) -> Any:
    """`cas` on the first element."""
    return cas(array, (0,) * array.ndim, old, val)


def __getattr__(name: str) -> Any:
    raise unsupported(f"cuda.atomic.{name}", among=globals())
