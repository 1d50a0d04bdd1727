"""Rung 1: one cooperative launch per tensor, as upstream did before it merged them.

The whole grid takes the norms of one tensor, waits, joins the tile sums level by level, and updates. For a
model of many small tensors most of the time goes into launching, and into a GPU that one bias cannot fill.
"""


from refopt.cpu.reduce import TILE
from refopt.gpu.lars.phases import NORM_BOUNDS, phases
from refopt.gpu.lars.rule import COEFF, DECAY, EPSILON, LR, MU, RESCALE, Signature, local_lr
from refopt.gpu.target import Kernel, cuda, factory, kernel
from refopt.gpu.tiles import FANOUT, ROW, joiner


@factory
def lars_separate(signature: Signature) -> Kernel:
    """The kernel for a signature; ``sums`` has room for the tile sums of p and g and what they join to."""
    do, join = phases(signature), joiner(signature.real).join
    found, factor_of = signature.gate

    @kernel(NORM_BOUNDS)
    def lars_momentum(p, g, v, m, size, aligned, tensor, sums, hyper, adapt, factor_at, found_at):
        if found(found_at):
            return
        grid = cuda.cg.this_grid()
        lane = cuda.threadIdx.x % 32
        warp = cuda.grid(1) // 32
        warps = cuda.gridsize(1) // 32
        tiles = (size + TILE - 1) // TILE
        rescale = hyper[RESCALE, tensor] * factor_of(factor_at)

        for tile in range(warp, tiles, warps):
            x = do.norms(p, m, g, tile * TILE, size, aligned, rescale)
            if lane < 2:
                sums[lane, tile] = x
        grid.sync()

        first, count = 0, tiles
        while count > 1:
            parents = (count + FANOUT - 1) // FANOUT
            for parent in range(cuda.blockIdx.x, parents, cuda.gridDim.x):
                child = first + parent * FANOUT
                children = min(count - parent * FANOUT, FANOUT)
                x = join(sums, child, children)
                if cuda.threadIdx.x < 2:
                    sums[cuda.threadIdx.x, first + count + parent] = x
            first, count = first + count, parents
            grid.sync()

        lr, wd = hyper[LR, tensor], hyper[DECAY, tensor]
        coeff, epsilon = hyper[COEFF, tensor], hyper[EPSILON, tensor]
        mu = hyper[MU, tensor]
        rate = local_lr(sums[0, first], sums[1, first], lr, coeff, wd, epsilon, adapt)
        for row in range(warp * ROW, size, warps * ROW):
            do.update(p, g, v, m, row, size, aligned, rescale, rate, mu, wd)

    return lars_momentum
