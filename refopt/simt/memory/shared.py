"""Shared, local and constant arrays: `cuda.shared`, `cuda.local`, `cuda.const`."""

from __future__ import annotations

import linecache
import math
import re
import sys
from functools import cache
from types import FrameType
from typing import Any

import numpy as np

from ..base.arguments import element, shown
from ..base.errors import LaunchError
from ..base.places import Namespace, here
from ..base.state import current
from .buffers import POISON, Buffer

STATIC_SHARED_LIMIT = 48 * 1024  # bytes that a kernel may declare, on any device
# Numba 0.68's names of attributes of arrays.
_OF_ARRAYS = """T all any argmax argmin argsort astype conj conjugate copy ctypes cumprod cumsum dot dtype fill flags
flat flatten imag item itemsize max mean min nbytes ndim nonzero prod ravel real repeat reshape shape size sort std
strides sum take transpose var view"""
_NAN_BYTES = 0xFF  # a NaN in every floating type


def _poison(dtype: np.dtype) -> int:
    return POISON if dtype.kind in "iub" else _NAN_BYTES


def poisoned(shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    """Memory that has not been written."""
    return np.full(math.prod(shape) * dtype.itemsize, _poison(dtype), np.uint8).view(dtype).reshape(shape)


def extents(shape: Any) -> tuple[int, ...]:
    return tuple(int(n) for n in shape) if isinstance(shape, (tuple, list)) else (int(shape),)


def _aligned(alignment: Any) -> None:
    """Check an alignment; it changes nothing, since every array here is aligned well enough."""
    if alignment is None:
        return
    if type(alignment) is not int:
        raise TypeError(f"alignment: expected an integer, got {shown(alignment)}")
    if alignment < 1 or alignment & (alignment - 1):
        raise ValueError(f"alignment: expected a power of two, got {alignment}")


class shared(metaclass=Namespace):
    """Memory shared by the threads of a block."""

    @staticmethod
    def array(shape: Any, dtype: Any, alignment: int | None = None) -> Any:
        """The block's array for this call site; shape 0 is the launch's dynamic shared memory."""
        _aligned(alignment)
        frame = sys._getframe(1)
        block = current.block
        site = id(frame.f_code), frame.f_lasti
        array = block.shared.get(site)
        if array is None:
            array = block.shared[site] = _make(block, extents(shape), element("dtype", dtype), frame)
        return array


def _named(what: str, frame: FrameType) -> str:
    """The name in reports of an array made on a line: by the variable it is assigned to, else by the line."""
    name = re.match(r"\s*(\w+)\s*=[^=]", linecache.getline(frame.f_code.co_filename, frame.f_lineno))
    return f"{what} array {name[1]}" if name else f"{what} array of line {frame.f_lineno}"


def _make(block: Any, shape: tuple[int, ...], dtype: np.dtype, frame: FrameType) -> Any:
    dynamic_bytes = current.launch.dynamic_bytes
    if shape == (0,):
        if block.dynamic is None:
            block.dynamic = Buffer(dynamic_bytes, "dynamic shared memory")
            block.dynamic.data.fill(_poison(dtype))
        buffer, shape = block.dynamic, (dynamic_bytes // dtype.itemsize,)
        if buffer.types is None and buffer.dtype not in (np.uint8, dtype):
            rules = current.launch.rules if current.launch.watched else None
            buffer.types = np.zeros((2, buffer.nbytes), np.uint32) if rules and rules.shared_types else None
    else:
        buffer = Buffer(math.prod(shape) * dtype.itemsize, _named("shared", frame))
        buffer.data.fill(_poison(dtype))
        block.static_bytes += buffer.nbytes
        limit = current.claim.has.shared_of_block
        if block.static_bytes > STATIC_SHARED_LIMIT or block.static_bytes + dynamic_bytes > limit:
            raise LaunchError(
                f"{block.static_bytes} static and {dynamic_bytes} dynamic bytes of shared memory: the "
                f"limits are {STATIC_SHARED_LIMIT} static and {limit} together",
                here(),
            )
        if current.launch.cooperative:
            current.launch.check_residency()
    buffer.shape, buffer.dtype = shape, dtype
    view = np.ndarray(shape, dtype, buffer.data)
    return with_fields(view) if current.observer is None else current.observer.shared(buffer, view)


def is_field(kind: np.dtype, name: str) -> bool:
    """Whether the attribute of an array of a type is a field of its records."""
    return kind.names is not None and name in kind.names and name not in _OF_ARRAYS.split()


class Record(np.record):  # type: ignore[misc]
    """A record in a kernel: its fields are attributes whatever their names, such as ``size``."""

    def __getattribute__(self, name: str) -> Any:
        field = np.generic.dtype.__get__(self).fields.get(name)
        return self[name] if field else super().__getattribute__(name)

    def __getitem__(self, field: Any) -> Any:
        return with_fields(super().__getitem__(field))


class Records(np.ndarray):
    """An array of records in a kernel, whose fields are attributes unless Numba's arrays have the name."""

    def __getattribute__(self, name: str) -> Any:
        return self[name] if is_field(np.ndarray.dtype.__get__(self), name) else super().__getattribute__(name)

    def __getitem__(self, index: Any) -> Any:
        return with_fields(super().__getitem__(index))


def with_fields(value: Any) -> Any:
    """An array of records whose fields are also attributes, as in Numba: ``array[i].x``, ``array.x``."""
    if not isinstance(value, np.ndarray):
        return value
    plain = value.view(np.ndarray)
    return plain if plain.dtype.names is None else plain.view(np.dtype((Record, plain.dtype))).view(Records)


class local(metaclass=Namespace):
    """Memory of one thread."""

    @staticmethod
    def array(shape: Any, dtype: Any, alignment: int | None = None) -> Any:
        """A new array of the calling thread."""
        _aligned(alignment)
        if current.observer is not None and current.observer.watching:
            return _observed(extents(shape), element("dtype", dtype), sys._getframe(1))
        return with_fields(_unwritten(extents(shape), dtype).copy())


@cache
def _unwritten(shape: tuple[int, ...], dtype: Any) -> np.ndarray:
    """What a local array holds at first, computed once, since each thread makes its own."""
    return poisoned(shape, element("dtype", dtype))


def _observed(shape: tuple[int, ...], kind: np.dtype, frame: FrameType) -> Any:
    """A local array whose reads are watched."""
    buffer = Buffer(math.prod(shape) * kind.itemsize, _named("local", frame))
    buffer.data.fill(_poison(kind))
    buffer.shape, buffer.dtype = shape, kind
    return current.observer.local(buffer, np.ndarray(shape, kind, buffer.data))


class const(metaclass=Namespace):
    """Constant memory."""

    @staticmethod
    def array_like(ary: Any) -> np.ndarray:
        """A read-only copy of a host array."""
        copy = np.array(ary)
        copy.flags.writeable = False
        return with_fields(copy)
