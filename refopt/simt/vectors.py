"""Vector accesses to shared memory, and asynchronous copies to it, for twins of ``ldmatrix`` and ``cp.async``.

An array is a flat one from `cuda.shared.array`, and a vector some consecutive elements of it: a single access, which
must be aligned to its size.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from .base.errors import MisalignedAddress, OutOfBounds
from .base.places import here
from .base.state import current
from .memory.shared import poisoned


def read_vector(array: Any, index: Any, count: int) -> np.ndarray:
    """Consecutive elements, shape (count,); by lanes, shape (count, lanes)."""
    if hasattr(array, "vector"):  # by lanes
        return array.vector(index, count)
    data, offset = _locate(array, index, count)
    if data is not array:
        current.observer.read(array._buffer, offset, count * data.itemsize)
    return data[int(index) : int(index) + count].copy()


def write_vector(array: Any, index: Any, values: np.ndarray) -> None:
    """Write consecutive elements."""
    data, offset = _locate(array, index, len(values))
    if data is not array:
        current.observer.write(array._buffer, offset, values.nbytes, tuple(values), data.dtype)
    data[int(index) : int(index) + len(values)] = values


def copy_async(array: Any, index: Any, values: np.ndarray) -> None:
    """Begin to write a vector; its elements are undefined until the thread has waited for the copy.

    By lanes, the values have shape (count, lanes).
    """
    if hasattr(array, "vector"):
        return array.copy_async(index, values)
    write_vector(array, index, poisoned((len(values),), values.dtype))
    thread = current.thread
    thread.copies = thread.copies or [[]]
    thread.copies[-1].append((array, index, values))


def commit_copies() -> None:
    """Make a group of the copies that the thread has begun since the last call."""
    if current.lanes is not None:
        return current.lanes.commit_copies()
    thread = current.thread
    thread.copies = [*(thread.copies or [[]]), []]


def wait_for_copies(pending: int) -> None:
    """Wait until at most `pending` of the thread's latest groups are in flight."""
    if current.lanes is not None:
        return current.lanes.wait_for_copies(pending)
    thread = current.thread
    groups = thread.copies or [[]]
    done = max(len(groups) - 1 - pending, 0)
    for group in groups[:done]:
        for copy in group:
            write_vector(*copy)
    thread.copies = groups[done:]


def _locate(array: Any, index: Any, count: int) -> tuple[np.ndarray, int]:
    """The elements of an array, and the vector's byte offset in its buffer, after all checks."""
    data = getattr(array, "_data", array)
    nbytes, start = count * data.itemsize, int(index) * data.itemsize
    label = array._buffer.label if data is not array else "a shared array"
    if data.ndim != 1 or not 0 <= index <= len(data) - count:
        what = f"{count} elements from index {index} are out of bounds for {label}, shape {data.shape}, {data.dtype}"
        raise OutOfBounds(what, here(), array=label, index=int(index))
    offset = getattr(array, "_offset", 0) + start
    if offset % nbytes:
        what = f"access of {count} x {data.dtype} at index {index} of {label} is not aligned to {nbytes} bytes"
        raise MisalignedAddress(what, here(), array=label, offset=offset)
    return data, offset
