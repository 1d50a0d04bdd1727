"""What the merged rungs share: a chunk of a tensor to a block, found in device-resident tables.

The kernels take the addresses of tables, so nothing they are passed grows with the number of tensors, and
there is no limit on it. A chunk's last arrival closes its tensor: it joins the sums and forms the rate.
"""

from functools import lru_cache
from types import SimpleNamespace

from refopt.cpu.reduce import TILE
from refopt.gpu.lars.phases import (
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
    hyper_of,
    local_lr,
    phases,
)
from refopt.gpu.tables import ALIGNED, NODE, SLOT, START, STOP, TENSOR
from refopt.gpu.target import cuda, device_function


@lru_cache
def chunks_of(signature: Signature) -> SimpleNamespace:
    """The phases of LARS for one chunk, for a signature."""
    do = phases(signature)
    normed = signature.normed

    @device_function
    def norms(c, addresses, chunks, hyper, where, sums):
        """Tile sums of p and g; returns the chunk's node."""
        tensor, start, stop, slot = chunks[c, TENSOR], chunks[c, START], chunks[c, STOP], chunks[c, SLOT]
        p, g = addresses[normed, tensor], addresses[G, tensor]
        rescale = hyper[RESCALE]
        for tile in range(cuda.threadIdx.x // 32, (stop - start + TILE - 1) // TILE, cuda.blockDim.x // 32):
            x, y = do.norms(p, g, start + tile * TILE, stop, chunks[c, ALIGNED], rescale)
            if cuda.threadIdx.x % 32 == 0:
                sums[0, slot + tile] = x
                sums[1, slot + tile] = y
        return chunks[c, NODE]

    @device_function
    def norm(c, addresses, chunks, hyper, where, sums):
        """Tile sums of g alone; returns the chunk's node."""
        tensor, start, stop, slot = chunks[c, TENSOR], chunks[c, START], chunks[c, STOP], chunks[c, SLOT]
        g = addresses[G, tensor]
        rescale = hyper[RESCALE]
        for tile in range(cuda.threadIdx.x // 32, (stop - start + TILE - 1) // TILE, cuda.blockDim.x // 32):
            y = do.norm(g, start + tile * TILE, stop, chunks[c, ALIGNED], rescale)
            if cuda.threadIdx.x % 32 == 0:
                sums[0, slot + tile] = y
        return chunks[c, NODE]

    @device_function
    def set_rate(tensor, p_squares, g_squares, hyper, where, adapt, rates):
        """Form the tensor's local learning rate; for one thread of one block."""
        lr, wd = hyper_of(hyper, where, LR, tensor), hyper_of(hyper, where, DECAY, tensor)
        coeff, epsilon = hyper[COEFF], hyper[EPSILON]
        rates[RATE, tensor] = local_lr(p_squares, g_squares, lr, coeff, wd, epsilon, adapt)
        rates[WD, tensor] = wd

    @device_function
    def update(c, addresses, chunks, hyper, where, rates):
        """Update the chunk."""
        tensor, start, stop = chunks[c, TENSOR], chunks[c, START], chunks[c, STOP]
        p, g, v, m = addresses[P, tensor], addresses[G, tensor], addresses[V, tensor], addresses[M, tensor]
        rescale, mu = hyper[RESCALE], hyper[MU]
        rate, wd = rates[RATE, tensor], rates[WD, tensor]
        for tile in range(cuda.threadIdx.x // 32, (stop - start + TILE - 1) // TILE, cuda.blockDim.x // 32):
            do.update(p, g, v, m, start + tile * TILE, stop, chunks[c, ALIGNED], rescale, rate, mu, wd)

    @device_function
    def update_and_norm(c, addresses, chunks, hyper, where, rates, sums):
        """Update the chunk, with the tile sums of the p it stores; returns the chunk's node."""
        tensor, start, stop, slot = chunks[c, TENSOR], chunks[c, START], chunks[c, STOP], chunks[c, SLOT]
        p, g, v, m = addresses[P, tensor], addresses[G, tensor], addresses[V, tensor], addresses[M, tensor]
        rescale, mu = hyper[RESCALE], hyper[MU]
        rate, wd = rates[RATE, tensor], rates[WD, tensor]
        for tile in range(cuda.threadIdx.x // 32, (stop - start + TILE - 1) // TILE, cuda.blockDim.x // 32):
            first = start + tile * TILE
            x = do.update_and_norm(p, g, v, m, first, stop, chunks[c, ALIGNED], rescale, rate, mu, wd)
            if cuda.threadIdx.x % 32 == 0:
                sums[0, slot + tile] = x
        return chunks[c, NODE]

    return SimpleNamespace(
        norms=norms, norm=norm, set_rate=set_rate, update=update, update_and_norm=update_and_norm, climb=do.climb
    )
