"""Rung 2: all tensors in one cooperative launch.

The grid is as large as can be resident at once. It sums the squares of every chunk, waits once for the whole model, and
updates, last chunks first: those are still in the L2 cache.
"""

from refopt.catalog import Routine
from refopt.cpu.reduce import TILE
from refopt.gpu.kernels import Kernel, factory, kernel
from refopt.gpu.norms import NORM_BOUNDS
from refopt.gpu.norms.chunks import phases
from refopt.gpu.target import cuda


@factory
def lars_cooperative(routine: Routine, dtypes: tuple, choices: tuple, factor: str | None, chunk_tiles: int) -> Kernel:
    """The kernel for chunks of ``chunk_tiles`` tiles; other arguments are those of `refopt.gpu.norms.norms_kernel`."""
    do = phases(routine, dtypes, choices, factor)
    length = chunk_tiles * TILE

    @kernel(NORM_BOUNDS)
    def merged_lars_cooperative(addresses, chunks, nodes, counters, sums, numbers, hyper, factor_at, found_at):
        if do.found(found_at):
            return
        grid = cuda.cg.this_grid()
        for c in range(cuda.blockIdx.x, chunks.shape[0], cuda.gridDim.x):
            do.norms(c, addresses, chunks, nodes, counters, sums, numbers, hyper, factor_at)
        grid.sync()
        c = chunks.shape[0] - 1 - cuda.blockIdx.x
        while c >= 0:
            do.update(c, 0, length, addresses, chunks, sums, numbers, hyper, factor_at, 0)
            c -= cuda.gridDim.x

    return merged_lars_cooperative
