"""Numba's types under the names that kernels and their callers use, each with its NumPy dtype.

Where Numba is installed, its own type objects are also accepted: their attributes are read, and Numba is not imported.
"""

from __future__ import annotations

from typing import Any

import numpy as np


class Type:
    """A Numba type; calling a scalar type converts a value, or makes a signature from types."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __repr__(self) -> str:
        return self.name

    def __eq__(self, other: Any) -> bool:
        return isinstance(other, Type) and self.name == other.name

    def __hash__(self) -> int:
        return hash(self.name)

    def __getitem__(self, dimensions: Any) -> Array:
        """The type of arrays with this element type: ``float32[:, ::1]``."""
        axes = dimensions if isinstance(dimensions, tuple) else (dimensions,)
        if not all(isinstance(axis, slice) and axis.start is None and axis.stop is None for axis in axes):
            raise TypeError(f"{self.name}[...]: expected a colon for each dimension, got {dimensions!r}")
        layout = "C" if axes[-1].step == 1 else "F" if axes[0].step == 1 else "A"
        return Array(self, len(axes), layout)

    def __call__(self, *args: Any) -> Any:
        """A signature that returns this type."""
        if not all(isinstance(arg, (Type, Signature)) or is_numba_type(arg) for arg in args):
            raise TypeError(f"{self.name}(...): expected types, got {args!r}")
        return Signature(self, args)


class Scalar(Type):
    """A number."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.dtype = np.dtype(name)

    def __call__(self, *args: Any) -> Any:
        """A value converted to the type, or a signature if types are given."""
        if len(args) == 1 and not isinstance(args[0], (Type, Signature)) and not is_numba_type(args[0]):
            return self.dtype.type(args[0])
        return super().__call__(*args)

    @property
    def bitwidth(self) -> int:
        """Bits of a value."""
        return self.dtype.itemsize * 8


class Record(Type):
    """A structure: an array element with named fields."""

    def __init__(self, dtype: np.dtype) -> None:
        super().__init__(f"Record({dtype})")
        self.dtype = dtype


class Array(Type):
    """Arrays of an element type, a number of dimensions and a layout (C, F, or A for any)."""

    def __init__(self, dtype: Any, ndim: int, layout: str, readonly: bool = False, **_: Any) -> None:
        super().__init__(f"array({dtype}, {ndim}d, {layout})")
        self.dtype, self.ndim, self.layout = dtype, ndim, layout


class Tuple(Type):
    """Tuples of given types."""

    def __init__(self, types: Any) -> None:
        self.types = tuple(types)
        super().__init__(f"Tuple({', '.join(map(str, self.types))})")

    def __iter__(self) -> Any:
        return iter(self.types)


def uni_tuple(dtype: Any, count: int) -> Tuple:
    """Tuples of `count` elements of one type."""
    return Tuple((dtype,) * count)


class Optional(Type):
    """A value or None."""

    def __init__(self, type: Any) -> None:
        super().__init__(f"OptionalType({type})")
        self.type = type


class Signature:
    """A function's argument types and return type."""

    def __init__(self, return_type: Any, args: tuple) -> None:
        self.return_type, self.args = return_type, args

    def __repr__(self) -> str:
        return f"({', '.join(map(str, self.args))}) -> {self.return_type}"

    def __eq__(self, other: Any) -> bool:
        return isinstance(other, Signature) and repr(self) == repr(other)

    def __hash__(self) -> int:
        return hash(repr(self))


_SCALARS = {
    "bool": "boolean bool_ b1 bool",
    "int8": "int8 i1 char",
    "int16": "int16 i2 short",
    "int32": "int32 i4 intc",
    "int64": "int64 i8 intp int_ long_ longlong ssize_t",
    "uint8": "uint8 u1 byte uchar",
    "uint16": "uint16 u2 ushort",
    "uint32": "uint32 u4 uintc",
    "uint64": "uint64 u8 uintp uint ulong ulonglong size_t",
    "float16": "float16 f2",
    "float32": "float32 f4 float_",
    "float64": "float64 f8 double",
    "complex64": "complex64 c8",
    "complex128": "complex128 c16",
}
TYPES: dict[str, Any] = {alias: Scalar(name) for name, aliases in _SCALARS.items() for alias in aliases.split()}
TYPES["void"] = TYPES["none"] = Type("none")
TYPES |= {"Array": Array, "Tuple": Tuple, "UniTuple": uni_tuple, "Record": Record, "Optional": Optional, "Type": Type}


def is_numba_type(value: Any) -> bool:
    """Whether a value is one of Numba's own type objects."""
    kind = type(value)
    return kind.__module__.startswith("numba") and any(base.__name__ == "Type" for base in kind.__mro__)


def dtype_of(type_: Any) -> Any:
    """The NumPy dtype of a scalar or record type of Numba; anything else is returned unchanged."""
    if isinstance(type_, (Scalar, Record)):
        return type_.dtype
    if is_numba_type(type_):
        fields = getattr(type_, "fields", None)
        if fields is not None and hasattr(type_, "size"):
            return _record(fields, type_.size)
        if hasattr(type_, "shape") and hasattr(type_, "nested"):  # NestedArray: a field that is an array
            return np.dtype((dtype_of(type_.dtype), type_.shape))
        name = "bool" if str(type_) in ("bool", "boolean") else str(type_)
        if name in TYPES:
            return dtype_of(TYPES[name])
        if hasattr(type_, "count") and hasattr(type_, "name"):  # text of a fixed length
            return np.dtype(f"{'U' if 'unichr' in type_.name else 'S'}{type_.count}")
    return type_


def _record(fields: Any, size: int) -> np.dtype:
    """A record dtype from Numba's fields: name -> (type, offset, ...)."""
    names = list(fields)
    parts = [(getattr(fields[n], "type", fields[n]), getattr(fields[n], "offset", 0)) for n in names]
    formats = [np.dtype((dtype_of(t.dtype), t.shape)) if hasattr(t, "shape") else dtype_of(t) for t, _ in parts]
    return np.dtype({"names": names, "formats": formats, "offsets": [at for _, at in parts], "itemsize": size})
