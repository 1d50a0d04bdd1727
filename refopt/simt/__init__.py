"""Runs CUDA kernels written in Numba's spelling on a CPU, deterministically, and watches them.

Each CUDA thread is a greenlet, switched at barriers, warp operations and atomics. An ordinary launch runs
its blocks one after another, a cooperative one (`cuda.cg.this_grid()`) has all of them resident.

    >>> import numpy as np
    >>> from refopt import simt
    >>> from refopt.simt import cuda
    >>> @cuda.jit
    ... def reverse(x):
    ...     t, n = cuda.threadIdx.x, cuda.blockDim.x
    ...     value = x[n - 1 - t]
    ...     cuda.syncthreads()
    ...     x[t] = value
    >>> x = cuda.to_device(np.arange(4))
    >>> with simt.observe(watch=True) as log:
    ...     reverse[1, 4](x)
    >>> x.copy_to_host(), log.bytes_read(x), len(log.launches)
    (array([3, 2, 1, 0]), 32, 1)

`run` runs kernels that were written against `numba.cuda`; `replace_numba`, the environment variable
`REFOPT_SIMT=1` and ``refopt simt script.py`` put the executor in the place of `numba.cuda`.

Always an error: a barrier that some threads do not reach, a raw address (`simt.memory`) outside live memory
or misaligned, an index outside an array, a spin on an atomic that nobody will change. Other errors, a list
that is too short among them, stay what they are, with a note of the thread. `observe` counts
launches, copies and bytes, and can run blocks and threads in another order. With `watch=True` it also finds
reads of shared memory that nobody wrote, and data races: two accesses to one byte, at least one a
non-atomic write, that no barrier, warp operation, fence and atomic, stream, event or host synchronisation
orders. Without the `syncthreads` above it raises a `DataRace` that names both lines and threads, whichever
ran first.

Arithmetic is NumPy's. Integer arguments become Python ints, because NumPy's integers promote otherwise than
Numba's; wrap-around has to be masked explicitly. Fresh memory is poisoned. Plain loads do not let other
threads run: a spin needs an atomic or a fence. An atomic counts as a load and a store. Threads of Python take
turns: a launch or a copy begins when that of another has ended.
"""

import os

from . import cuda, memory
from .arrays import DeviceArray
from .errors import (
    BarrierDivergence,
    DataRace,
    Deadlock,
    LaunchError,
    MisalignedAddress,
    OutOfBounds,
    SimtError,
    UninitializedRead,
    Unsupported,
)
from .observe import observe
from .replace import replace_numba
from .translate import run

__all__ = [
    "BarrierDivergence",
    "DataRace",
    "Deadlock",
    "DeviceArray",
    "LaunchError",
    "MisalignedAddress",
    "OutOfBounds",
    "SimtError",
    "UninitializedRead",
    "Unsupported",
    "cuda",
    "memory",
    "observe",
    "replace_numba",
    "run",
]

if os.environ.get("REFOPT_SIMT", "0") not in ("", "0"):
    replace_numba()
