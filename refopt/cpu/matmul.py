"""Matrix products with specified bits (numerics, N17): those of a tensor core, and plain ones in fp32 and fp64.

A tensor core multiplies 16-bit matrices and accumulates in fp32, but not as a sequence of IEEE additions. It takes the
terms of an element in chunks along k, and adds each chunk and the accumulator in one step. On Hopper a chunk has 16
products::

    each product is exact: an integer of two significands, with the sum of the two exponents
    top  = the largest exponent of the 16 products and the accumulator, zeros left out; at least -133
    unit = 2**(top - 25)
    sum  = the 17 terms, each truncated to a multiple of unit, added exactly
    accumulator = sum, truncated to fp32

Truncation is toward zero. The exponent of a product is the sum of its factors' exponents, even if the product of the
significands is 2 or more. Within a chunk the order does not matter; from chunk to chunk it does. `by_integers` computes
this as written here, one element at a time. `matmul` computes the same bits fast, and also multiplies fp32 and fp64
matrices: one multiplication and one addition for each k, in order.

The model was compared with an H100 and an H200: 0 of 4,096,000 results differed on each. That terms are aligned to an
exponent of at least -133 was found on an H100, from sums of subnormal size: without it 216 of 212,992 differ, with it
none. Models of other generations are in arXiv:2511.10909 and arXiv:2512.07004; until one has been measured here,
`tensor_core` refuses it.
"""

import math
from typing import Any, NamedTuple

import numpy as np

from refopt import checks
from refopt.checks.arguments import chosen, is_whole, shown, whole
from refopt.checks.dtypes import SIZES, name_of

NAN = np.uint32(0x7FFFFFFF).view(np.float32)  # the NaN of tensor cores
NEVER = -8000  # stands for the exponent of zero: below that of any product
BLOCK = 4096  # elements of the product at once, so that the terms of a chunk stay in the cache


class TensorCore(NamedTuple):
    """How a tensor core adds: products per ``chunk``, bits ``kept`` below the top, ``rounding`` to fp32.

    Terms are aligned to the exponent ``lowest`` if all of theirs are below it.
    """

    chunk: int = 16
    kept: int = 25
    rounding: str = "truncate"
    lowest: int = -133


HOPPER = TensorCore()
MEASURED = {(9, 0): HOPPER}
ROUNDINGS = "truncate", "nearest"
# Bits of the fraction and bias of the exponent.
FORMATS = {"bfloat16": (7, 127), "float16": (10, 15), "float32": (23, 127)}


def tensor_core(capability: tuple[int, int]) -> TensorCore:
    """The tensor core of a compute capability.

    Raises:
        ValueError: this tensor core has not been measured.
    """
    plain = capability if isinstance(capability, tuple) and all(map(is_whole, capability)) else None
    if plain not in MEASURED:
        expected = f"one that has been measured, {', '.join(map(str, MEASURED))}"
        raise ValueError(f"tensor_core: capability: expected {expected}, got {shown(capability)}")
    return MEASURED[plain]


def matmul(a: np.ndarray, b: np.ndarray, *, core: TensorCore = HOPPER) -> np.ndarray:
    """The product of two matrices, with specified bits.

    Args:
        a: shape (m, k), of bf16, fp16, fp32 or fp64, with any strides.
        b: shape (k, n), of the same dtype.
        core: for bf16 and fp16, how the tensor core adds. A chunk has 1 to 1,024 products, 1 to 40 bits are kept,
            ``lowest`` is -300 to 0, and ``rounding`` is ``"truncate"`` or ``"nearest"`` (ties to even).

    Returns:
        The array of shape (m, n): fp64 for fp64 matrices, else fp32. A tensor core's zeros are +0, its overflows are
        infinite, and its NaN is 0x7fffffff.

    Raises:
        ValueError, TypeError: the message names the argument.
    """
    checks.require_subnormals()
    dtype = _check(a, b, core)
    product = np.zeros((a.shape[0], b.shape[1]), np.float64 if dtype == "float64" else np.float32)
    columns = min(256, product.shape[1]) or 1
    rows = BLOCK // columns
    with np.errstate(all="ignore"):
        for i in range(0, product.shape[0], rows):
            for j in range(0, product.shape[1], columns):
                sides = a[i : i + rows], b[:, j : j + columns]
                block = _sequence(*sides) if dtype in ("float32", "float64") else _chunks(*sides, core)
                product[i : i + rows, j : j + columns] = block
    return product


