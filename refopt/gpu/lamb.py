"""LAMB in two launches, for any number of tensors: ``refopt.cpu.lamb``.

The first makes the moments and the norms of p and of the direction r; the block that closes a tensor forms its
rate. The second forms r once more, of the moments that were stored, and updates, last tensors first: 40 bytes
an element in fp32. To keep r would take as many, and memory.

Only the first launch reads the powers of beta, and only the second writes them, so one slot is enough (N9).
"""

from collections.abc import Callable
from functools import lru_cache
from types import SimpleNamespace
from typing import Any

import numpy as np

from refopt.catalog import LAMB
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
from refopt.gpu.tiles import ARRIVALS, ROW, ROWS, WHOLE_WARP, add_squares, joiner, lane_tree_2, rows_of, scale8

NORM_BOUNDS = 128, 4
UPDATE_BOUNDS = 64, 14
# Rows of the address table and of the hyperparameter block, in the catalogue's order.
P, G, M, U, BETA1_POW, BETA2_POW, MASTER = range(7)
LR, BETA1, BETA2, EPSILON, DECAY, RESCALE = range(6)
# Rows of the table of rates: lr times ratio, and what the moments are divided by.
RATE, REST1, REST2 = range(3)


@lru_cache
def phases(dtypes: tuple) -> SimpleNamespace:
    """The work of a warp on a tile of the norms, and on a row of the update."""
    full, partial = _variant(dtypes, False), _variant(dtypes, True)

    @device_function
    def norms(p, x, g, m, u, first, stop, aligned, rescale, k):
        i = first + 4 * (cuda.threadIdx.x % 32)
        if aligned and first + TILE <= stop:
            return full.norms(p, x, g, m, u, i, stop, ROWS, rescale, k)
        return partial.norms(p, x, g, m, u, i, stop, rows_of(first, stop), rescale, k)

    @device_function
    def update(p, x, m, u, first, stop, aligned, rate, k):
        i = first + 4 * (cuda.threadIdx.x % 32)
        if aligned and first + ROW <= stop:
            full.update(p, x, m, u, i, stop, rate, k)
        else:
            partial.update(p, x, m, u, i, stop, rate, k)

    return SimpleNamespace(norms=norms, update=update)


def _variant(dtypes: tuple, partial: bool) -> SimpleNamespace:
    real: Any = arithmetic(dtypes[P])
    one, zeros = real(1), (real(0),) * 8
    exact = vectors.exact_access(dtypes[P], dtypes[MASTER], real, partial)
    access = {row: vectors.access(dtypes[row], real, partial) for row in (G, M, U)}
    load_x, load_g, load_m, load_u = exact.load, *(access[row].load for row in (G, M, U))
    store_x, store_m, store_u = exact.store, *(access[row].store for row in (M, U))
    stored_m, stored_u, kept = vectors.rounded8(dtypes[M]), vectors.rounded8(dtypes[U]), vectors.kept8(real, partial)

    @device_function
    def moment1(m, g, k):
        return k[0] * m + (one - k[0]) * g

    @device_function
    def moment2(u, g, k):
        return k[1] * u + (one - k[1]) * g * g

    @device_function
    def direction(x, m, u, k):
        return m / k[4] / (sqrt(u / k[5]) + k[2]) + k[3] * x

    @device_function
    def descend(x, r, rate):
        return x - rate * r

    moments1, moments2 = unroll.each(moment1, 2), unroll.each(moment2, 2)
    directions, descents = unroll.each(direction, 3), unroll.each(descend, 2)

    @device_function
    def norms(p_at, x_at, g_at, m_at, u_at, i, stop, rows, rescale, k):
        x_sums, r_sums = zeros, zeros
        for row in range(rows):
            at = i + ROW * row
            x, g = load_x(p_at, x_at, at, stop), scale8(rescale, load_g(g_at, at, stop))
            m, u = moments1(load_m(m_at, at, stop), g, k), moments2(load_u(u_at, at, stop), g, k)
            store_m(m_at, at, stop, m)
            store_u(u_at, at, stop, u)
            x_sums = add_squares(x_sums, x)
            r_sums = add_squares(r_sums, kept(directions(x, stored_m(m), stored_u(u), k), at, stop))
        return lane_tree_2(x_sums, r_sums)

    @device_function
    def update(p_at, x_at, m_at, u_at, i, stop, rate, k):
        x = load_x(p_at, x_at, i, stop)
        x = descents(x, directions(x, load_m(m_at, i, stop), load_u(u_at, i, stop), k), rate)
        store_x(p_at, x_at, i, stop, x, x)

    return SimpleNamespace(norms=norms, update=update)


