"""CUDA's vector types: `float32x4`, also called `float4`, and the like."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..base.conversions import CONVERSIONS

_ALIASES = {
    "int8": "char", "uint8": "uchar", "int16": "short", "uint16": "ushort", "int32": "int", "uint32": "uint",
    "int64": "longlong", "uint64": "ulonglong", "float32": "float", "float64": "double",
}


class Vector:
    """One to four numbers of one type, named x, y, z and w; it is made from numbers and shorter vectors."""

    base: type[np.generic]
    count: int
    _fields: tuple[str, ...]
    __slots__ = ("w", "x", "y", "z")

    def __init__(self, *parts: Any) -> None:
        values: list[Any] = []
        for part in parts:
            values += list(part) if isinstance(part, Vector) else [part]
        if len(values) != self.count:
            raise TypeError(f"{type(self).__name__}: expected {self.count} elements, got {len(values)}")
        for name, value in zip(self._fields, values, strict=True):
            setattr(self, name, CONVERSIONS[self.base.__name__](value))

    def __iter__(self) -> Any:
        return (getattr(self, name) for name in self._fields)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(map(str, self))})"


def _all() -> dict[str, type[Vector]]:
    vectors: dict[str, type[Vector]] = {}
    for name, alias in _ALIASES.items():
        for count in range(1, 5):
            space = {"__slots__": (), "base": np.dtype(name).type, "count": count, "_fields": tuple("xyzw"[:count])}
            vector = type(f"{name}x{count}", (Vector,), space)
            vectors |= {f"{name}x{count}": vector, f"{alias}{count}": vector}
            if name.endswith("int64"):
                vectors[f"{alias.replace('longlong', 'long')}{count}"] = vector
    return vectors


VECTORS = _all()
