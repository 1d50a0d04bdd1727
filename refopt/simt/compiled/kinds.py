"""Kinds: the abstract values of type inference, which hold what is known of a value when a kernel is typed."""

from __future__ import annotations

import enum
import functools
from typing import Any, NamedTuple

import numpy as np

from ..base.conversions import name_of
from ..base.numba_types import dtype_of
from ..base.scalars import COMPLEX, FLOATS, INTEGERS, SIGNED, UNSIGNED, unify
from ..memory.shared import Records, with_fields


class Scalar(NamedTuple):
    """A number: its type, its representation, and for an integer its limits.

    ``form`` is py for a Python int, np for a NumPy scalar, any if it may be either. For other than integers and bools
    it is always np.
    """

    name: str
    form: str = "np"
    low: int = 0
    high: int = 0


class Array(NamedTuple):
    """An array of a scalar type, or of records; for other element types both are None."""

    dtype: str | None
    axes: int
    record: np.dtype | None = None


class Record(NamedTuple):
    """One element of an array of records."""

    dtype: np.dtype


class Tuple(NamedTuple):
    """A tuple of known length, and its class if it is a namedtuple."""

    items: tuple
    named: Any = None


class Range(NamedTuple):
    """A `range`, or another iterator: items of a kind."""

    item: Any


class Method(NamedTuple):
    """A method of a number, an array or text."""

    owner: Any
    name: str


class Named(NamedTuple):
    """A keyword argument."""

    name: str
    kind: Any


class Known:
    """A known object: a constant, or a function, module or type that a kernel names."""

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Known):
            return False
        return self.value is other.value or (
            type(self.value) is type(other.value) in _PLAIN and repr(self.value) == repr(other.value)
        )

    def __hash__(self) -> int:
        return hash(repr(self.value)) if type(self.value) in _PLAIN else id(self.value)

    def __repr__(self) -> str:
        return f"Known({self.value!r})"


class Clash(NamedTuple):
    """The value of a `Known` variable whose kinds on two paths Numba cannot unify."""

    one: Any
    other: Any


class Varying:
    """The value of a `Known` that is not constant: Numba refuses it where it would accept a constant of its sort."""

    def __init__(self, sort: str, words: str) -> None:
        self.sort, self.words = sort, words


TEXTS = Known(Varying("texts", "text that is chosen when the kernel runs"))
LATE = Known(Varying("late", "a variable that is None before its loop"))  # and that the loop may assign
Kind = Scalar | Array | Record | Tuple | Range | Method | Named | Known | None  # None: anything
_PLAIN = (int, float, bool, str, type(None))
_SMALL = 2**31


def limits(name: str) -> tuple[int, int]:
    """The smallest and the largest value of an integer type."""
    if name in SIGNED:
        return -(1 << SIGNED[name] - 1), (1 << SIGNED[name] - 1) - 1
    return 0, (1 << UNSIGNED[name]) - 1 if name in UNSIGNED else 1


def number(name: str, form: str = "np") -> Scalar:
    """Any number of a type."""
    return Scalar(name, form, *limits(name)) if name in INTEGERS else Scalar(name)


def any_number(name: str) -> Scalar:
    """Any number of a type, an integer in either representation."""
    return number(name, "any" if name in INTEGERS else "np")


def made(name: str) -> Scalar:
    """Any number of a type, as a conversion to it gives it."""
    return number(name, "py" if name in ("int64", "bool") else "np")


def several(names: str) -> Kind:
    """The kind of a result: of one type, or a tuple of several; `none` for None."""
    kinds = tuple(any_number(name) for name in names.split(",")) if names != "none" else (Known(None),)
    return kinds[0] if len(kinds) == 1 else Tuple(kinds)


def whole(low: int, high: int, name: str = "int64") -> Scalar:
    """A Python int between limits."""
    return Scalar(name, "py", low, high)


BOOL, INT64, FLOAT64 = number("bool", "any"), number("int64", "py"), number("float64")


