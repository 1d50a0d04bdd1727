"""Rung 4: two launches, with the norm of p carried over from the previous step.

The update has every new p in a register, so it also sums their squares and stores the tile sums. The next step then
reads only g for its norms: 24 bytes per element instead of 28 in fp32. This is valid as long as nothing else writes p;
a plan that is told of a write runs the first launch of rung 3 once. A skipped step writes neither p nor its sums.
"""

from collections.abc import Callable
from typing import Any

from refopt.catalog import Routine
from refopt.checks.dtypes import arithmetic
from refopt.cpu.reduce import TILE
from refopt.gpu import vectors
from refopt.gpu.kernels import Kernel, factory, kernel
from refopt.gpu.lars.stored import stored8
from refopt.gpu.norms import NORM_BOUNDS
from refopt.gpu.norms.chunks import phases, walk_tiles
from refopt.gpu.norms.elements import norm_row, tile_sums, update_row
from refopt.gpu.target import cuda, device_function
from refopt.gpu.unroll import named

PAIR = 2 * TILE
UPDATE_AND_NORM_BOUNDS = 64, 8


@factory
def lars_grad_norm(routine: Routine, dtypes: tuple, choices: tuple, factor: str | None) -> Kernel:
    """The first launch: it sums the tiles of g, and joins them together with the stored tile sums of p."""
    do = phases(routine, dtypes, choices, factor)
    normed = named(device_function(lambda g, k: (g,)), "normed_grads")
    of_grads = do.rule._replace(reads=("grads",), normed=normed)
    tile = tile_sums("grads", norm_row(routine, dtypes, of_grads, 1), 1, arithmetic(dtypes[0]))
    grad_norms = do.closing("grad_norms", tile, (1, 2))

    @kernel(NORM_BOUNDS)
    def merged_lars_grad_norm(
        addresses, chunks, nodes, counters, sums, numbers, hyper, factor_at, found_at
    ):
        if not do.found(found_at):
            grad_norms(cuda.blockIdx.x, addresses, chunks, nodes, counters, sums, numbers, hyper, factor_at)

    return merged_lars_grad_norm


@factory
def lars_update_and_norm(
    routine: Routine, dtypes: tuple, choices: tuple, factor: str | None, chunk_tiles: int
) -> Kernel:
    """The second launch, a block for every two tiles: velocity, parameter, and the tile sums of the new p."""
    real: Any = arithmetic(dtypes[0])
    do = phases(routine, dtypes, choices, factor)
    update_of = update_row(routine, dtypes, do.rule)
    stored = stored8(dtypes, do.rule.reads[0])
    chunk_pairs = chunk_tiles // 2

    def row(partial: bool) -> Callable:
        update, kept = update_of(partial), vectors.kept8(real, partial)
        named(update, "update_row", "partial" if partial else "full")

        @device_function
        def updated(at, first, stop, common):
            return (kept(stored(update(at, first, stop, common)), first, stop),)

        return updated

    update = do.updating(walk_tiles(tile_sums("new_params", row, 1, real), (0, 1)))

    @kernel(UPDATE_AND_NORM_BOUNDS)
    def merged_lars_update_and_norm(addresses, chunks, sums, numbers, hyper, factor_at, found_at):
        pair = cuda.gridDim.x - 1 - cuda.blockIdx.x
        c, offset = pair // chunk_pairs, pair % chunk_pairs * PAIR
        update(c, offset, PAIR, addresses, chunks, sums, numbers, hyper, factor_at, found_at)

    return merged_lars_update_and_norm
