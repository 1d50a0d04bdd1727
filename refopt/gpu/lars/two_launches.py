"""Rung 3: all tensors in two plain launches, a block to a chunk.

The end of a launch is the barrier, so no block waits for another, the grid may be of any size, and the
hardware evens out the load. The second launch goes through the chunks backwards: what the first has read
last is still in the L2 cache.
"""

from functools import lru_cache

from refopt.gpu.lars.merged import chunks_of
from refopt.gpu.lars.phases import Signature
from refopt.gpu.tables import TENSOR
from refopt.gpu.target import Kernel, cuda, kernel


@lru_cache
def lars_norms(signature: Signature) -> Kernel:
    """The first launch: the norms of p and g, and from them the rate of every tensor."""
    do = chunks_of(signature)

    @kernel
    def merged_lars_norms(addresses, chunks, nodes, counters, sums, rates, hyper, where, adapt):
        c = cuda.blockIdx.x
        node = do.norms(c, addresses, chunks, hyper, where, sums)
        slot = do.climb(node, nodes, counters, sums)
        if slot >= 0 and cuda.threadIdx.x == 0:
            do.set_rate(chunks[c, TENSOR], sums[0, slot], sums[1, slot], hyper, where, adapt, rates)

    return merged_lars_norms


@lru_cache
def lars_update(signature: Signature) -> Kernel:
    """The second launch: velocity and parameter."""
    do = chunks_of(signature)

    @kernel
    def merged_lars_update(addresses, chunks, hyper, where, rates):
        do.update(cuda.gridDim.x - 1 - cuda.blockIdx.x, addresses, chunks, hyper, where, rates)

    return merged_lars_update