def scalar(kind: Kind) -> Scalar | None:
    """The kind as a number's, constants included; None if it is not a number."""
    if isinstance(kind, Scalar):
        return kind
    name = name_of(kind.value) if isinstance(kind, Known) else None
    if isinstance(kind, Known) and isinstance(kind.value, enum.IntEnum):
        name = "int64"
    if name is None:
        return None
    value = kind.value  # type: ignore[union-attr]
    if name in INTEGERS:
        return Scalar(name, "py" if isinstance(value, int) and name != "uint64" else "np", int(value), int(value))
    return Scalar(name)


def operand(kind: Kind, array: bool = False) -> str | None:
    """The type of a number, or of an array's elements."""
    if array:
        return kind.dtype if isinstance(kind, Array) else None
    known = scalar(kind)
    return known.name if known else None


def variable(kind: Kind) -> Kind:
    """The kind without the knowledge that the value is constant: of a number, only its type and limits."""
    return scalar(kind) or kind


def of_value(value: Any) -> Kind:
    """The kind of an argument of a kernel."""
    name = name_of(value)
    if name is not None:
        return number(name, "py" if type(value) in (int, bool) else "np")
    if isinstance(value, tuple):
        return Tuple(tuple(of_value(item) for item in value), type(value) if hasattr(value, "_fields") else None)
    dtype = getattr(value, "dtype", None)
    if isinstance(value, np.generic):  # of no scalar type: a record, a date
        return Record(value.dtype) if value.dtype.names else None
    if isinstance(dtype, np.dtype) and hasattr(value, "ndim"):
        return array_of(dtype, value.ndim)
    return None if isinstance(value, list | dict | set) else Known(value)


def of_type(type_: Any) -> Kind:
    """The kind of a value of a Numba type, as far as a signature determines it."""
    if isinstance(parts := getattr(type_, "types", None), tuple):
        return Tuple(tuple(map(of_type, parts)))
    dtype = dtype_of(type_)
    if isinstance(dtype, np.dtype):
        return number(dtype.name) if _scalar_name(dtype) else None
    inner = dtype_of(getattr(type_, "dtype", None))
    return array_of(inner, type_.ndim) if isinstance(inner, np.dtype) and hasattr(type_, "ndim") else None


def array_of(dtype: Any, axes: int) -> Array:
    """An array of a dtype."""
    dtype = np.dtype(dtype)
    return Array(_scalar_name(dtype), axes, dtype if dtype.names else None)


def element(array: Array, axes: int = 0) -> Kind:
    """An element of an array, or a view of `axes` axes."""
    if axes:
        return array._replace(axes=axes)
    return number(array.dtype) if array.dtype else Record(array.record) if array.record else None


def column(array: Array, name: Any) -> Kind:
    """The array of one field of an array of records."""
    if array.record is None or name not in (array.record.names or ()):
        return None
    part = array.record[name]
    return array_of(part.base, array.axes + len(part.shape))


def field(record: Record, name: Any) -> Kind:
    """A field of a record."""
    if not isinstance(name, str) or name not in (record.dtype.names or ()):
        return None
    part = record.dtype[name]
    return element(array_of(part.base, 0), len(part.shape))


def _scalar_name(dtype: np.dtype) -> str | None:
    name = dtype.name
    return name if name in INTEGERS or name in FLOATS or name in COMPLEX else None


def widened(kind: Kind) -> Kind:
    """The kind for which a device function is typed: the limits of integers are widened to a few classes."""
    known = scalar(kind)
    if known is not None:
        if known.name not in INTEGERS or known.name == "bool":
            return number(known.name, known.form)
        low, high = limits(known.name)
        for most in (64, _SMALL):  # the first is for shift counts
            if (0 if most == 64 else -most) <= known.low and known.high < most:
                return Scalar(known.name, known.form, max(low, 0 if known.low >= 0 else -most), min(high, most - 1))
        return Scalar(known.name, known.form, low, high)
    if (items := items_of(kind)) is not None:
        return Tuple(tuple(widened(item) for item in items), named_of(kind))
    return Range(widened(kind.item)) if isinstance(kind, Range) else kind


