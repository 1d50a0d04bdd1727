"""Rung 2: all tensors in one cooperative launch.

The grid is as large as can be resident at once. It takes the norms of every chunk, waits once for the whole
model, and updates, last chunks first: those are still in the L2 cache.
"""

from functools import lru_cache

from refopt.gpu.lars.merged import chunks_of
from refopt.gpu.lars.phases import Signature
from refopt.gpu.tables import TENSOR
from refopt.gpu.target import Kernel, cuda, kernel


@lru_cache
def lars_cooperative(signature: Signature) -> Kernel:
    """The kernel for a signature."""
    do = chunks_of(signature)

    @kernel
    def merged_lars_cooperative(addresses, chunks, nodes, counters, sums, rates, hyper, where, adapt):
        grid = cuda.cg.this_grid()
        for c in range(cuda.blockIdx.x, chunks.shape[0], cuda.gridDim.x):
            node = do.norms(c, addresses, chunks, hyper, where, sums)
            slot = do.climb(node, nodes, counters, sums)
            if slot >= 0 and cuda.threadIdx.x == 0:
                do.set_rate(chunks[c, TENSOR], sums[0, slot], sums[1, slot], hyper, where, adapt, rates)
        grid.sync()
        c = chunks.shape[0] - 1 - cuda.blockIdx.x
        while c >= 0:
            do.update(c, addresses, chunks, hyper, where, rates)
            c -= cuda.gridDim.x

    return merged_lars_cooperative
