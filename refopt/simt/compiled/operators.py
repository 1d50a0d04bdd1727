"""Functions for operators on scalars by Numba's rules, for operands that NumPy or Python would treat differently.

Integer division rounds toward minus infinity, as in Python, and division by 0 gives 0. A shift by the number of bits or
more, or by a negative count, shifts out all bits. Floats follow NumPy's error model, as in Numba's kernels: x / 0 is
infinite.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np

from ..base import record
from ..base.conversions import CONVERSIONS, computed, name_of, wrapped
from ..base.errors import IntegerError
from ..base.places import here, report
from ..base.scalars import COMPLEX, FLOATS, SIGNS, unify
from ..base.state import current

SYMBOLS: dict[str, Callable[[Any, Any], Any]] = {
    "Add": operator.add, "Sub": operator.sub, "Mult": operator.mul, "Div": operator.truediv,
    "FloorDiv": operator.floordiv, "Mod": operator.mod, "Pow": operator.pow, "LShift": operator.lshift,
    "RShift": operator.rshift, "BitAnd": operator.and_, "BitOr": operator.or_, "BitXor": operator.xor,
    "Lt": operator.lt, "LtE": operator.le, "Gt": operator.gt, "GtE": operator.ge, "Eq": operator.eq,
    "NotEq": operator.ne,
}
_CUTOFF = 0x10000  # for larger exponents Numba computes powers in floats
COMPARISONS = {"Lt", "LtE", "Gt", "GtE", "Eq", "NotEq"}
IN_PLACE = {
    getattr(operator, f"i{function.__name__.strip('_')}"): name
    for name, function in SYMBOLS.items()
    if name not in COMPARISONS
}


@cache
def typed(symbol: str, a: str, b: str) -> Callable[[Any, Any], Any]:
    """The operator for operands of two scalar types that Numba accepts."""
    rule = record.signature(f"a {SIGNS[symbol]} b", a, b)
    to_a, to_b, result = rule  # type: ignore[misc]
    first, second, compute = CONVERSIONS[to_a], CONVERSIONS[to_b], _computation(symbol, to_a, to_b, result)

    def apply(x: Any, y: Any) -> Any:
        return compute(first(x), second(y))

    apply.__name__ = f"{symbol}_{a}_{b}"
    apply.spec = symbol, rule  # type: ignore[attr-defined]
    return apply


def _computation(symbol: str, a: str, b: str, result: str) -> Callable[[Any, Any], Any]:
    """The operator on converted operands."""
    plain = SYMBOLS[symbol]
    if symbol in COMPARISONS:
        return plain
    if result in COMPLEX:
        return lambda x, y: of_complex(symbol, x, y)
    if symbol == "Div" and result == "float64":
        return lambda x, y: np.float64(x) / np.float64(y)
    if symbol == "Pow":
        return _power(b, result)
    if result in FLOATS:
        return divisions.get(symbol, plain)
    if symbol == "LShift":
        return _left(result)
    if symbol == "RShift":
        return lambda x, y: _right(x, y, result)
    if result == "bool":
        return lambda x, y: bool(plain(x, y))
    whole = {"FloorDiv": _floor, "Mod": lambda x, y: x % y if y else _by_zero()}.get(symbol, plain)
    narrow: Callable[[Any], Any] = wrapped if result == "int64" else CONVERSIONS[result]
    return lambda x, y: narrow(whole(_signed(int(x), result), _signed(int(y), result)))


def of_complex(symbol: str, x: Any, y: Any) -> Any:
    """A sum, difference, product or quotient of complex numbers, or of arrays of them, as Numba computes it."""
    a, b, c, d = x.real, x.imag, y.real, y.imag
    if symbol == "Mult":
        return complex_of(a * c - b * d, a * d + b * c)
    if symbol != "Div":
        plain = SYMBOLS[symbol]
        return complex_of(plain(a, c), plain(b, d))
    with np.errstate(all="ignore"):  # the quotient of CPython
        swap = ~(np.abs(c) >= np.abs(d))
        larger, smaller = np.where(swap, d, c), np.where(swap, c, d)
        ratio = smaller / larger
        whole = larger + smaller * ratio
        real = np.where(swap, b, a) + np.where(swap, a, b) * ratio
        return complex_of(real / whole, np.where(swap, b * ratio - a, b - a * ratio) / whole)


def complex_of(real: Any, imag: Any) -> Any:
    """The complex number of two floats, or arrays, of one type."""
    new = np.empty(np.broadcast_shapes(np.shape(real), np.shape(imag)), np.result_type(real, imag, np.complex64))
    new.real, new.imag = real, imag
    return new if new.ndim else new[()]


def _remainder(x: Any, y: Any) -> Any:
    """The remainder, with the sign of x, as in PTX: from the rounded quotient."""
    left = np.abs(x) - np.floor(np.abs(x) / np.abs(y)) * np.abs(y)
    return np.where(x < 0, -left, left)


def _float_mod(x: Any, y: Any) -> Any:
    """``x % y`` of floats, or arrays of them, as Numba and PTX compute it."""
    with np.errstate(all="ignore"):
        left = _remainder(x, y)
        signed = np.where((y < 0) != (left < 0), left + y, left)
        zero = np.where(y < 0, -np.zeros_like(y), np.zeros_like(y))
        return np.where(y == 0, left, np.where(left != 0, signed, zero))[()]


def _float_floor(x: Any, y: Any) -> Any:
    """``x // y`` of floats, or arrays of them."""
    with np.errstate(all="ignore"):
        left = _remainder(x, y)
        ratio = (x - left) / y
        ratio = np.where((left != 0) & ((y < 0) != (left < 0)), ratio - 1, ratio)
        whole = np.floor(ratio)
        whole = np.where(ratio - whole > 0.5, whole + 1, whole)
        found = np.where((ratio == 0) | (ratio != ratio), ratio * ratio * x / y, whole)
        return np.where(y == 0, x / y, found)[()]


