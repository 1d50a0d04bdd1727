"""Runs CUDA kernels written for `numba.cuda` on a CPU, deterministically, and watches them for defects.

Each CUDA thread is a greenlet, switched at barriers, warp operations and atomics. An ordinary launch runs its blocks
one after another; in a cooperative one (`cuda.cg.this_grid()`) all of them are resident. Launches that are not observed
run by lanes if possible: each statement runs once for many threads, on NumPy arrays over them; `how` says whether.

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

`run` runs kernels that import `numba.cuda`; `replace_numba`, the environment variable `REFOPT_SIMT=1` and
``refopt simt script.py`` (`refopt.simt.script`) replace `numba.cuda` by the executor.

These are always errors: a barrier that some threads do not reach, a raw address (`simt.memory`) that is misaligned or
outside live memory, an index outside an array, a spin on an atomic that no thread will change, a thread that runs for
`simt.limits.seconds` (10) without a barrier, an atomic or a fence. Python's own exceptions, such as an IndexError of a
list, are passed on with a note that names the thread. `observe` counts launches, copies and bytes, and can run blocks
and threads in another order. With `watch=True` it also finds reads of unwritten shared, local and device memory, values
that a shuffle takes from lanes which do not take part, and data races: two accesses to one byte, not both reads
or both atomic, that no barrier, `syncwarp`, fence and atomic, stream, event or host synchronization orders. Without
the `syncthreads` above it raises a `DataRace` that names both lines and threads, whichever ran first; a launch in which
atomics could hide a race is also run in reverse (`orders` adds more). With `keep_going=True` it lists all defects in
`log.defects`. Whether something is a defect or only bad style depends on the hardware: each rule has a name and can be
turned on or off (`simt.rules`).

`observe(profile=True)` combines the accesses of a warp: `log.profile` has, by line, requests and 32-byte sectors of
global memory, bank conflicts of shared memory, and how many lanes are active and diverge; it prints as a table.
`draw(log)` draws which threads touch which elements. `observe(floats=True)` records in `log.floats` where NaN,
infinities, overflow and subnormal numbers arise, are loaded and stored. `occupancy` is NVIDIA's occupancy calculator.

    >>> @cuda.jit
    ... def every_other(x, y):
    ...     y[cuda.grid(1)] = x[2 * cuda.grid(1)]
    >>> x, y = (cuda.to_device(np.zeros(n, np.float32)) for n in (64, 32))
    >>> with simt.observe(profile=True) as log:
    ...     every_other[1, 32](x, y)
    >>> [(row.array, row.kind, row.requests, row.sectors) for row in log.profile.sectors]
    [('x', 'load', 1, 8), ('y', 'store', 1, 4)]

`ptx_twin` marks a Python function that emulates inline PTX. With ``warp=`` it emulates an instruction of a whole warp,
such as ``mma.sync`` or ``ldmatrix``, at which all 32 lanes wait for each other; missing lanes are an error.
`simt.vectors` lets such functions access vectors of shared memory, and copy asynchronously, for ``cp.async``.

`over` makes a device array that shares a host array's memory. `claim("T4")`, in a with statement, makes the executor
report another device than an H100, and refuse what that device would.

Arithmetic is that of the kernel as Numba compiles it for CUDA. The types of operators and calls are a record of Numba's
compiler (`refopt.simt.base.record`): integers are computed in 64 bits and wrap, a Python float is a double, and a
variable of different types on different paths gets a type that holds both. Captured values are constant.
`observe(doubles="report")` lists the lines on which a kernel without fp64 arrays computes in fp64. Functions of `math`
are correctly rounded in fp32, and NumPy's in fp64, where a GPU's are a few ULP off; nothing is contracted. ``%`` and
``//`` of floats are computed from a rounded quotient, as in Numba's PTX. An atomic addition of float32 keeps subnormal
numbers, which a GPU flushes in global memory.

Code that Numba does not compile for CUDA is refused before the first launch, even on branches that are not taken: a
`CompileError` says where, why, and what to write instead. With `observe(compile=True)` numba-cuda, if installed, also
compiles each kernel to PTX, which needs no GPU. A function whose source cannot be read is not checked: it runs by
NumPy's rules, with an `UntypedWarning`.

Fresh memory is poisoned. Plain loads do not let other threads run: a spin needs an atomic or a fence. An atomic counts
as a load and a store. Python threads take turns: a launch or a copy begins when that of another thread has ended.
"""

import os

from . import cuda, memory, outside, rules, vectors
from .base.errors import (
    BarrierDivergence,
    CompileError,
    DataRace,
    Deadlock,
    IntegerError,
    LaunchError,
    MisalignedAddress,
    OutOfBounds,
    SimtError,
    TimeLimitExceeded,
    UninitializedRead,
    Unsupported,
)
from .base.watchdog import limits
from .compiled import UntypedWarning, ptx_twin
from .kernels.kernel import how
from .machine.claims import claim
from .machine.occupancy import occupancy
from .memory.arrays import DeviceArray, over
from .names.replace import replace_numba
from .names.translate import run
from .profile.draw import Picture, draw
from .watch.observe import observe

__all__ = [
    "BarrierDivergence",
    "CompileError",
    "DataRace",
    "Deadlock",
    "DeviceArray",
    "IntegerError",
    "LaunchError",
    "MisalignedAddress",
    "OutOfBounds",
    "Picture",
    "SimtError",
    "TimeLimitExceeded",
    "UninitializedRead",
    "Unsupported",
    "UntypedWarning",
    "claim",
    "cuda",
    "draw",
    "how",
    "limits",
    "memory",
    "observe",
    "occupancy",
    "outside",
    "over",
    "ptx_twin",
    "replace_numba",
    "rules",
    "run",
    "vectors",
]

if os.environ.get("REFOPT_SIMT", "0") not in ("", "0"):
    replace_numba()