@factory
def lamb_norms(dtypes: tuple, always_adapt: bool, factor: str) -> Kernel:
    """The first launch, a block to a chunk: moments, norms, and the rate of every tensor."""
    real: Any = arithmetic(dtypes[P])
    do, climb, one, zero = phases(dtypes), joiner(real).climb, real(1), real(0)
    load_scalar = getattr(vectors, f"load_{np.dtype(real).name}")
    found, factor_of = gate(real, factor)

    @device_function
    def trust_ratio(x_norm, r_norm, decay):
        if x_norm > zero and r_norm > zero and (always_adapt or decay > zero):
            return x_norm / r_norm
        return one

    @kernel(NORM_BOUNDS)
    def merged_lamb_norms(
        addresses, chunks, nodes, counters, sums, rates, hyper, first_chunk, factor_at, found_at
    ):
        let_next_launch_begin()
        if found(found_at):
            return
        c = first_chunk + cuda.blockIdx.x
        tensor, start, stop, slot = chunks[c, TENSOR], chunks[c, START], chunks[c, STOP], chunks[c, SLOT]
        rescale = hyper[RESCALE, tensor] * factor_of(factor_at)
        node = chunks[c, NODE]
        arrivals = nodes[max(node, 0), ARRIVALS]
        rest1 = one - load_scalar(addresses[BETA1_POW, tensor])
        rest2 = one - load_scalar(addresses[BETA2_POW, tensor])
        decay = hyper[DECAY, tensor]
        k = hyper[BETA1, tensor], hyper[BETA2, tensor], hyper[EPSILON, tensor], decay, rest1, rest2
        p, x, g = addresses[P, tensor], addresses[MASTER, tensor], addresses[G, tensor]
        m, u = addresses[M, tensor], addresses[U, tensor]
        lane = cuda.threadIdx.x % 32
        for first in range(start + cuda.threadIdx.x // 32 * TILE, stop, cuda.blockDim.x // 32 * TILE):
            squares = do.norms(p, x, g, m, u, first, stop, chunks[c, ALIGNED], rescale, k)
            if lane < 2:
                sums[lane, slot + (first - start) // TILE] = squares
        closes, squares = climb(node, arrivals, nodes, counters, sums)
        if closes:
            others = cuda.shfl_xor_sync(WHOLE_WARP, squares, 1)
            if cuda.threadIdx.x == 0:
                ratio = trust_ratio(sqrt(squares), sqrt(others), decay)
                rates[RATE, tensor] = hyper[LR, tensor] * ratio
                rates[REST1, tensor] = rest1
                rates[REST2, tensor] = rest2

    return merged_lamb_norms


@factory
def lamb_update(dtypes: tuple, chunk_tiles: int) -> Kernel:
    """The second launch, a block to a tile, last tiles first: parameters and powers."""
    real: Any = arithmetic(dtypes[P])
    do = phases(dtypes)
    found, _ = gate(real, "float32")
    name = np.dtype(real).name
    load_scalar, store_scalar = getattr(vectors, f"load_{name}"), getattr(vectors, f"store_{name}")

    @kernel(UPDATE_BOUNDS)
    def merged_lamb_update(addresses, chunks, rates, hyper, first_chunk, found_at):
        tile = cuda.gridDim.x - 1 - cuda.blockIdx.x
        c, offset = first_chunk + tile // chunk_tiles, tile % chunk_tiles * TILE
        tensor, start = chunks[c, TENSOR], chunks[c, START] + offset
        stop = min(chunks[c, STOP], start + TILE)
        p, x, m, u = addresses[P, tensor], addresses[MASTER, tensor], addresses[M, tensor], addresses[U, tensor]
        beta1, beta2, epsilon, decay = (
            hyper[BETA1, tensor], hyper[BETA2, tensor], hyper[EPSILON, tensor], hyper[DECAY, tensor]
        )  # fmt: skip
        wait_for_previous_launch()
        if found(found_at):
            return
        k = beta1, beta2, epsilon, decay, rates[REST1, tensor], rates[REST2, tensor]
        for first in range(start + cuda.threadIdx.x // 32 * ROW, stop, cuda.blockDim.x // 32 * ROW):
            do.update(p, x, m, u, first, stop, chunks[c, ALIGNED], rates[RATE, tensor], k)
        if start == 0 and cuda.threadIdx.x == 0:
            power1, power2 = addresses[BETA1_POW, tensor], addresses[BETA2_POW, tensor]
            store_scalar(power1, load_scalar(power1) * beta1)
            store_scalar(power2, load_scalar(power2) * beta2)

    return merged_lamb_update


def launches(group: Group, form: str, *, always_adapt: bool) -> Launches:
    """The two launches of a group, or two for each tensor."""
    machine, tiles = group.machine, group.chunk_tiles
    sums, rates = group.zeros(2, max(1, group.slots)), group.zeros(3, len(group.members))
    hyper = group.hypers.values
    pieces = [(0, group.chunk_count)] if LAMB.forms[form].merged else group.chunks_of_tensors()
    steps: list[Callable[[Any], None]] = []
    for first, chunks in pieces:
        norm_args = group.addresses, group.chunks, group.nodes, group.counters, sums, rates, hyper, first
        norms = lamb_norms(group.dtypes, bool(always_adapt), group.factor_dtype)
        steps.append(machine.prepare(norms, chunks, NORM_BOUNDS[0], (*norm_args, *group.gate)))
        args = group.addresses, group.chunks, rates, hyper, first, group.gate[1]
        update = lamb_update(group.dtypes, tiles)
        steps.append(machine.prepare(update, chunks * tiles, UPDATE_BOUNDS[0], args, "overlapping"))
    return Launches(machine, steps)
