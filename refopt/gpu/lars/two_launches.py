"""Rung 3: all tensors in two plain launches, many more blocks than the GPU can hold at once.

The end of a launch is the barrier, so no block waits for another, the grid may be of any size, and the
hardware evens out the load. The second launch goes through the tensors backwards: what the first has read
last is still in the L2 cache, which was asked to keep it. Its blocks may start while the first drains; they
find their place in the tables meanwhile, and wait where they need the rate.
"""


from refopt.cpu.reduce import TILE
from refopt.gpu.lars.merged import chunks_of
from refopt.gpu.lars.phases import NORM_BOUNDS, UPDATE_BOUNDS
from refopt.gpu.lars.rule import Signature
from refopt.gpu.target import Kernel, cuda, factory, kernel


@factory
def lars_norms(signature: Signature) -> Kernel:
    """The first launch, a block to a chunk: the norms of p and g, and from them the rate of every tensor."""
    do = chunks_of(signature)

    @kernel(NORM_BOUNDS)
    def merged_lars_norms(addresses, chunks, nodes, counters, sums, rates, hyper, adapt, factor_at, found_at):
        c = cuda.blockIdx.x
        if not do.found(found_at):
            do.norms_and_rate(c, addresses, chunks, nodes, counters, sums, rates, hyper, adapt, factor_at)

    return merged_lars_norms


@factory
def lars_update(signature: Signature, chunk_tiles: int) -> Kernel:
    """The second launch, a block to a tile: velocity and parameter."""
    do = chunks_of(signature)

    @kernel(UPDATE_BOUNDS)
    def merged_lars_update(addresses, chunks, hyper, rates, factor_at, found_at):
        tile = cuda.gridDim.x - 1 - cuda.blockIdx.x
        c, offset = tile // chunk_tiles, tile % chunk_tiles * TILE
        do.update(c, offset, TILE, addresses, chunks, hyper, rates, factor_at, found_at)

    return merged_lars_update
