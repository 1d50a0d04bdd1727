"""Which bytes of device memory somebody has written, as far as that is known.

It is known of allocations that no copy has filled, as long as every launch that may have written to them was
watched. A launch that is not watched makes what it takes count as initialised, and everything if it takes an
address; so does host code that writes to the bytes itself.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from .buffers import POISON, Buffer

_generation = 0


def fresh(buffer: Buffer) -> None:
    """Nobody has written to a buffer yet."""
    buffer.fresh = _generation


def assume(buffer: Buffer) -> None:
    """All of a buffer counts as initialised."""
    buffer.fresh, buffer.written = -1, None


def assume_all() -> None:
    """All memory of now counts as initialised."""
    global _generation
    _generation += 1


def track(buffer: Buffer) -> None:
    """Let a buffer have a record of its bytes, if it is known what has been written."""
    if buffer.fresh != _generation:
        assume(buffer)
    elif buffer.written is None:
        buffer.written = blank(buffer)


def written(array: Any) -> np.ndarray | None:
    """For each byte of an array whether somebody has written it; None if all may have been."""
    if array.buffer.mapped:
        host_wrote(array)
    track(array.buffer)
    return bytes_of(array) if array.buffer.written is not None and array.size else None


Kept = tuple[Buffer, np.ndarray, bytes | None]


def kept(buffer: Buffer) -> Kept:
    """A buffer with a copy of what is in it, and of the record of its bytes."""
    return buffer, buffer.data.copy(), None if buffer.written is None else bytes(buffer.written)


def restore(before: Iterable[Kept]) -> None:
    """Bring back what was in buffers, and what counted as written."""
    for buffer, data, known in before:
        buffer.data[...] = data
        buffer.written = None if known is None else bytearray(known)


def blank(buffer: Buffer) -> bytearray:
    """A record of bytes of which nobody has written any, but for those between the fields, which nobody will."""
    kind = buffer.dtype
    if kind.names is None:
        return bytearray(buffer.nbytes)
    one = np.ones(kind.itemsize, np.uint8)
    _fields(kind, one)
    return bytearray(one.tobytes() * (buffer.nbytes // kind.itemsize) + bytes(buffer.nbytes % kind.itemsize))


def _fields(kind: np.dtype, mask: np.ndarray) -> None:
    """Set the bytes of a mask that a type uses to 0."""
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
    """A launch that is not watched takes an array, which may hold addresses of others."""
    assume(array.buffer)
    if array.dtype.kind in "iu" and array.dtype.itemsize == 8:
        assume_all()


def host_wrote(array: Any) -> None:
    """What the host has written itself to an array that both see: the elements that are no poison."""
    track(array.buffer)
    if array.buffer.written is not None:
        bytes_of(array)[~_poisoned(array.data)] = 1


def _poisoned(values: np.ndarray) -> np.ndarray:
    """For each element, whether it is poison, as nobody has written it. Below four bytes poison could be a value."""
    size = values.dtype.itemsize
    if size < 4:
        return np.zeros(values.shape, bool)
    return (np.ascontiguousarray(values).view(np.uint8).reshape(*values.shape, size) == POISON).all(-1)


def copied_poison(target: Any, values: np.ndarray) -> None:
    """The host copies an array of its own that has been poisoned: what nobody has written stays uninitialised."""
    poison = _poisoned(values)
    if poison.any():
        if target.buffer.fresh == -1:
            target.buffer.fresh, target.buffer.written = _generation, bytearray(b"\1" * target.buffer.nbytes)
        if target.buffer.fresh == _generation:
            track(target.buffer)
            bytes_of(target)[poison] = 0


def copied(target: Any, source: Any = None) -> None:
    """The host copies to a device array, from another (whose elements may be uninitialised) or from its own memory."""
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
    """For each byte of an array, in the last axis, whether it is initialised."""
    shape, strides = (*array.shape, array.data.itemsize), (*array.strides, 1)
    return np.ndarray(shape, np.uint8, array.buffer.written, array.offset, strides)
