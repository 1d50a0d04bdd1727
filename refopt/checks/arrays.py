"""Descriptions of arrays for the checks, and the checks that apply to any array."""

import math
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from refopt.checks.dtypes import ITEM_SIZES, coded_bytes, name_of

PLAIN = np.ndarray, np.memmap  # the second differs only in where it is stored


class Array(NamedTuple):
    """The properties of an array that the checks need. Strides are in bytes."""

    address: int
    shape: tuple[int, ...]
    dtype: str
    strides: tuple[int, ...]
    writable: bool

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    @property
    def span(self) -> tuple[int, int]:
        """The addresses at which it begins and ends, if it is dense."""
        return self.address, self.address + self.size * ITEM_SIZES[self.dtype]

    def in_c_order(self) -> bool:
        """Whether it is C-contiguous."""
        expected = c_strides(self.shape, ITEM_SIZES[self.dtype])
        axes = zip(self.shape, self.strides, expected, strict=True)
        return not self.size or all(extent == 1 or stride == other for extent, stride, other in axes)

    def layout(self) -> tuple[int, ...] | None:
        """Strides in elements, 0 for extents of 1; None if the array is not dense in any axis order."""
        return _layout(self.shape, self.strides, ITEM_SIZES[self.dtype])


@lru_cache  # since a model has thousands of tensors of few shapes
def _layout(shape: tuple[int, ...], strides: tuple[int, ...], item: int) -> tuple[int, ...] | None:
    if math.prod(shape) == 0:
        return ()
    expected = item
    for stride, extent in sorted((s, n) for s, n in zip(strides, shape, strict=True) if n > 1):
        if stride != expected:
            return None
        expected *= extent
    return tuple(s // item if n > 1 else 0 for s, n in zip(strides, shape, strict=True))


def c_strides(shape: Sequence[int], item: int) -> tuple[int, ...]:
    """Strides in bytes of a C-contiguous array with elements of `item` bytes."""
    return tuple(item * math.prod(shape[axis + 1 :]) for axis in range(len(shape)))


def host_array(value: Any, where: str) -> Array:
    """Describe a NumPy array; raise for anything else."""
    check_plain(where, value)
    check_native(where, value.dtype)
    return Array(value.ctypes.data, value.shape, name_of(value.dtype), value.strides, value.flags.writeable)


def check_plain(where: str, value: Any) -> None:
    """Refuse anything but a NumPy array, and its subclasses: matrices and masked arrays compute differently."""
    if type(value) not in PLAIN:
        kind = "plain " if isinstance(value, np.ndarray) else ""
        raise TypeError(f"{where}: expected a {kind}NumPy array, got {type(value).__module__}.{type(value).__name__}")


def check_native(where: str, dtype: Any) -> None:
    """Refuse non-native byte order."""
    if isinstance(dtype, np.dtype) and not dtype.isnative:
        raise TypeError(f"{where}: expected native byte order, got {dtype.str}")


def flat(array: np.ndarray | None) -> np.ndarray | None:
    """The elements of a dense array in memory order: a view, shape (size,)."""
    if array is None:
        return None
    array = np.asarray(array)  # np.memmap as a plain array
    if array.flags.c_contiguous:
        return array.reshape(-1)
    return array.transpose(np.argsort([-s for s in array.strides], kind="stable")).reshape(-1)


def dense(array: np.ndarray) -> np.ndarray:
    """The array itself if it is dense in some order of axes; else a copy in C order.

    Raises:
        TypeError: if its elements are references to objects, which are meaningless on a device.
    """
    if array.dtype.hasobject:
        raise TypeError(f"to_device: array: expected numbers, got {array.dtype}")
    elements = np.asarray(flat(array))
    if elements.flags.c_contiguous and np.may_share_memory(elements, array):
        return array
    return np.array(array, order="C")


def require_subnormals() -> None:
    """Refuse to compute in a thread that flushes subnormal numbers to zero (numerics, N14)."""
    with np.errstate(all="ignore"):
        half = np.finfo(np.float32).tiny / np.float32(2)
    if half == 0:
        raise RuntimeError(
            "this thread flushes subnormal numbers to zero, so results would differ from the specification; a library "
            "built with -ffast-math that was loaded earlier may have turned that on"
        )


def check_dense(where: str, array: Array) -> tuple[int, ...]:
    """Refuse an array with gaps; return its layout."""
    layout = array.layout()
    if layout is None:
        raise ValueError(f"{where}: expected a dense array, got strides {array.strides} for {array.shape}")
    return layout


def alike(array: Any, like: np.ndarray) -> bool:
    """Whether something is an array that differs from another only in its values, and shares no memory with it.

    This is a quick test: if it fails, `check_like` and the other checks say why, or that the array is acceptable.
    """
    same = type(array) is np.ndarray and array.dtype == like.dtype and array.shape == like.shape
    return same and array.strides == like.strides and not np.may_share_memory(array, like)


def check_like(where: str, array: Array, like: Array, name: str, *, written: bool = False) -> None:
    """Refuse an array with gaps, with another shape or axis order than the array ``name``, or read-only if written."""
    if array.shape != like.shape:
        raise ValueError(f"{where}: expected shape {like.shape}, as {name} has, got {array.shape}")
    layout, expected = check_dense(where, array), like.layout()
    if layout != expected:
        order = f"the axis order of {name} with strides of {expected} elements"
        raise ValueError(f"{where}: expected {order}, got {layout}")
    if written:
        check_writable(where, array)


def check_coded(where: str, array: Array, size: int) -> None:
    """Refuse a coded state (numerics, N21) unless it has the bytes of so many elements, aligned to its scales."""
    if array.shape != (expected := (coded_bytes(size),)):
        raise ValueError(f"{where}: expected shape {expected} for {size} elements in 8 bits, got {array.shape}")
    check_dense(where, array)
    if array.size and array.address % 4:
        raise ValueError(f"{where}: expected an address divisible by 4, got one with remainder {array.address % 4}")
    check_writable(where, array)


def check_writable(where: str, array: Array) -> None:
    """Refuse a read-only array."""
    if not array.writable:
        raise ValueError(f"{where}: expected a writable array, got a read-only one")


def check_one(where: str, array: Array, dtypes: list[str], *, written: bool = False) -> None:
    """Refuse an array that does not have one element of one of some dtypes, or is read-only though written."""
    if array.size != 1:
        raise ValueError(f"{where}: expected one element, got shape {array.shape}")
    if array.dtype not in dtypes:
        raise TypeError(f"{where}: expected {' or '.join(dtypes)}, got {array.dtype}")
    if written:
        check_writable(where, array)


def check_by_row(where: str, array: Array, dtype: str) -> None:
    """Refuse a state by row of another dtype or that is not C-contiguous, or read-only."""
    if array.dtype != dtype:
        raise TypeError(f"{where}: expected {dtype}, got {array.dtype}")
    check_c_order(where, array)
    check_writable(where, array)


def check_c_order(where: str, array: Array) -> None:
    """Refuse an array that is not C-contiguous."""
    if not array.in_c_order():
        raise ValueError(f"{where}: expected a C-contiguous array, got strides {array.strides} for {array.shape}")


def refuse_overlaps(name: str, spans: Iterator[tuple[int, int, bool, str]]) -> None:
    """Raise if a span of addresses that is written shares memory with any other."""
    reach: dict[bool, tuple[int, str]] = {True: (0, ""), False: (0, "")}
    for start, stop, written, label in sorted(spans):
        for other_written, (end, other) in reach.items():
            if start < end and (written or other_written):
                raise ValueError(f"{name}: {label}: expected memory of its own, got an overlap with {other}")
        reach[written] = max(reach[written], (stop, label))