def joined(a: Kind, b: Kind, widen: bool = False) -> Kind:
    """The kind of a variable that may be of either kind; never a constant, even if both are the same one."""
    if a is b:
        return a
    if _sort(a) == _sort(b) == "text":
        return TEXTS
    if a == b:
        return variable(a)
    one, other = scalar(a), scalar(b)
    if one is not None and other is not None:
        name = unify(one.name, other.name)
        if name not in INTEGERS:
            return Scalar(name)
        low, high = min(one.low, other.low), max(one.high, other.high)
        if widen or name not in (one.name, other.name):
            low, high = limits(name)
        forms = {each.form if each.name == name else made(name).form for each in (one, other)}
        return Scalar(name, forms.pop() if len(forms) == 1 else "any", low, high)
    first, second = items_of(a), items_of(b)
    if first is not None and second is not None and _sort(a) == _sort(b):
        return Tuple(tuple(joined(x, y, widen) for x, y in zip(first, second, strict=True)), named_of(a))
    return _clash(a, b)


def _clash(a: Kind, b: Kind) -> Kind:
    """The kind for two that have no common one: a `Clash` if they are certainly of different sorts."""
    for kind in (a, b):
        if isinstance(kind, Known) and isinstance(kind.value, Clash):
            return kind
    sorts = _sort(a), _sort(b)
    return None if None in sorts or sorts[0] == sorts[1] else Known(Clash(a, b))


def _sort(kind: Kind) -> Any:
    """The sort of a kind: only kinds of one sort can be joined; None if it is not known."""
    if scalar(kind) is not None:
        return "number"
    if isinstance(kind, Array):
        return (kind.dtype, kind.axes) if kind.dtype else None
    if (items := items_of(kind)) is not None:
        types = [one.name if (one := scalar(item)) else item for item in items] if (named := named_of(kind)) else ()
        return len(items), named, *types  # each field of a namedtuple keeps its type
    if isinstance(kind, Known) and (isinstance(kind.value, str) or kind is TEXTS):
        return "text"
    if isinstance(kind, Known) and callable(kind.value):
        return id(kind.value)
    return None


def item_of(kind: Kind) -> Kind:
    """The kind of the items in a loop over a value."""
    if isinstance(kind, Range):
        return kind.item
    if items := items_of(kind):
        types = set(map(type_of, items))
        return functools.reduce(joined, items) if len(types) == 1 and None not in types else None
    return element(kind, kind.axes - 1) if isinstance(kind, Array) else None


def type_of(kind: Kind) -> Any:
    """The types that a kind has in Numba; None if they are not known."""
    if (one := scalar(kind)) is not None:
        return one.name
    if isinstance(kind, Array):
        return ("array", kind.dtype, kind.axes) if kind.dtype else None
    inner = items_of(kind)
    types_of = tuple(map(type_of, inner)) if inner is not None else (None,)
    return None if None in types_of else types_of


def items_of(kind: Kind) -> tuple | None:
    """The kinds of a tuple's items, if it is one."""
    if isinstance(kind, Tuple):
        return kind.items
    if isinstance(kind, Known) and isinstance(kind.value, tuple) and not isinstance(kind.value, Clash):
        return tuple(Known(item) for item in kind.value)
    return None


def named_of(kind: Kind) -> Any:
    """The class of a namedtuple."""
    named = type(kind.value) if isinstance(kind, Known) else getattr(kind, "named", None)
    return named if hasattr(named, "_fields") else None


def frozen_value(value: Any) -> Any:
    """A captured value in a class that identifies its type; an array as it is now, as Numba's constants are."""
    if type(value) is float:
        return np.float64(value)
    if type(value) is int and 2**63 <= value < 2**64:
        return np.uint64(value)
    if type(value) is complex:
        return np.complex128(value)
    if type(value) in (np.ndarray, Records):
        copy = np.array(value)
        copy.flags.writeable = False
        return with_fields(copy)
    if type(value) is tuple:
        items = tuple(frozen_value(item) for item in value)
        return value if all(a is b for a, b in zip(items, value, strict=True)) else items
    return value
