"""Kernels with a defect each, of the kinds that compute-sanitizer's tools look for: a tool that does not report its own
has not looked, and its silence about other kernels proves nothing.

    python -m benchmarks.planted DEFECT

runs one; under `benchmarks.sanitizer`, each under its tool. What is broken stays inside memory of its own.
"""

import sys
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from refopt import gpu
from refopt.gpu.kernels import Kernel, kernel
from refopt.gpu.target import cuda

THREADS = 64


@kernel()
def write_beyond(x):
    """The element after the last: in memory that was asked for, rounded up, and not the array's."""
    i = cuda.threadIdx.x
    x[i + 1] = np.float32(i)


@kernel()
def read_a_neighbour_too_early(x):
    """Shared memory that a thread of the other warp writes, without a barrier between."""
    shared = cuda.shared.array(64, np.float32)
    i = cuda.threadIdx.x
    shared[i] = x[i]
    x[i] = shared[(i + 32) % 64] + np.float32(1)


@kernel()
def read_what_nobody_wrote(x, y):
    """Memory as it was allocated."""
    i = cuda.threadIdx.x
    y[i] = x[i] + np.float32(1)


@kernel()
def barrier_for_half_a_warp(x):
    """A barrier of the block that some lanes of a warp do not reach."""
    i = cuda.threadIdx.x
    if i % 32 < 16:
        cuda.syncthreads()
        x[i] = np.float32(1)
    x[i] += np.float32(1)


@kernel()
def barrier_for_other_lanes(x):
    """A barrier of the warp that lanes come to which it does not name."""
    i = cuda.threadIdx.x
    cuda.syncwarp(0x0000FFFF)
    x[i] = np.float32(1)


class Defect(NamedTuple):
    """A kernel, the tool that must report it, by what words, and whether its second array is left as allocated."""

    kernel: Kernel
    tool: str
    report: str
    fresh: bool = False


DEFECTS = {
    defect.kernel.name: defect
    for defect in (
        Defect(write_beyond, "memcheck", r"Invalid __global__ write"),
        Defect(read_a_neighbour_too_early, "racecheck", r"[1-9]\d* hazards? displayed"),
        Defect(read_what_nobody_wrote, "initcheck", r"Uninitialized __global__ memory read", fresh=True),
        Defect(barrier_for_half_a_warp, "synccheck", r"Barrier error detected"),
        Defect(barrier_for_other_lanes, "synccheck", r"Barrier error detected"),
    )
}


def launch(defect: Defect, machine: Any) -> None:
    """Run a kernel with a defect once, a block of two warps on an array of as many elements."""
    written = machine.to_device(np.zeros(THREADS, np.float32))
    args = (machine.empty((THREADS,), np.float32), written) if defect.fresh else (written,)
    run: Callable[[Any], None] = machine.prepare(defect.kernel, 1, THREADS, args)
    run(machine.stream(0))
    machine.synchronize()


if __name__ == "__main__":
    launch(DEFECTS[sys.argv[1]], gpu.device("gpu"))
