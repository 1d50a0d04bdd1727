"""Which bytes of device memory have been written, as far as that is known.

This is known for allocations that no copy has filled, as long as every launch that may have written to them was
watched. After an unwatched launch its arguments count as initialized, and all memory does if one of them may hold an
address; so do bytes that host code writes directly.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from .buffers import POISON, Buffer

_generation = 0


def fresh(buffer: Buffer) -> None:
    """Record that a buffer has not been written yet."""
    buffer.fresh = _generation


def assume(buffer: Buffer) -> None:
    """Count all of a buffer as initialized."""
    buffer.fresh, buffer.written = -1, None


def assume_all() -> None:
    """Count all existing memory as initialized."""
    global _generation
    _generation += 1


def track(buffer: Buffer) -> None:
    """Give a buffer a record of its bytes, if it is known which have been written."""
    if buffer.fresh != _generation:
        assume(buffer)
    elif buffer.written is None:
        buffer.written = blank(buffer)


def written(array: Any) -> np.ndarray | None:
    """For each byte of an array, whether it has been written; None if all may have been."""
    if array.buffer.mapped:
        host_wrote(array)
    track(array.buffer)
    return bytes_of(array) if array.buffer.written is not None and array.size else None


Kept = tuple[Buffer, np.ndarray, bytes | None]


def kept(buffer: Buffer) -> Kept:
    """A buffer with copies of its contents and of the record of its bytes."""
    return buffer, buffer.data.copy(), None if buffer.written is None else bytes(buffer.written)


def restore(before: Iterable[Kept]) -> None:
    """Restore the contents of buffers, and the records of their bytes."""
    for buffer, data, known in before:
        buffer.data[...] = data
        buffer.written = None if known is None else bytearray(known)


def blank(buffer: Buffer) -> bytearray:
    """A record in which no byte is written, except the padding between fields, which never will be."""
    kind = buffer.dtype
    if kind.names is None:
        return bytearray(buffer.nbytes)
    one = np.ones(kind.itemsize, np.uint8)
    _fields(kind, one)
    return bytearray(one.tobytes() * (buffer.nbytes // kind.itemsize) + bytes(buffer.nbytes % kind.itemsize))


def _fields(kind: np.dtype, mask: np.ndarray) -> None:
    """Set to 0 the bytes of a mask that a type uses."""
    if kind.subdtype is not None:
        base, count = kind.base, kind.itemsize // kind.base.itemsize
        for i in range(count):
            _fields(base, mask[i * base.itemsize :])
    elif kind.names is not None:
        for field, start in (entry[:2] for entry in (kind.fields or {}).values()):
            _fields(field, mask[start:])
    else:
        mask[: kind.itemsize] = 0


def taken(array: Any) -> None:
    """An unwatched launch takes an array, which may hold addresses of others."""
    assume(array.buffer)
    if array.dtype.kind in "iu" and array.dtype.itemsize == 8:
        assume_all()


def host_wrote(array: Any) -> None:
    """Record the host's direct writes to an array that both access: all elements that are not poison."""
    track(array.buffer)
    if array.buffer.written is not None:
        bytes_of(array)[~_poisoned(array.data)] = 1


def _poisoned(values: np.ndarray) -> np.ndarray:
    """For each element, whether it is poison, thus unwritten. Below four bytes, poison could be a value."""
    size = values.dtype.itemsize
    if size < 4:
        return np.zeros(values.shape, bool)
    return (np.ascontiguousarray(values).view(np.uint8).reshape(*values.shape, size) == POISON).all(-1)


def copied_poison(target: Any, values: np.ndarray) -> None:
    """After `copied`: the host array was poisoned; its unwritten elements stay uninitialized."""
    poison = _poisoned(values)
    if poison.any():
        if target.buffer.fresh == -1:
            target.buffer.fresh, target.buffer.written = _generation, bytearray(b"\1" * target.buffer.nbytes)
        bytes_of(target)[poison] = 0


def copied(target: Any, source: Any = None) -> None:
    """The host copies to a device array, from another (perhaps uninitialized) or from host memory."""
    buffer = target.buffer
    unknown = source is None or source.buffer.fresh != _generation
    if buffer.fresh != _generation or (unknown and target.nbytes == buffer.nbytes):
        assume(buffer)
        return
    track(buffer)
    if unknown:
        bytes_of(target)[...] = 1
    else:
        track(source.buffer)
        bytes_of(target)[...] = bytes_of(source)


def bytes_of(array: Any) -> np.ndarray:
    """For each byte of an array, along a last axis, whether it is initialized."""
    shape, strides = (*array.shape, array.data.itemsize), (*array.strides, 1)
    return np.ndarray(shape, np.uint8, array.buffer.written, array.offset, strides)
