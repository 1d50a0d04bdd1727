"""`numba.cuda` as kernels and their callers spell it, on the executor.

What is not here says so: `Unsupported`, with the name and the place that asks for it.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from .base import numba_types as _types
from .base.places import unsupported as _unsupported
from .base.state import blockDim, blockIdx, gridDim, threadIdx
from .base.streams import (
    default_stream,
    event,
    event_elapsed_time,
    external_stream,
    per_thread_default_stream,
    stream,
    synchronize,
)
from .base.streams import default_stream as legacy_default_stream
from .kernels.elementwise import vectorize
from .kernels.kernel import jit
from .kernels.reduction import Reduce
from .machine import atomics as atomic
from .machine.barriers import (
    cg,
    nanosleep,
    syncthreads,
    syncthreads_and,
    syncthreads_count,
    syncthreads_or,
    threadfence,
    threadfence_block,
    threadfence_system,
)
from .machine.cache_hints import ldca, ldcg, ldcs, ldcv, ldlu, stcg, stcs, stwb, stwt
from .machine.devices import (
    close,
    current_context,
    defer_cleanup,
    detect,
    get_current_device,
    gpus,
    is_available,
    is_bfloat16_supported,
    is_float16_supported,
    is_supported_version,
    list_devices,
    profile_start,
    profile_stop,
    profiling,
    require_context,
    select_device,
)
from .machine.half import cbrt, fma, fp16
from .machine.indices import brev, clz, ffs, grid, gridsize, popc, selp
from .machine.vector_types import VECTORS as _VECTORS
from .machine.warps import (
    activemask,
    all_sync,
    any_sync,
    ballot_sync,
    eq_sync,
    lanemask_lt,
    match_all_sync,
    match_any_sync,
    shfl_down_sync,
    shfl_sync,
    shfl_up_sync,
    shfl_xor_sync,
    syncwarp,
    warpsize,
)
from .machine.warps import laneid as _laneid
from .memory.arrays import (
    as_cuda_array,
    device_array,
    device_array_like,
    is_cuda_array,
    to_device,
)
from .memory.host_memory import (
    In,
    InOut,
    Out,
    managed_array,
    mapped,
    mapped_array,
    mapped_array_like,
)
from .memory.pinned import pinned, pinned_array, pinned_array_like
from .memory.shared import const, local, shared

reduce = Reduce


class _Types(SimpleNamespace):
    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        raise _unsupported(f"cuda.types.{name}", among=vars(self))


types = _Types(**_types.TYPES)

# The names of types: cuda.float32 and the like.
_NAMED = {name: type_ for name, type_ in _types.TYPES.items() if isinstance(type_, _types.Type)}
globals().update(_NAMED | _VECTORS)

__all__ = [
    "In",
    "InOut",
    "Out",
    "Reduce",
    "activemask",
    "all_sync",
    "any_sync",
    "as_cuda_array",
    "atomic",
    "ballot_sync",
    "blockDim",
    "blockIdx",
    "brev",
    "cbrt",
    "cg",
    "close",
    "clz",
    "const",
    "current_context",
    "default_stream",
    "defer_cleanup",
    "detect",
    "device_array",
    "device_array_like",
    "eq_sync",
    "event",
    "event_elapsed_time",
    "external_stream",
    "ffs",
    "fma",
    "fp16",
    "get_current_device",
    "gpus",
    "grid",
    "gridDim",
    "gridsize",
    "is_available",
    "is_bfloat16_supported",
    "is_cuda_array",
    "is_float16_supported",
    "is_supported_version",
    "jit",
    "lanemask_lt",
    "ldca",
    "ldcg",
    "ldcs",
    "ldcv",
    "ldlu",
    "legacy_default_stream",
    "list_devices",
    "local",
    "managed_array",
    "mapped",
    "mapped_array",
    "mapped_array_like",
    "match_all_sync",
    "match_any_sync",
    "nanosleep",
    "per_thread_default_stream",
    "pinned",
    "pinned_array",
    "pinned_array_like",
    "popc",
    "profile_start",
    "profile_stop",
    "profiling",
    "reduce",
    "require_context",
    "select_device",
    "selp",
    "shared",
    "shfl_down_sync",
    "shfl_sync",
    "shfl_up_sync",
    "shfl_xor_sync",
    "stcg",
    "stcs",
    "stream",
    "stwb",
    "stwt",
    "synchronize",
    "syncthreads",
    "syncthreads_and",
    "syncthreads_count",
    "syncthreads_or",
    "syncwarp",
    "threadIdx",
    "threadfence",
    "threadfence_block",
    "threadfence_system",
    "to_device",
    "types",
    "vectorize",
    "warpsize",
    *_NAMED,
    *_VECTORS,
]


def _below(name: str) -> Any:
    """The module below this one of a name; `modules`, which has this one, puts its own function here."""
    return None


def __getattr__(name: str) -> Any:
    if name == "laneid":  # an attribute in Numba, not a function
        return _laneid()
    if name.startswith("__"):
        raise AttributeError(name)
    module = _below(name)
    if module is None:
        raise _unsupported(f"cuda.{name}", among=__all__)
    return module
