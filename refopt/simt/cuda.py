"""`numba.cuda` as kernels and their callers spell it, on the executor."""

from __future__ import annotations

from typing import Any

from . import atomics as atomic
from .arrays import (
    as_cuda_array,
    device_array,
    device_array_like,
    is_cuda_array,
    to_device,
)
from .barriers import (
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
from .indices import brev, clz, ffs, grid, gridsize, popc, selp
from .kernel import jit
from .pinned import pinned_array
from .shared import const, local, shared
from .state import blockDim, blockIdx, gridDim, threadIdx
from .streams import default_stream, event, event_elapsed_time, external_stream, stream, synchronize
from .warps import (
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
from .warps import laneid as _laneid

__all__ = [
    "activemask",
    "all_sync",
    "any_sync",
    "as_cuda_array",
    "atomic",
    "ballot_sync",
    "blockDim",
    "blockIdx",
    "brev",
    "cg",
    "clz",
    "const",
    "default_stream",
    "device_array",
    "device_array_like",
    "eq_sync",
    "event",
    "event_elapsed_time",
    "external_stream",
    "ffs",
    "grid",
    "gridDim",
    "gridsize",
    "is_cuda_array",
    "jit",
    "lanemask_lt",
    "local",
    "match_all_sync",
    "match_any_sync",
    "nanosleep",
    "pinned_array",
    "popc",
    "selp",
    "shared",
    "shfl_down_sync",
    "shfl_sync",
    "shfl_up_sync",
    "shfl_xor_sync",
    "stream",
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
    "warpsize",
]


def __getattr__(name: str) -> Any:
    if name == "laneid":  # an attribute in Numba, not a function
        return _laneid()
    raise AttributeError(f"the executor has no cuda.{name}")
