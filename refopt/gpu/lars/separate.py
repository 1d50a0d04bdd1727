"""Rung 1: one cooperative launch per tensor, as Paddle did before it merged them.

The whole grid sums the tiles of one tensor, waits, joins the tile sums level by level, and updates. For a model of many
small tensors most of the time is spent on launches, and on a GPU that is mostly idle, since one bias cannot fill it.
"""

from typing import Any

from refopt.catalog import Routine
from refopt.checks.dtypes import arithmetic
from refopt.cpu.reduce import TILE
from refopt.gpu.kernels import Kernel, factory, kernel
from refopt.gpu.norms import NORM_BOUNDS
from refopt.gpu.norms.chunks import phases
from refopt.gpu.target import cuda
from refopt.gpu.tiles import FANOUT, ROW, joiner


@factory
def lars_separate(routine: Routine, dtypes: tuple, choices: tuple, factor: str | None) -> Kernel:
    """The kernel for one tensor; ``sums`` has room for the tile sums of p and g and their joined sums."""
    real: Any = arithmetic(dtypes[0])
    do, join = phases(routine, dtypes, choices, factor), joiner(real).join
    close = do.rule.close

    @kernel(NORM_BOUNDS)
    def lars_momentum(p, g, v, m, tensor, size, aligned, sums, hyper, factor_at, found_at):
        if do.found(found_at):
            return
        grid = cuda.cg.this_grid()
        lane = cuda.threadIdx.x % 32
        warp = cuda.grid(1) // 32
        warps = cuda.gridsize(1) // 32
        tiles = (size + TILE - 1) // TILE
        at = p, g, v, m
        common = do.common_of(hyper, tensor, at, factor_at)

        for tile in range(warp, tiles, warps):
            x = do.tile(at, tile * TILE, size, aligned, common)
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

        closed = close((sums[0, first], sums[1, first]), common)  # in every thread, since all need the result
        for row in range(warp * ROW, size, warps * ROW):
            do.row(at, row, size, aligned, common + closed)

    return lars_momentum
