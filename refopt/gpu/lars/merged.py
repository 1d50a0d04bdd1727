"""What the merged rungs share: a chunk of a tensor to a block, found in device-resident tables.

The kernels take the addresses of tables, so nothing they are passed grows with the number of tensors, and
there is no limit on it. A chunk's last arrival closes its tensor: it joins the sums and forms the rate.
"""

from functools import lru_cache
from types import SimpleNamespace

from refopt.cpu.reduce import TILE
from refopt.gpu.lars.phases import phases
from refopt.gpu.lars.rule import (
    COEFF,
    DECAY,
    EPSILON,
    LR,
    MU,
    RATE,
    RESCALE,
    WD,
    G,
    M,
    P,
    Signature,
    V,
    local_lr,
)
from refopt.gpu.tables import ALIGNED, NODE, SLOT, START, STOP, TENSOR
from refopt.gpu.target import cuda, device_function, let_next_launch_begin, wait_for_previous_launch
from refopt.gpu.tiles import ARRIVALS, ROW, WHOLE_WARP, joiner


@lru_cache
def chunks_of(signature: Signature) -> SimpleNamespace:
    """The phases of LARS for one chunk, for a signature."""
    do, climb = phases(signature), joiner(signature.real).climb
    found, factor_of = signature.gate

    @device_function
    def norms(c, addresses, chunks, hyper, factor, sums):
        """Tile sums of p and g."""
        tensor, start, stop, slot = chunks[c, TENSOR], chunks[c, START], chunks[c, STOP], chunks[c, SLOT]
        p, m, g = addresses[P, tensor], addresses[M, tensor], addresses[G, tensor]
        lane = cuda.threadIdx.x % 32
        for first in range(start + cuda.threadIdx.x // 32 * TILE, stop, cuda.blockDim.x // 32 * TILE):
            x = do.norms(p, m, g, first, stop, chunks[c, ALIGNED], hyper[RESCALE, tensor] * factor)
            if lane < 2:
                sums[lane, slot + (first - start) // TILE] = x

    @device_function
    def norm(c, addresses, chunks, hyper, factor, sums):
        """Tile sums of g alone."""
        tensor, start, stop, slot = chunks[c, TENSOR], chunks[c, START], chunks[c, STOP], chunks[c, SLOT]
        g = addresses[G, tensor]
        for first in range(start + cuda.threadIdx.x // 32 * TILE, stop, cuda.blockDim.x // 32 * TILE):
            x = do.norm(g, first, stop, chunks[c, ALIGNED], hyper[RESCALE, tensor] * factor)
            if cuda.threadIdx.x % 32 == 0:
                sums[1, slot + (first - start) // TILE] = x

    def closing(tile_sums):
        @device_function
        def norms_and_rate(c, addresses, chunks, nodes, counters, sums, rates, hyper, adapt, factor_at):
            """Tile sums of the chunk; in the block that is the last of its tensor, the tensor's rate."""
            let_next_launch_begin()
            node = chunks[c, NODE]
            arrivals = nodes[node, ARRIVALS]  # asked for early, since it is needed in a hurry
            tile_sums(c, addresses, chunks, hyper, factor_of(factor_at), sums)
            closes, x = climb(node, arrivals, nodes, counters, sums)
            if closes:
                y = cuda.shfl_xor_sync(WHOLE_WARP, x, 1)
                if cuda.threadIdx.x == 0:
                    tensor = chunks[c, TENSOR]
                    lr, wd = hyper[LR, tensor], hyper[DECAY, tensor]
                    rates[RATE, tensor] = local_lr(x, y, lr, hyper[COEFF, tensor], wd, hyper[EPSILON, tensor], adapt)
                    rates[WD, tensor] = wd

        return norms_and_rate

    @device_function
    def update(c, offset, length, addresses, chunks, hyper, rates, factor_at, found_at):
        """Update a part of a chunk, a row to a warp."""
        tensor, start = chunks[c, TENSOR], chunks[c, START] + offset
        stop = min(chunks[c, STOP], start + length)
        p, g, v, m = addresses[P, tensor], addresses[G, tensor], addresses[V, tensor], addresses[M, tensor]
        wait_for_previous_launch()
        if found(found_at):
            return
        rate, wd, mu = rates[RATE, tensor], rates[WD, tensor], hyper[MU, tensor]
        rescale = hyper[RESCALE, tensor] * factor_of(factor_at)
        for first in range(start + cuda.threadIdx.x // 32 * ROW, stop, cuda.blockDim.x // 32 * ROW):
            do.update(p, g, v, m, first, stop, chunks[c, ALIGNED], rescale, rate, mu, wd)

    @device_function
    def update_and_norm(c, offset, length, addresses, chunks, hyper, rates, sums, factor_at, found_at):
        """Update a part of a chunk, a tile to a warp, and leave the tile sums of the p that is stored."""
        tensor, start = chunks[c, TENSOR], chunks[c, START] + offset
        stop, slot = min(chunks[c, STOP], start + length), chunks[c, SLOT] + offset // TILE
        p, g, v, m = addresses[P, tensor], addresses[G, tensor], addresses[V, tensor], addresses[M, tensor]
        wait_for_previous_launch()
        if found(found_at):
            return
        rate, wd, mu = rates[RATE, tensor], rates[WD, tensor], hyper[MU, tensor]
        rescale = hyper[RESCALE, tensor] * factor_of(factor_at)
        for first in range(start + cuda.threadIdx.x // 32 * TILE, stop, cuda.blockDim.x // 32 * TILE):
            x = do.update_and_norm(p, g, v, m, first, stop, chunks[c, ALIGNED], rescale, rate, mu, wd)
            if cuda.threadIdx.x % 32 == 0:
                sums[0, slot + (first - start) // TILE] = x

    return SimpleNamespace(
        found=found,
        norms_and_rate=closing(norms),
        norm_and_rate=closing(norm),
        update=update,
        update_and_norm=update_and_norm,
    )
