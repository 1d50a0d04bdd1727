"""Rung 2: all tensors in one cooperative launch.

The grid is as large as can be resident at once. It takes the norms of every chunk, waits once for the whole
model, and updates, last chunks first: those are still in the L2 cache.
"""


from refopt.cpu.reduce import TILE
from refopt.gpu.lars.merged import chunks_of
from refopt.gpu.lars.phases import NORM_BOUNDS
from refopt.gpu.lars.rule import Signature
from refopt.gpu.target import Kernel, cuda, factory, kernel


@factory
def lars_cooperative(signature: Signature, chunk_tiles: int) -> Kernel:
    """The kernel for a signature, and chunks of so many tiles."""
    do = chunks_of(signature)
    length = chunk_tiles * TILE

    @kernel(NORM_BOUNDS)
    def merged_lars_cooperative(
        addresses, chunks, nodes, counters, sums, rates, hyper, adapt, factor_at, found_at
    ):
        if do.found(found_at):
            return
        grid = cuda.cg.this_grid()
        for c in range(cuda.blockIdx.x, chunks.shape[0], cuda.gridDim.x):
            do.norms_and_rate(c, addresses, chunks, nodes, counters, sums, rates, hyper, adapt, factor_at)
        grid.sync()
        c = chunks.shape[0] - 1 - cuda.blockIdx.x
        while c >= 0:
            do.update(c, 0, length, addresses, chunks, hyper, rates, factor_at, 0)
            c -= cuda.gridDim.x

    return merged_lars_cooperative
