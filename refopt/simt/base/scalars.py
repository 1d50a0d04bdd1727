"""Numba's typing of operators for CUDA, in terms of NumPy's names of scalar types: bool, int8, float32, ...

Numba picks the signature of an operator whose arguments need the safest conversions. Integers are computed in 64 bits,
signed if either operand is. Given an integer and a float, the integer is converted to a float: to the type of the other
operand if all its values fit in that significand, else to float64.
"""

from __future__ import annotations

from functools import cache

SIGNED = {"int8": 8, "int16": 16, "int32": 32, "int64": 64}
UNSIGNED = {"uint8": 8, "uint16": 16, "uint32": 32, "uint64": 64}
INTEGERS = {"bool": 1, **SIGNED, **UNSIGNED}
FLOATS = {"float16": 16, "float32": 32, "float64": 64}
SCALARS = {**INTEGERS, **FLOATS}
ARITHMETIC = {"Add", "Sub", "Mult", "Div", "FloorDiv", "Mod"}
BITWISE = {"BitAnd", "BitOr", "BitXor"}
SHIFTS = {"LShift", "RShift"}

# The size of the float that an integer is converted to beside a float16 or float32. An operator treats uint8 as int16,
# and so on; when two types are unified for one variable, it counts as itself.
_HOLDS = {"bool": 16, "int8": 16, "int16": 32, "int32": 64, "int64": 64}
_OPERAND = {**_HOLDS, "uint8": 32, "uint16": 64, "uint32": 64, "uint64": 64}
_UNIFIED = {**_HOLDS, "uint8": 16, "uint16": 32, "uint32": 64, "uint64": 64}


def _float(a: str, b: str, holds: dict[str, int]) -> str:
    """The common float type of two types, one of which is a float."""
    return f"float{max(FLOATS.get(name) or holds[name] for name in (a, b))}"


@cache
def binary(operator: str, a: str, b: str) -> tuple[str, str, str] | None:
    """The types that the operands are converted to, and the result's type; None if Numba refuses the operands.

    ``operator`` is the name of a class of `ast`; for comparisons it is Compare.
    """
    whole = a in INTEGERS and b in INTEGERS
    if operator in SHIFTS:
        return (*_whole_pair(a, b)[:2], "int64" if a == "bool" or a in SIGNED else "uint64") if whole else None
    if operator in BITWISE:
        if a == b == "bool":
            return "bool", "bool", "bool"
        return _whole_pair(a, b) if whole else None
    if operator == "Compare":
        meet = unify(a, b) if whole else _float(a, b, _OPERAND)
        return meet, meet, "bool"
    if whole:
        if operator == "Pow" and (a, b) == ("bool", "int32"):
            return "float32", "int32", "float32"
        one, other, result = _whole_pair(a, b)
        return one, other, "float64" if operator == "Div" else result
    if operator == "Pow" and b in INTEGERS:
        power = "int64" if b == "int64" else "uint64" if b in UNSIGNED else "int32"
        base = "float64" if a == "float64" else "float32"
        return base, power, base
    meet = _float(a, b, _OPERAND)
    if meet == "float16" and operator in ("FloorDiv", "Mod", "Pow"):
        meet = "float32"
    return meet, meet, meet


def _whole_pair(a: str, b: str) -> tuple[str, str, str]:
    one, other = ("uint64" if name in UNSIGNED else "int64" for name in (a, b))
    return one, other, "uint64" if one == other == "uint64" else "int64"


@cache
def unary(operator: str, a: str) -> str | None:
    """The type of -a, +a, ~a or not a."""
    if operator == "Not":
        return "bool"
    if operator == "Invert":
        return None if a in FLOATS else a if a == "bool" else _whole_pair(a, a)[2]
    return a if a in FLOATS else _whole_pair(a, a)[2]


@cache
def cost(a: str, to: str) -> tuple[int, int, int]:
    """Flags of a conversion: unsafe, safe to another kind of number, and promotion within a kind."""
    if a == to:
        return 0, 0, 0
    if to in FLOATS:
        holds = (FLOATS.get(a) or _OPERAND[a]) <= FLOATS[to]
        promotes = holds and a in FLOATS
    else:
        holds = a == "bool" or (a in INTEGERS and INTEGERS[a] < INTEGERS[to] and (a in UNSIGNED or to in SIGNED))
        promotes = holds and a != "bool" and (a in SIGNED) == (to in SIGNED)
    return int(not holds), int(holds and not promotes), int(promotes)


@cache
def chosen(signatures: tuple[tuple[str, ...], ...], names: tuple[str, ...]) -> tuple[str, ...]:
    """The signature to which the arguments are converted most safely, the first of equals."""
    return min(signatures, key=lambda to: [sum(each) for each in zip(*map(cost, names, to), strict=True)])


@cache
def unify(a: str, b: str) -> str:
    """The type of a variable that may be either type, and of ``min`` and ``max``."""
    if a == b or b == "bool":
        return a
    if a == "bool":
        return b
    if a in FLOATS or b in FLOATS:
        return _float(a, b, _UNIFIED)
    if (a in SIGNED) == (b in SIGNED):
        return a if INTEGERS[a] >= INTEGERS[b] else b
    signed, unsigned = (a, b) if a in SIGNED else (b, a)
    bits = max(SIGNED[signed], 2 * UNSIGNED[unsigned])
    return f"int{bits}" if bits <= 64 else "float64"
