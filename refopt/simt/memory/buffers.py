"""The address space and its buffers."""

from __future__ import annotations

import math
import threading
import weakref
from bisect import bisect_right
from collections import deque
from collections.abc import Sequence
from typing import Any

import numpy as np

from ..base.arguments import element, whole
from ..base.errors import MisalignedAddress, OutOfBounds
from ..base.places import here
from ..base.state import current
from ..base.undefined import refuse

POISON = 0xAB
_ALIGNMENT = 256
_GAP = 4096


class Buffer:
    """A range of bytes that kernels access: an allocation, or a shared array of one block."""

    def __init__(self, nbytes: int, name: str | None = None, data: np.ndarray | None = None) -> None:
        self.data = np.full(nbytes, POISON, np.uint8) if data is None else data
        self.nbytes = nbytes
        self.name = name
        self.parameter: str | None = None  # the last kernel parameter it was passed as, used if it has no name
        self.base = 0
        self.mapped = False  # whether the host also accesses it
        self.views = _Views(self.data, self)
        self.shape: tuple[int, ...] = (nbytes,)
        self.dtype = np.dtype(np.uint8)  # of the array it was made for, for reports
        # Watched only: which bytes have been written (None if all may have been), and the race detector's record.
        self.written: bytearray | None = None
        self.fresh = -1  # the generation in which it was known to be unwritten: see `initialized`
        self.shadow: Any = None
        self.types: np.ndarray | None = None  # the type that last wrote each byte, and all types that have

    @property
    def label(self) -> str:
        """Its name in reports."""
        return self.name or self.parameter or "array"


