"""Numba's scalar types, and the types that it infers for operators."""

from __future__ import annotations

from functools import cache

from . import record

SIGNED = {"int8": 8, "int16": 16, "int32": 32, "int64": 64}
UNSIGNED = {"uint8": 8, "uint16": 16, "uint32": 32, "uint64": 64}
INTEGERS = {"bool": 1, **SIGNED, **UNSIGNED}
FLOATS = {"float16": 16, "float32": 32, "float64": 64}
SCALARS = {**INTEGERS, **FLOATS}
COMPLEX = {"complex64": "float32", "complex128": "float64"}  # and the type of their parts
SIGNS = {
    "Add": "+", "Sub": "-", "Mult": "*", "Div": "/", "FloorDiv": "//", "Mod": "%", "Pow": "**", "LShift": "<<",
    "RShift": ">>", "BitAnd": "&", "BitOr": "|", "BitXor": "^", "Lt": "<", "LtE": "<=", "Gt": ">", "GtE": ">=",
    "Eq": "==", "NotEq": "!=", "USub": "-", "UAdd": "+", "Invert": "~", "Not": "not ",
}


@cache
def unify(a: str, b: str) -> str:
    """The type of a variable that may be either type."""
    return record.result("unified", a, b)  # type: ignore[return-value]
