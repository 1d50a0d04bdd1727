"""The names of `numba.cuda`, implemented by the executor.

A missing name raises `Unsupported`, with the name and the place that uses it.
"""

# ruff: noqa: F401
from types import SimpleNamespace as _SimpleNamespace
from typing import Any as _Any

from .base import numba_types as _types
from .base import record as _record
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


class _Types(_SimpleNamespace):
    def __getattr__(self, name: str) -> _Any:
        if name.startswith("__"):
            raise AttributeError(name)
        raise _unsupported(f"cuda.types.{name}", among=vars(self))


types = _Types(**_types.TYPES)

# The names of types: cuda.float32 and the like.
_NAMED = {name: type_ for name, type_ in _types.TYPES.items() if isinstance(type_, _types.Type)}
globals().update(_NAMED | _VECTORS)

_record.spaces["cuda"] = _SimpleNamespace(**globals())

# Everything imported and defined above; type checkers see that anyway.
globals()["__all__"] = sorted(name for name in globals() if name[0].isalpha())


def _below(name: str) -> _Any:
    """The submodule of a name; `modules`, which imports this module, replaces this function."""
    return None


def __getattr__(name: str) -> _Any:
    if name == "laneid":  # an attribute in Numba, not a function
        return _laneid()
    if name.startswith("__"):
        raise AttributeError(name)
    module = _below(name)
    if module is None:
        raise _unsupported(f"cuda.{name}", among=globals()["__all__"])
    return module