class _Views(dict):
    """The buffer as an array of each requested type: dtype -> (array, item size)."""

    def __init__(self, data: np.ndarray, owner: Buffer) -> None:
        super().__init__()
        self.data = data
        self.owner = weakref.ref(owner)

    def __missing__(self, dtype: Any) -> tuple[np.ndarray, int]:
        kind = element("dtype", dtype)
        elements = self.data[: len(self.data) // kind.itemsize * kind.itemsize].view(kind)
        self[dtype] = entry = (elements, kind.itemsize)
        return entry


_bases: list[int] = []
_allocations: dict[int, weakref.ref[Buffer]] = {}
FIRST_BASE = 0x7000_0000_0000
_next_base = FIRST_BASE
_tables = threading.RLock()  # protects the above
_freed: deque[int] = deque()  # bases of freed allocations that are still in the tables
_NOTHING: tuple[int, int, _Views] = (0, -1, Buffer(0).views)
_hit = _NOTHING  # base, size and views of the last allocation used; references its bytes, not the allocation


def allocate(nbytes: int, name: str | None = None, data: np.ndarray | None = None) -> Buffer:
    """A new allocation, freed with the last reference to it: poisoned, or over the bytes of a host array."""
    global _next_base
    buffer = Buffer(nbytes, name, data)
    with _tables:
        _forget_freed()
        buffer.base = base = _next_base
        _next_base = -(-(base + nbytes + _GAP) // _ALIGNMENT) * _ALIGNMENT
        _bases.append(base)  # bases only grow, so the list stays sorted
        _allocations[base] = weakref.ref(buffer)
    weakref.finalize(buffer, _free, base).atexit = False
    return buffer


def _free(base: int) -> None:
    """Runs wherever a last reference is dropped, at any time: so it takes no lock and changes no table."""
    global _hit
    _freed.append(base)
    if _hit[0] == base:
        _hit = _NOTHING


def _forget_freed() -> None:
    """Remove freed allocations from the tables."""
    while _freed:
        base = _freed.popleft()
        del _allocations[base], _bases[bisect_right(_bases, base) - 1]


def allocations() -> dict[int, weakref.ref[Buffer]]:
    """The live allocations by base."""
    with _tables:
        _forget_freed()
        return dict(_allocations)


def live_bytes() -> int:
    """Bytes of all live allocations."""
    return sum(buffer.nbytes for reference in allocations().values() if (buffer := reference()) is not None)


def live_allocations() -> int:
    """Number of live allocations."""
    return len(allocations())


def find(address: int, nbytes: int) -> tuple[Buffer, int]:
    """The allocation that contains the range, and the offset in it; OutOfBounds if none does."""
    with _tables:
        if _freed:
            _forget_freed()
        position = bisect_right(_bases, address) - 1
        buffer = _allocations[_bases[position]]() if position >= 0 else None
    if buffer is not None and address + nbytes <= buffer.base + buffer.nbytes:
        return buffer, address - buffer.base
    if buffer is None:
        near = "there is none below it"
    else:
        past = address + nbytes - buffer.base - buffer.nbytes
        near = f"the nearest below is {describe(buffer)}, and the access ends {past} bytes past its end"
    what = f"access of {nbytes} bytes at address {address:#x}, in no live allocation: {near}"
    label, offset = (buffer.label, address - buffer.base) if buffer else (None, None)
    raise OutOfBounds(what, here(), array=label, address=address, offset=offset)


def describe(buffer: Buffer, offset: int | None = None) -> str:
    """A description of a buffer, or of an element of it."""
    where = ""
    if offset is not None:
        element = offset // buffer.dtype.itemsize
        inside = element < math.prod(buffer.shape)
        index = f"[{', '.join(map(str, np.unravel_index(element, buffer.shape)))}], " if inside else ""
        where = f"{index}byte {offset} of "
    base = f" at {buffer.base:#x}" if buffer.base else ""
    return f"{where}{buffer.label} (shape {buffer.shape}, {buffer.dtype}{base})"


def _locate(address: int, dtype: Any, count: int) -> tuple[np.ndarray, int]:
    """The typed view of the allocation at an address and the element index in it, after all checks."""
    global _hit
    base, nbytes, views = _hit
    offset = address - base
    view, size = views[dtype]
    width = size * count
    if offset < 0 or offset + width > nbytes:
        buffer, offset = find(address, width)
        _hit = buffer.base, buffer.nbytes, buffer.views
        view, size = buffer.views[dtype]
    needed = width if width <= 16 and count in (2, 4, 8) else size
    if offset % needed:
        buffer, offset = find(address, width)
        what = f"access of {count} x {np.dtype(dtype)} at address {address:#x} ({describe(buffer, offset)})"
        what += f" is not aligned to {needed} bytes"
        raise MisalignedAddress(what, here(), array=buffer.label, address=address, offset=offset)
    return view, offset // size


def _here(address: int) -> tuple[Buffer, int]:
    """The result of `find` for the access that was located last."""
    base, nbytes, views = _hit
    buffer = views.owner()
    inside = buffer is not None and base <= address < base + nbytes  # another Python thread may have changed `_hit`
    return (buffer, address - base) if inside else find(address, 1)  # type: ignore[return-value]


def load(address: Any, dtype: Any, count: int = 1) -> tuple:
    """`count` consecutive elements at an address, as NumPy scalars; 2, 4 or 8 are one vector access."""
    if type(address) is not int:
        if current.lanes is not None and type(address) is np.ndarray:
            return current.lanes.load(address, dtype, count)
        address = int(address) if isinstance(address, np.integer) else whole("address", address, -(2**63))
    view, index = _locate(address, dtype, count)
    if current.observer is not None and current.inside:
        current.observer.read(*_here(address), view.itemsize * count)
    if count == 1:
        return (view[index],)
    if count == 4:
        return view[index], view[index + 1], view[index + 2], view[index + 3]
    return tuple(view[index : index + count])


def store(address: Any, dtype: Any, values: Sequence[Any]) -> None:
    """Write consecutive elements at an address, with `load`'s checks."""
    if type(address) is not int:
        if current.lanes is not None and type(address) is np.ndarray:
            return current.lanes.store(address, dtype, values)
        address = int(address) if isinstance(address, np.integer) else whole("address", address, -(2**63))
    count = len(values)
    view, index = _locate(address, dtype, count)
    if current.observer is not None and current.inside:
        current.observer.write(*_here(address), view.itemsize * count, values, view.dtype)
    for value in values:
        view[index] = value
        index += 1


def atomic_add(address: int, dtype: Any, value: Any) -> Any:
    """Add to the element at an address atomically; return the old value."""
    view, index = _locate(int(address), dtype, 1)
    if current.observer is not None and current.inside:
        refuse(value, "an atomic")
        current.observer.atomic(*find(int(address), view.itemsize), view.itemsize)
    old = view[index]
    new = view[index] = old + type(old)(value)
    if current.observer is not None and current.inside and new != old:
        current.observer.ticket()
    current.launch.pause(new != old)
    return old