def _sequence(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """One multiplication and one addition for each k, both rounded to nearest."""
    accumulator = np.zeros((a.shape[0], b.shape[1]), a.dtype)
    for k in range(a.shape[1]):
        accumulator += a[:, k, None] * b[k]
    return accumulator


def _chunks(a: np.ndarray, b: np.ndarray, core: TensorCore) -> np.ndarray:
    """A tensor core's product, chunk by chunk."""
    left, right = ((x.astype(np.float64), exponents(x)) for x in (a, b))
    accumulator = np.zeros((a.shape[0], b.shape[1]), np.float32)
    for k in range(0, a.shape[1], core.chunk):
        of = slice(k, k + core.chunk)
        accumulator = accumulate(accumulator, [x[:, of] for x in left], [x[of] for x in right], core)
    return accumulator


def accumulate(accumulator: np.ndarray, a: Any, b: Any, core: TensorCore = HOPPER) -> np.ndarray:
    """The accumulator plus a chunk of products, as a tensor core adds them.

    It is computed in fp64, which represents every term exactly: a product has 22 bits, a sum of a chunk 53.

    Args:
        accumulator: fp32, shape (..., m, n).
        a, b: fp64 values and their `exponents`, shapes (..., m, chunk) and (..., chunk, n).
        core: how it adds.

    Returns:
        An array like the accumulator.
    """
    products = a[0][..., None] * b[0][..., None, :, :]
    top = (a[1][..., None] + b[1][..., None, :, :]).max(-2)
    top = np.maximum(np.maximum(top, exponents(accumulator)), core.lowest)
    units = _power(core.kept - top)  # in a number of the magnitude of 1
    products *= units[..., None, :]
    np.trunc(products, out=products)
    total = products.sum(-2) + np.trunc(accumulator * units)
    rounded = _fp32(total * _power(top - core.kept), core.rounding)
    return np.where(np.isnan(rounded), NAN, rounded)


def exponents(x: np.ndarray) -> np.ndarray:
    """The exponent of each number; subnormal numbers have that of the smallest normal one."""
    fraction, bias = FORMATS[name_of(x.dtype)]
    bits = x.view(f"u{x.itemsize}") & np.array((1 << 8 * x.itemsize - 1) - 1, f"u{x.itemsize}")
    stored = np.maximum((bits >> fraction).astype(np.int16), 1) - np.int16(bias)
    return np.where(bits == 0, np.int16(NEVER), stored)


def _power(exponents: np.ndarray) -> np.ndarray:
    """2 to the power of each, as fp64."""
    return ((exponents.astype(np.int64) + 1023) << 52).view(np.float64)


def _fp32(x: np.ndarray, rounding: str) -> np.ndarray:
    """fp64 as fp32; zeros become +0, and overflows infinite."""
    if rounding == "truncate":
        normal = (x.view(np.int64) & (-1 << 29)).view(np.float64)  # 24 bits of 53
        x = np.where(np.abs(x) < 2.0**-126, np.trunc(x * 2.0**149) * 2.0**-149, normal)
    return x.astype(np.float32) + np.float32(0)


# The same in integers, one element at a time.


def by_integers(a: np.ndarray, b: np.ndarray, *, core: TensorCore = HOPPER) -> np.ndarray:
    """`matmul` of bf16 or fp16 matrices, with Python integers: slow, but exactly the measured model."""
    dtype = _check(a, b, core)
    if dtype not in ("bfloat16", "float16"):
        raise TypeError(f"by_integers: a: expected bfloat16 or float16, got {dtype}")
    product = np.zeros((a.shape[0], b.shape[1]), np.float32)
    for i, row in enumerate(a):
        for j, column in enumerate(b.T):
            accumulator = np.float32(0)
            for k in range(0, len(row), core.chunk):
                accumulator = add_chunk(accumulator, row[k : k + core.chunk], column[k : k + core.chunk], core)
            product[i, j] = accumulator
    return product


def add_chunk(accumulator: np.float32, xs: np.ndarray, ys: np.ndarray, core: TensorCore) -> np.float32:
    """The accumulator plus the products of two chunks."""
    exact = [float(accumulator), *(float(x) * float(y) for x, y in zip(xs, ys, strict=True))]
    if not all(map(math.isfinite, exact)):
        return NAN if math.isnan(sum(exact)) else np.float32(sum(exact))
    # Each term is significand * 2**(exponent - fraction); ``fraction`` counts its bits after the point.
    terms = [(*parts(accumulator), FORMATS["float32"][0])]
    fraction = FORMATS[name_of(xs.dtype)][0]
    for (x, x_exponent), (y, y_exponent) in zip(map(parts, xs), map(parts, ys), strict=True):
        terms.append((x * y, x_exponent + y_exponent, 2 * fraction))
    terms = [term for term in terms if term[0] != 0]
    if not terms:
        return np.float32(0)
    top = max(core.lowest, *(exponent for _, exponent, _ in terms))
    total = sum(shifted(term, core.kept - fraction - (top - exponent)) for term, exponent, fraction in terms)
    return fp32_of(total, top - core.kept, core.rounding)


def parts(x: Any) -> tuple[int, int]:
    """The signed significand of a number, an integer, and its exponent: 1.5 in bf16 is (192, 0), 192 * 2**(0 - 7)."""
    fraction, bias = FORMATS[name_of(x.dtype)]
    bits = int(x.view(f"u{x.itemsize}"))
    sign, field = bits >> 8 * x.itemsize - 1, bits >> fraction & (1 << 8 * x.itemsize - 1 - fraction) - 1
    significand = bits & (1 << fraction) - 1 | bool(field) << fraction
    return -significand if sign else significand, max(field, 1) - bias


def shifted(x: int, places: int) -> int:
    """x * 2**places, truncated to an integer."""
    magnitude = abs(x) << places if places >= 0 else abs(x) >> -places
    return -magnitude if x < 0 else magnitude


def fp32_of(total: int, exponent: int, rounding: str) -> np.float32:
    """total * 2**exponent as fp32, to 24 bits, or to multiples of 2**-149."""
    lost = max(total.bit_length() - 24, -149 - exponent, 0)
    kept = shifted(total, -lost)
    beyond = abs(total) - (abs(kept) << lost)
    half = 1 << lost >> 1
    if rounding == "nearest" and lost and (beyond > half or (beyond == half and kept % 2)):
        kept += 1 if total > 0 else -1
    x = math.ldexp(kept, exponent + lost)
    return np.float32(math.copysign(math.inf, x) if abs(x) >= 2.0**128 else x)


def _check(a: Any, b: Any, core: Any) -> str:
    """Refuse operands without a product; returns the name of the dtype."""
    arrays = [checks.host_array(x, f"matmul: {name}") for name, x in (("a", a), ("b", b))]
    for name, x in zip("ab", arrays, strict=True):
        if len(x.shape) != 2:
            raise ValueError(f"matmul: {name}: expected a matrix, got shape {x.shape}")
        if x.dtype not in SIZES:
            raise TypeError(f"matmul: {name}: expected one of {', '.join(SIZES)}, got {x.dtype}")
    if arrays[1].dtype != arrays[0].dtype:
        raise TypeError(f"matmul: b: expected {arrays[0].dtype}, as a has, got {arrays[1].dtype}")
    if a.shape[1] != b.shape[0]:
        raise ValueError(f"matmul: b: expected {a.shape[1]} rows, as many as a has columns, got {b.shape[0]}")
    if not isinstance(core, TensorCore):
        raise TypeError(f"matmul: core: expected a TensorCore, got {shown(core)}")
    whole("matmul: core.chunk", core.chunk, 1, 1024)
    whole("matmul: core.kept", core.kept, 1, 40)
    whole("matmul: core.lowest", core.lowest, -300, 0)
    chosen("matmul: core.rounding", core.rounding, ROUNDINGS)
    return arrays[0].dtype
