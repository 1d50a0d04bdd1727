"""LARS with momentum on the GPU: a ladder of four forms, all with the same bits.

1. ``separate``: one cooperative launch per tensor (`lars_separate`).
2. ``cooperative``: one launch for all tensors, with a barrier across the grid (`lars_cooperative`).
3. ``two_launches``: the end of the first launch is the barrier, as in `refopt.gpu.norms`.
4. ``carried_norm``: two launches, with the norm of p from the previous step (`lars_grad_norm`, `lars_update_and_norm`).

Chunks, tiles, rows, and which thread has which elements, are those of `refopt.gpu.norms`, and so are the device
functions of a phase. Only what is around them differs.
"""

from typing import Any

from refopt.catalog import Routine
from refopt.checks.dtypes import arithmetic
from refopt.cpu.reduce import TILE
from refopt.gpu import norms
from refopt.gpu.group import Group
from refopt.gpu.instructions import wait_for_previous_launch
from refopt.gpu.kernels import Kernel, factory, kernel
from refopt.gpu.launches import Launches
from refopt.gpu.norms import NORM_BOUNDS, norm_row, phases
from refopt.gpu.rows import OFFSETS, ROW, Slots, of_warp
from refopt.gpu.tables import ALIGNED, FANOUT, SLOT, START, STOP, TENSOR
from refopt.gpu.target import cuda, device_function
from refopt.gpu.tiles import joiner, tile_sums

PAIR = 2 * TILE
UPDATE_AND_NORM_BOUNDS = 64, 8


@factory
def lars_separate(routine: Routine, dtypes: tuple, choices: tuple, factor: str | None) -> Kernel:
    """The kernel for one tensor; ``sums`` has room for the tile sums of p and g and their joined sums.

    One cooperative launch per tensor, as in Paddle before it merged them. The whole grid sums the tiles of one tensor,
    waits, joins the tile sums level by level, and updates. For a model of many small tensors most of the time is spent
    on launches, and on a GPU that is mostly idle, since one bias cannot fill it.
    """
    phase = phases(routine, dtypes, choices, factor)
    real: Any = arithmetic(dtypes[0])
    join, close = joiner(real).join, phase.rule.close

    @kernel(NORM_BOUNDS)
    def lars_momentum(p, g, v, m, tensor, size, aligned, sums, hyper, factor_at, found_at):
        if phase.found(found_at):
            return
        grid = cuda.cg.this_grid()
        lane = cuda.threadIdx.x % 32
        warp = cuda.grid(1) // 32
        warps = cuda.gridsize(1) // 32
        tiles = (size + TILE - 1) // TILE
        at = p, g, v, m
        k = phase.shared_of(hyper, tensor, at, factor_at)

        for tile in range(warp, tiles, warps):
            x = phase.tile(at, tile * TILE, size, aligned, k)
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

        numbers = close((sums[0, first], sums[1, first]), k)  # in every thread, since all need the result
        for row in range(warp * ROW, size, warps * ROW):
            phase.row(at, row, size, aligned, k + numbers)

    return lars_momentum


@factory
def lars_cooperative(routine: Routine, dtypes: tuple, choices: tuple, factor: str | None, chunk_tiles: int) -> Kernel:
    """The kernel for all tensors; other arguments are those of `refopt.gpu.norms.norms_kernel`.

    The grid is as large as can be resident at once. It sums the squares of every chunk, waits once for the whole model,
    and updates, last chunks first: those are still in the L2 cache.
    """
    phase, length = phases(routine, dtypes, choices, factor), chunk_tiles * TILE

    @kernel(NORM_BOUNDS)
    def merged_lars_cooperative(addresses, chunks, nodes, counters, sums, numbers, hyper, factor_at, found_at):
        if phase.found(found_at):
            return
        grid = cuda.cg.this_grid()
        for c in range(cuda.blockIdx.x, chunks.shape[0], cuda.gridDim.x):
            phase.norms(c, addresses, chunks, nodes, counters, sums, numbers, hyper, factor_at)
        grid.sync()
        c = chunks.shape[0] - 1 - cuda.blockIdx.x
        while c >= 0:
            phase.update(c, 0, length, addresses, chunks, numbers, hyper, factor_at, 0)
            c -= cuda.gridDim.x

    return merged_lars_cooperative


@factory
def lars_grad_norm(routine: Routine, dtypes: tuple, choices: tuple, factor: str | None) -> Kernel:
    """The first launch with a carried norm: it sums the tiles of g, and joins them and the stored tile sums of p.

    The update has every new p in a register, so it also sums their squares and stores the tile sums. The next step then
    reads only g for its norms: 24 bytes per element instead of 28 in fp32. This is valid as long as nothing else writes
    p; after a write that it is told of, a plan takes the first launch of form 3 once. A skipped step writes neither p
    nor its sums.
    """
    phase, slots = phases(routine, dtypes, choices, factor), Slots(routine, dtypes)
    of_grads = phase.rule._replace(reads=("grads",), normed=device_function(lambda g, k: (g,)))
    tile = tile_sums(norm_row(slots, routine, of_grads, 1), 1, slots.real)
    grad_norms = phase.norms_by(tile, (1, 2))

    @kernel(NORM_BOUNDS)
    def merged_lars_grad_norm(addresses, chunks, nodes, counters, sums, numbers, hyper, factor_at, found_at):
        if not phase.found(found_at):
            grad_norms(cuda.blockIdx.x, addresses, chunks, nodes, counters, sums, numbers, hyper, factor_at)

    return merged_lars_grad_norm


