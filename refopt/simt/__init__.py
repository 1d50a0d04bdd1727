"""Runs CUDA kernels written in Numba's spelling on a CPU, deterministically, and watches them.

Each CUDA thread is a greenlet, switched at barriers, warp operations and atomics. An ordinary launch runs
its blocks one after another, a cooperative one (`cuda.cg.this_grid()`) has all of them resident. What is not observed
runs by lanes if it can: each statement once for many threads, on NumPy arrays over them; `how` says whether.

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
`REFOPT_SIMT=1` and ``refopt simt script.py`` (`refopt.simt.script`) put the executor in place of `numba.cuda`.

Always an error: a barrier that some threads do not reach, a raw address (`simt.memory`) outside live memory
or misaligned, an index outside an array, a spin on an atomic that nobody will change, a thread that runs for
`simt.limits.seconds` (10) without a barrier, an atomic, a fence or its end. Other errors, a list
that is too short among them, stay what they are, with a note of the thread. `observe` counts
launches, copies and bytes, and can run blocks and threads in another order. With `watch=True` it also finds
reads of shared, local and device memory that nobody wrote, values that a shuffle takes from lanes which do not
take part, and data races: two accesses to one byte, at least one a non-atomic write, that no barrier, `syncwarp`,
fence and atomic, stream, event or host synchronization orders. Without the `syncthreads` above it raises a
`DataRace` that names both lines and threads, whichever ran first; a launch in which atomics could hide one is run in
reverse as well (`orders` for more). With `keep_going=True` it lists all defects in `log.defects`. What is a defect and
what is only bad style depends on the hardware: each rule has a name, and can be turned on or off (`simt.rules`).

`observe(profile=True)` puts the accesses of a warp together: `log.profile` has, by line, requests and 32-byte sectors
of global memory, bank conflicts of shared memory, and how many lanes are active and diverge; printed, it is a table.
`draw(log)` is a picture of which threads touch which elements. `observe(floats=True)` says in `log.floats` where NaN,
infinities, overflow and subnormal numbers arise, are loaded and stored. `occupancy` is NVIDIA's occupancy calculator.

    >>> @cuda.jit
    ... def every_other(x, y):
    ...     y[cuda.grid(1)] = x[2 * cuda.grid(1)]
    >>> x, y = (cuda.to_device(np.zeros(n, np.float32)) for n in (64, 32))
    >>> with simt.observe(profile=True) as log:
    ...     every_other[1, 32](x, y)
    >>> [(row.array, row.kind, row.requests, row.sectors) for row in log.profile.sectors]
    [('x', 'load', 1, 8), ('y', 'store', 1, 4)]

`ptx_twin` marks a function that stands for inline PTX. With ``warp=`` it stands for an instruction of a whole warp,
such as ``mma.sync`` or ``ldmatrix``, at which all 32 lanes wait for each other; lanes that are missing are an error.
`simt.vectors` has what such functions read of shared memory, and asynchronous copies, for ``cp.async``.

`over` puts a device array over the memory of a host array. `claim("T4")`, in a with statement, has the executor say
that it is another device than an H100, and refuse what that one would.

Arithmetic is that of the kernel as Numba compiles it for CUDA: integers are computed in 64 bits and wrap, a
float of Python's is a double, a variable that is one type on one way and another on the other is what holds
both, and what a kernel captures is constant (`refopt.simt.compiled`). `observe(doubles="report")` lists the
lines on which a kernel that has no fp64 array computes in fp64. Functions of `math` are rounded once, where a
GPU's may be a few ULP off; nothing is contracted. ``%`` and ``//`` of floats are exact here, where a GPU takes
them from a rounded quotient; an atomic addition of float32 keeps subnormal numbers, which a GPU flushes in global
memory.

What Numba does not compile for CUDA is refused before the first launch, on branches that are not taken as well: a
`CompileError` says where, why, and what to write instead. With `observe(compile=True)` numba-cuda compiles each kernel
to PTX as well, where it is installed; that takes no GPU. A function whose source cannot be read is held to nothing: it
is computed by NumPy's rules, with an `UntypedWarning`.

Fresh memory is poisoned. Plain loads do not let other threads run: a spin needs an atomic or a fence. An atomic
counts as a load and a store. Threads of Python take turns: a launch or a copy begins when that of another has
ended.
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
