"""Rung 4: two launches, with the norm of p carried over from the step before.

The update has every new p in a register, so it adds up their squares while it is there and leaves the tile
sums. The next step then reads g alone for its norms: 24 bytes an element instead of 28 in fp32. This holds
as long as nobody else writes p; a plan that is told otherwise takes the first launch of rung 3 once. A step that is
skipped writes neither p nor its sums.
"""


from refopt.cpu.reduce import TILE
from refopt.gpu.lars.merged import chunks_of
from refopt.gpu.lars.phases import NORM_BOUNDS, UPDATE_AND_NORM_BOUNDS
from refopt.gpu.lars.rule import Signature
from refopt.gpu.target import Kernel, cuda, factory, kernel

PAIR = 2 * TILE


@factory
def lars_grad_norm(signature: Signature) -> Kernel:
    """The first launch: the tile sums of g, which are joined together with those of p that lie there."""
    do = chunks_of(signature)

    @kernel(NORM_BOUNDS)
    def merged_lars_grad_norm(
        addresses, chunks, nodes, counters, sums, rates, hyper, adapt, factor_at, found_at
    ):
        c = cuda.blockIdx.x
        if not do.found(found_at):
            do.norm_and_rate(c, addresses, chunks, nodes, counters, sums, rates, hyper, adapt, factor_at)

    return merged_lars_grad_norm


@factory
def lars_update_and_norm(signature: Signature, chunk_tiles: int) -> Kernel:
    """The second launch, a block to two tiles: velocity, parameter, and the tile sums of the new p."""
    do = chunks_of(signature)
    chunk_pairs = chunk_tiles // 2

    @kernel(UPDATE_AND_NORM_BOUNDS)
    def merged_lars_update_and_norm(addresses, chunks, hyper, rates, sums, factor_at, found_at):
        pair = cuda.gridDim.x - 1 - cuda.blockIdx.x
        c, offset = pair // chunk_pairs, pair % chunk_pairs * PAIR
        do.update_and_norm(c, offset, PAIR, addresses, chunks, hyper, rates, sums, factor_at, found_at)

    return merged_lars_update_and_norm