@factory
def lars_update_and_norm(
    routine: Routine, dtypes: tuple, choices: tuple, factor: str | None, chunk_tiles: int
) -> Kernel:
    """The second launch with a carried norm, a block for every two tiles: it also stores the tile sums of the new p."""
    phase, slots = phases(routine, dtypes, choices, factor), Slots(routine, dtypes)
    real: Any = slots.real
    arrays, params, chunk_pairs = phase.arrays, phase.rule.updates.index("params"), chunk_tiles // 2
    # The next step's norm reads new parameters exact, or rounded as they are stored.
    as_stored: Any = slots.as_stored({phase.rule.reads[0]: params})
    rounds = as_stored is not None

    @device_function
    def update_row(at, i, stop, whole, k, s):
        x = cuda.local.array((arrays, 8), real)
        phase.update_row(at, i, stop, whole, k, x)
        if rounds:
            as_stored(at, i, stop, whole, x)
        for e in range(8):
            if whole or i + OFFSETS[e] < stop:
                s[0, e] = s[0, e] + x[params, e] * x[params, e]

    update_tile = tile_sums(update_row, 1, real, stores=True)

    @kernel(UPDATE_AND_NORM_BOUNDS)
    def merged_lars_update_and_norm(addresses, chunks, sums, numbers, hyper, factor_at, found_at):
        pair = cuda.gridDim.x - 1 - cuda.blockIdx.x
        c, offset = pair // chunk_pairs, pair % chunk_pairs * PAIR
        tensor, start = chunks[c, TENSOR], chunks[c, START] + offset
        stop, slot = min(chunks[c, STOP], start + PAIR), chunks[c, SLOT] + offset // TILE
        at, h = phase.addresses_of(addresses, tensor), phase.hypers_of(hyper, tensor)
        wait_for_previous_launch()
        if phase.found(found_at):
            return
        k = phase.rescaled(h, factor_at) + phase.numbers_of(numbers, tensor)
        for first in of_warp(start, stop, TILE):
            x = update_tile(at, first, stop, chunks[c, ALIGNED], k)
            if cuda.threadIdx.x % 32 == 0:
                sums[0, slot + (first - start) // TILE] = x

    return merged_lars_update_and_norm


def launches(group: Group, form: str, **choices: Any) -> Launches:
    """The launches of a group in one of the four forms."""
    if form == "two_launches":
        return norms.launches(group, form, **choices)
    machine, gate, tiles = group.machine, group.gate, group.chunk_tiles
    kind, tables, scratch = norms.arguments(group, choices)
    if form == "separate":
        return Launches(machine, _separate(group, kind))
    block = NORM_BOUNDS[0]
    args = *tables, group.nodes, group.counters, *scratch
    if form == "cooperative":
        kernel = lars_cooperative(*kind, tiles)
        grid = machine.resident(kernel, block, (*args, *gate), group.chunk_count)
        return Launches(machine, [machine.prepare(kernel, grid, block, (*args, *gate), "cooperative")])
    # The first launch takes the norm of p without the flag, so that it exists even if the first step is skipped.
    both = machine.prepare(norms.norms_kernel(*kind), group.chunk_count, block, (*args, 0, gate[0], 0))
    of_grads = machine.prepare(lars_grad_norm(*kind), group.chunk_count, block, (*args, *gate))
    kernel, pairs = lars_update_and_norm(*kind, tiles), group.chunk_count * tiles // 2
    update = machine.prepare(kernel, pairs, UPDATE_AND_NORM_BOUNDS[0], (*tables, *scratch, *gate), "overlapping")
    return Launches(machine, [of_grads, update], first=[both, update])


def _separate(group: Group, kind: tuple) -> list:
    kernel = lars_separate(*kind)
    tiles = [-(-size // TILE) for size in group.sizes]
    sums = group.zeros(2, 2 * max(tiles) + 8)
    steps = []
    for tensor, addresses in enumerate(group.table.host.T.tolist()):
        size = group.sizes[tensor]
        args = *addresses, tensor, size, int(group.aligned[tensor]), sums, group.hypers.values, *group.gate
        grid = group.machine.resident(kernel, NORM_BOUNDS[0], args, -(-tiles[tensor] // (NORM_BOUNDS[0] // 32)))
        steps.append(group.machine.prepare(kernel, grid, NORM_BOUNDS[0], args, "cooperative"))
    return steps
