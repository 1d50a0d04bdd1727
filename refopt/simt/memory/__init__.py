"""The virtual address space of the simulated device.

Every allocation has a 256-byte aligned virtual base that is never reused, with unmapped gaps in between, so
an address that strays, or outlives its array, is found out. `load`, `store` and `atomic_add` are what the
Python twin of an inline-assembly intrinsic calls. `Strided` is what device arrays have in common, also those of a GPU.
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
