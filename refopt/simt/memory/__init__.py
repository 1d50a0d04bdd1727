"""The virtual address space of the simulated device.

Every allocation has a 256-byte aligned virtual base that is never reused, with unmapped gaps in between, so an address
that is out of range, or outlives its array, is detected. Python twins of inline-assembly intrinsics call `load`,
`store` and `atomic_add`. `Strided` is the base class of all device arrays, including those of a GPU.
"""

from .buffers import (
    Buffer,
    allocate,
    allocations,
    atomic_add,
    describe,
    find,
    live_allocations,
    live_bytes,
    load,
    store,
)
from .views import Strided

__all__ = [
    "Buffer", "Strided", "allocate", "allocations", "atomic_add", "describe", "find", "live_allocations", "live_bytes",
    "load", "store",
]
