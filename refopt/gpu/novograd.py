"""NovoGrad in two launches, for any number of tensors: ``refopt.cpu.novograd``.

The first reads the gradients alone; the block that closes a tensor moves its second moment on, and leaves what the
gradient is to be divided by. The second updates, last tensors first, so that it finds the gradients that were read
last still in the cache: 24 bytes an element in fp32.

Nobody but the block that closes a tensor reads its second moment, so one slot is enough (N9).
"""

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np

from refopt.catalog import NOVOGRAD
from refopt.cpu.reduce import TILE
from refopt.dtypes import arithmetic
from refopt.gpu import unroll, vectors
from refopt.gpu.gate import gate
from refopt.gpu.launches import Launches
from refopt.gpu.plan import Group
from refopt.gpu.tables import ALIGNED, NODE, SLOT, START, STOP, TENSOR
from refopt.gpu.target import (
    Kernel,
    cuda,
    device_function,
    factory,
    kernel,
    let_next_launch_begin,
    sqrt,
    wait_for_previous_launch,
)
from refopt.gpu.tiles import ARRIVALS, ROW, ROWS, add_squares, joiner, lane_tree, rows_of, scale8

NORM_BOUNDS = 128, 4
UPDATE_BOUNDS = 64, 14
# Rows of the address table and of the hyperparameter block, in the catalogue's order.
P, G, M, V, MASTER = range(5)
LR, BETA1, BETA2, EPSILON, DECAY, RESCALE = range(6)


@lru_cache
def tile_norm(dtype: str, real: Any) -> Callable:
    """The sum of squares of a tile of rescaled gradients by a warp, in every thread of it."""
    full, partial = vectors.access(dtype, real, False, "keep").load, vectors.access(dtype, real, True).load
    zeros = (real(0),) * 8

    @device_function
    def norm(g, first, stop, aligned, rescale):
        i = first + 4 * (cuda.threadIdx.x % 32)
        sums = zeros
        if aligned and first + TILE <= stop:
            for row in range(ROWS):
                sums = add_squares(sums, scale8(rescale, full(g, i + ROW * row, stop)))
        else:
            for row in range(rows_of(first, stop)):
                sums = add_squares(sums, scale8(rescale, partial(g, i + ROW * row, stop)))
        return lane_tree(sums)

    return norm


@lru_cache
def row_update(dtypes: tuple, grad_averaging: bool) -> Callable:
    """The update of a row by a warp, full or partial."""
    full, partial = _variant(dtypes, grad_averaging, False), _variant(dtypes, grad_averaging, True)

    @device_function
    def update(addresses, tensor, first, stop, aligned, rescale, k):
        i = first + 4 * (cuda.threadIdx.x % 32)
        if aligned and first + ROW <= stop:
            full(addresses, tensor, i, stop, rescale, k)
        else:
            partial(addresses, tensor, i, stop, rescale, k)

    return update


def _variant(dtypes: tuple, grad_averaging: bool, partial: bool) -> Callable:
    real: Any = arithmetic(dtypes[P])
    one, exact = real(1), vectors.exact_access(dtypes[P], dtypes[MASTER], real, partial)
    access = {row: vectors.access(dtypes[row], real, partial) for row in (G, M)}
    load_x, load_g, load_m = exact.load, access[G].load, access[M].load
    store_x, store_m = exact.store, access[M].store

    @device_function
    def moment(x, g, m, k):
        d = g / k[3] + k[2] * x
        if grad_averaging:
            d = (one - k[1]) * d
        return k[1] * m + d

    @device_function
    def descend(x, m, k):
        return x - k[0] * m

    moments, descents = unroll.each(moment, 3), unroll.each(descend, 2)

    @device_function
    def update(addresses, tensor, i, stop, rescale, k):
        p, x = addresses[P, tensor], addresses[MASTER, tensor]
        value, g = load_x(p, x, i, stop), scale8(rescale, load_g(addresses[G, tensor], i, stop))
        m = moments(value, g, load_m(addresses[M, tensor], i, stop), k)
        value = descents(value, m, k)
        store_m(addresses[M, tensor], i, stop, m)
        store_x(p, x, i, stop, value, value)

    return update