divisions: dict[str, Callable[[Any, Any], Any]] = {"FloorDiv": _float_floor, "Mod": _float_mod}


def _floor(x: int, y: int) -> int:
    return x // y if y and (y != -1 or x != -(2**63)) else 0 if y else _by_zero()


def _by_zero() -> int:
    """The result of an integer division by zero; watched, it is reported as a defect."""
    observer = current.observer
    if observer is not None and observer.watching and observer.rules.zero_division:
        report(IntegerError("an integer is divided by zero (rule zero-division)", here()))
    return 0


def _signed(x: int, result: str) -> int:
    """An operand converted to the type of the result."""
    return wrapped(x) if result == "int64" else x


def _left(result: str) -> Callable[[Any, Any], Any]:
    narrow: Callable[[Any], Any] = wrapped if result == "int64" else CONVERSIONS[result]
    return lambda x, y: narrow(int(x) << int(y) if 0 <= y < 64 else 0)


def _right(x: Any, y: Any, result: str) -> Any:
    return CONVERSIONS[result](int(x) >> (int(y) if 0 <= y < 64 else 64))


def _power(b: str, result: str) -> Callable[[Any, Any], Any]:
    if result in FLOATS:
        kind = getattr(np, result)

        def real_power(x: Any, y: Any) -> Any:
            if b not in FLOATS and abs(y) <= _CUTOFF:
                return squarings(x, y)
            return kind(np.power(np.float64(x), np.float64(y)))

        return real_power
    narrow: Callable[[Any], Any] = wrapped if result == "int64" else CONVERSIONS[result]

    def power(x: Any, y: Any) -> Any:
        x, y = int(x), int(y)
        if abs(y) > _CUTOFF:
            return CONVERSIONS[result](np.power(np.float64(x), np.float64(y)))
        if y < 0:
            return -(2**63) if x == 0 else x ** (y % 2) if x in (1, -1) else 0
        return narrow(pow(x, y, 2**64))

    return power


def squarings(x: Any, exponent: int) -> Any:
    """An integer power of a float by repeated squaring in its type, as Numba does up to the cutoff."""
    invert, exponent, one = exponent < 0, abs(int(exponent)), type(x)(1)
    result, factor = one, x
    while exponent:
        if exponent & 1:
            result = result * factor
        exponent >>= 1
        factor = factor * factor
    return one / result if invert else result


@cache
def negation(symbol: str, a: str) -> Callable[[Any], Any]:
    """-x, +x or ~x of a scalar type. An integer is negated in its own width, then widened; an int16 is widened first,
    since an H200 executes ``neg.s16`` in 32 bits."""
    result = record.result(f"{SIGNS[symbol]}a", a)
    plain: Any = {"USub": operator.neg, "UAdd": operator.pos, "Invert": operator.invert}[symbol]
    assert result is not None
    if result == "bool":
        return lambda x: not x
    if result in FLOATS or result in COMPLEX:
        return plain
    own, wide = CONVERSIONS["int64" if a in ("bool", "int16") else a], CONVERSIONS[result]
    return lambda x: wide(own(plain(int(x))))


@cache
def extreme(greatest: bool, *names: str) -> Callable[..., Any]:
    """``max`` or ``min`` of scalar types, in the unified type."""

    def pick(*values: Any) -> Any:
        return folded_extreme(greatest, names, values)

    def pick_one(x: Any, y: Any) -> Any:
        first, last = (x, y) if greatest else (y, x)
        return y if last > first else x if last < first else pick(x, y)

    choose: Any = pick_one if len(names) == 2 and names[0] == names[1] else pick
    choose.spec = greatest, names
    return choose


def folded_extreme(
    greatest: bool, names: tuple[str, ...], values: tuple,
    convert: Callable[[str, Any], Any] = lambda name, x: CONVERSIONS[name](x),
    choose: Callable[[Any, Any, Any], Any] = lambda test, x, y: x if test else y,
) -> Any:
    """The greatest or least value; by lanes, with their conversion and choice.

    For two floats, float32 or float64, it is PTX's instruction, which returns the other operand for a NaN; otherwise
    it is Python's loop, in which a NaN is kept only if it comes first.
    """
    instruction = len(names) == 2 and set(names) <= {"float32", "float64"}
    best, name = values[0], names[0]
    for value, other in zip(values[1:], names[1:], strict=True):
        name = unify(name, other)
        best, value = convert(name, best), convert(name, value)
        above = value > best if greatest else value < best
        if instruction:
            above = above | (best != best) | ((value == best) & (best == 0) & (np.signbit(best) == greatest))
        best = choose(above, value, best)
    return best


def absolute(x: Any) -> Any:
    """``abs``, in the type of x, of a complex number in that of its parts; the least integer is returned unchanged."""
    name = name_of(x)
    if name in FLOATS:
        return abs(x)
    if name in COMPLEX:
        return x.real.dtype.type(np.hypot(np.float64(x.real), np.float64(x.imag)))
    new = CONVERSIONS["int8" if name == "bool" else name](abs(int(x)))  # type: ignore[index]
    if new < 0:
        computed(-int(x), name or "")
    return new