@factory
def novograd_norms(dtypes: tuple, factor: str) -> Kernel:
    """The first launch, a block to a chunk: second moments, and what every tensor's gradient is divided by."""
    real: Any = arithmetic(dtypes[P])
    tile, climb, one, zero = tile_norm(dtypes[G], real), joiner(real).climb, real(1), real(0)
    name = np.dtype(real).name
    load_scalar, store_scalar = getattr(vectors, f"load_{name}"), getattr(vectors, f"store_{name}")
    found, factor_of = gate(real, factor)

    @device_function
    def average(v, n, beta2):
        if v == zero:
            return n
        return beta2 * v + (one - beta2) * n

    @kernel(NORM_BOUNDS)
    def merged_novograd_norms(
        addresses, chunks, nodes, counters, sums, divisors, hyper, first_chunk, factor_at, found_at
    ):
        let_next_launch_begin()
        if found(found_at):
            return
        c = first_chunk + cuda.blockIdx.x
        tensor, start, stop, slot = chunks[c, TENSOR], chunks[c, START], chunks[c, STOP], chunks[c, SLOT]
        rescale = hyper[RESCALE, tensor] * factor_of(factor_at)
        node = chunks[c, NODE]
        arrivals = nodes[max(node, 0), ARRIVALS]
        for first in range(start + cuda.threadIdx.x // 32 * TILE, stop, cuda.blockDim.x // 32 * TILE):
            squares = tile(addresses[G, tensor], first, stop, chunks[c, ALIGNED], rescale)
            if cuda.threadIdx.x % 32 == 0:
                sums[0, slot + (first - start) // TILE] = squares
        closes, squares = climb(node, arrivals, nodes, counters, sums)
        if closes and cuda.threadIdx.x == 0:
            v = average(load_scalar(addresses[V, tensor]), squares, hyper[BETA2, tensor])
            store_scalar(addresses[V, tensor], v)
            divisors[tensor] = sqrt(v) + hyper[EPSILON, tensor]

    return merged_novograd_norms


@factory
def novograd_update(dtypes: tuple, chunk_tiles: int, grad_averaging: bool, factor: str) -> Kernel:
    """The second launch, a block to a tile, last tiles first: parameters and moments."""
    real: Any = arithmetic(dtypes[P])
    update = row_update(dtypes, grad_averaging)
    found, factor_of = gate(real, factor)

    @kernel(UPDATE_BOUNDS)
    def merged_novograd_update(addresses, chunks, divisors, hyper, first_chunk, factor_at, found_at):
        tile = cuda.gridDim.x - 1 - cuda.blockIdx.x
        c, offset = first_chunk + tile // chunk_tiles, tile % chunk_tiles * TILE
        tensor, start = chunks[c, TENSOR], chunks[c, START] + offset
        stop = min(chunks[c, STOP], start + TILE)
        lr, decay = hyper[LR, tensor], hyper[DECAY, tensor]
        wait_for_previous_launch()
        if found(found_at):
            return
        k, rescale = (lr, hyper[BETA1, tensor], decay, divisors[tensor]), hyper[RESCALE, tensor] * factor_of(factor_at)
        for first in range(start + cuda.threadIdx.x // 32 * ROW, stop, cuda.blockDim.x // 32 * ROW):
            update(addresses, tensor, first, stop, chunks[c, ALIGNED], rescale, k)

    return merged_novograd_update


def launches(group: Group, form: str, *, grad_averaging: bool) -> Launches:
    """The two launches of a group, or two for each tensor."""
    machine, tiles = group.machine, group.chunk_tiles
    sums, divisors = group.zeros(2, max(1, group.slots)), group.zeros(len(group.members))
    hyper = group.hypers.values
    norms = novograd_norms(group.dtypes, group.factor_dtype)
    update = novograd_update(group.dtypes, tiles, bool(grad_averaging), group.factor_dtype)
    pieces = [(0, group.chunk_count)] if NOVOGRAD.forms[form].merged else group.chunks_of_tensors()
    steps: list[Callable[[Any], None]] = []
    for first, chunks in pieces:
        norm_args = group.addresses, group.chunks, group.nodes, group.counters, sums, divisors, hyper, first
        steps.append(machine.prepare(norms, chunks, NORM_BOUNDS[0], (*norm_args, *group.gate)))
        args = group.addresses, group.chunks, divisors, hyper, first, *group.gate
        steps.append(machine.prepare(update, chunks * tiles, UPDATE_BOUNDS[0], args, "overlapping"))
    return Launches(machine, steps)
