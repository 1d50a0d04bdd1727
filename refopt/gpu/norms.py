"""Steps that need norms of whole tensors, in two launches for any number of tensors: LAMB, NovoGrad and LARS.

The device functions of `refopt.gpu.rules.NormRule` differ between optimizers; this file has what they share.

How the work is cut. A tensor is cut into **chunks**, one for each block of the first launch, and a chunk into **tiles**
of 1024 elements, which a **warp**, 32 threads issued together, takes one at a time. A tile has four **rows** of 256.
The warp processes a row at once: each of its threads, a **lane**, has eight elements of it, as `refopt.gpu.rows` says.
This alone determines the order of all additions (numerics, N6); the number of blocks or threads changes no bit.

The first launch sums squares. A warp stores the sum of each of its tiles in memory. Blocks join the sums of a tensor
along a tree: a **node** of the tree counts arrivals, one for each chunk under it, and the last block to arrive joins
the node's sums and continues with the parent (`refopt.gpu.tiles`). So no block ever waits for another, which might not
have started. The block that joins the topmost node *closes* the tensor: it has the norms, and computes from them the
few numbers that the update needs, such as a learning rate.

The second launch updates. The end of the first is the barrier: all norms are known. It takes the **last tiles first**:
they were read last, so part of them is still in the L2 cache, which the first launch asks to keep them. Its blocks may
start while the first launch drains (**programmatic dependent launch**): meanwhile they look up their part in the
tables, and wait where they need the first launch's results.

**Launch bounds** are the largest number of threads in a block, and the number of blocks that must fit on a
multiprocessor at a time. They decide how its 65,536 registers are divided: 128 per thread for the norms, 72 for an
update. Without bounds the compiler saves registers, and a thread with few registers has few loads in flight. These
bounds were the fastest on an H200.

Of tensors that several ranks have a part of, the first launch only stores the sums of tiles (`tile_launches`). When
these have been joined over the ranks, a small launch closes all tensors, and the second is as before
(`closing_launches`).
"""

from collections.abc import Callable
from functools import lru_cache
from types import SimpleNamespace
from typing import Any

import numpy as np

from refopt.catalog import Routine
from refopt.cpu.reduce import TILE
from refopt.gpu.gate import gate
from refopt.gpu.group import Group
from refopt.gpu.instructions import let_next_launch_begin, wait_for_previous_launch
from refopt.gpu.kernels import Kernel, factory, kernel
from refopt.gpu.launches import Launches
from refopt.gpu.rows import OFFSETS, PARTIAL, ROW, WHOLE, Slots, column, of_warp, own
from refopt.gpu.rules import NormRule
from refopt.gpu.tables import ALIGNED, START, STOP, TENSOR
from refopt.gpu.target import cuda, device_function
from refopt.gpu.tiles import chunk_sums, tile_sums
from refopt.gpu.tried import norms_taken, rule_for
from refopt.gpu.vectors import load_of, store_of

# Threads per block, and blocks per multiprocessor.
NORM_BOUNDS = 128, 4
UPDATE_BOUNDS = 64, 14


@factory
def norms_kernel(routine: Routine, dtypes: tuple, choices: tuple, factor: str | None) -> Kernel:
    """The first launch, a block for each chunk."""
    phase = phases(routine, dtypes, choices, factor)

    def merged(addresses, chunks, nodes, counters, sums, numbers, hyper, first_chunk, factor_at, found_at):
        c = first_chunk + cuda.blockIdx.x
        if not phase.found(found_at):
            phase.norms(c, addresses, chunks, nodes, counters, sums, numbers, hyper, factor_at)

    merged.__name__ = f"{routine.merged_name}_norms"
    return kernel(NORM_BOUNDS)(merged)


@factory
def update_kernel(routine: Routine, dtypes: tuple, choices: tuple, factor: str | None, chunk_tiles: int) -> Kernel:
    """The second launch, a block for each tile, last tiles first."""
    phase = phases(routine, dtypes, choices, factor)

    def merged(addresses, chunks, sums, numbers, hyper, first_chunk, factor_at, found_at):
        tile = cuda.gridDim.x - 1 - cuda.blockIdx.x
        c, offset = first_chunk + tile // chunk_tiles, tile % chunk_tiles * TILE
        phase.update(c, offset, TILE, addresses, chunks, numbers, hyper, factor_at, found_at)

    merged.__name__ = f"{routine.merged_name}_update"
    return kernel(UPDATE_BOUNDS)(merged)


@factory
def tiles_kernel(routine: Routine, dtypes: tuple, choices: tuple, factor: str | None) -> Kernel:
    """The first launch for parts of tensors, a block for each chunk: sums of tiles, from ``places[n, tensor]`` on."""
    phase = phases(routine, dtypes, choices, factor)
    norms = phase.count

    def merged(addresses, chunks, places, tiles, hyper, factor_at, found_at):
        if phase.found(found_at):
            return
        c, lane = cuda.blockIdx.x, cuda.threadIdx.x % 32
        tensor = chunks[c, TENSOR]
        at = phase.addresses_of(addresses, tensor)
        k = phase.shared_of(hyper, tensor, at, factor_at)
        for first in of_warp(chunks[c, START], chunks[c, STOP], TILE):
            x = phase.tile(at, first, chunks[c, STOP], chunks[c, ALIGNED], k)
            if lane < norms:
                tiles[places[lane, tensor] + first // TILE] = x

    merged.__name__ = f"{routine.merged_name}_tiles"
    return kernel(NORM_BOUNDS)(merged)


@factory
def close_kernel(routine: Routine, dtypes: tuple, choices: tuple, factor: str | None) -> Kernel:
    """The launch that closes parts of tensors, a thread for each, from the sums of squares at ``places[n, tensor]``."""
    phase = phases(routine, dtypes, choices, factor)
    last = phase.count - 1

    def merged(addresses, places, sums, numbers, hyper, factor_at, found_at):
        if phase.found(found_at):
            return
        for tensor in range(cuda.grid(1), places.shape[1], cuda.gridsize(1)):
            squares = sums[places[0, tensor]], sums[places[last, tensor]]
            phase.close(tensor, squares, phase.addresses_of(addresses, tensor), numbers, hyper, factor_at)

    merged.__name__ = f"{routine.merged_name}_close"
    return kernel(NORM_BOUNDS)(merged)


@lru_cache
def phases(routine: Routine, dtypes: tuple, choices: tuple, factor: str | None) -> SimpleNamespace:
    """The two phases of a step for one chunk, ``norms`` and ``update``, and the device functions that they call.

    ``norms_by(tile, rows)`` makes the first phase with another sum of a tile, as `chunk_sums` takes it.

    Args:
        routine, dtypes, choices: as for `refopt.gpu.elementwise.merged_update`.
        factor: the dtype of ``grad_factor``; None if the step has neither factor nor flag.
    """
    slots = Slots(routine, dtypes)
    real: Any = slots.real
    rule: NormRule = rule_for(routine, real, slots.present, dict(choices))
    norms, close = norms_taken(routine, rule, real), rule.close
    tile = tile_sums(norm_row(slots, routine, rule, norms), norms, real, stores=rule.moments is not None)
    update_row, arrays = updated_row(slots, routine, rule)
    found, factor_of = gate(real, factor)
    addresses_of, hypers_of, numbers_of = map(column, (len(routine.slots), len(routine.hypers), len(rule.numbers)))
    load_scalar, store_scalar = load_of(np.dtype(real).name), store_of(np.dtype(real).name)
    numbers_kept, scalars, scalars_of = len(rule.numbers), len(routine.scalars), column(len(routine.scalars))
    first_scalar, room = routine.slot_names.index(routine.scalars[0]) if scalars else 0, max(1, scalars)

    @device_function
    def rescaled(h, factor_at):
        """The hyperparameters, of which the last is the factor of the gradient."""
        return (*h[:-1], h[-1] * factor_of(factor_at))

    @device_function
    def shared_of(hyper, tensor, at, factor_at):
        """What all elements of a tensor share in the first launch: the hyperparameters, then the scalars."""
        s = cuda.local.array((room, 1), real)
        for n in range(scalars):
            s[n, 0] = load_scalar(at[first_scalar + n])
        return rescaled(hypers_of(hyper, tensor), factor_at) + scalars_of(s, 0)

    @device_function
    def close_tensor(tensor, squares, at, numbers, hyper, factor_at):
        """Write a tensor's numbers and scalars; no block reads its scalars any more."""
        closed = close(squares, shared_of(hyper, tensor, at, factor_at))
        for n in range(numbers_kept):
            numbers[n, tensor] = closed[n]
        for n in range(scalars):
            store_scalar(at[first_scalar + n], closed[numbers_kept + n])

    def norms_by(tile: Callable, rows: tuple[int, int]) -> Callable:
        sums_of = chunk_sums(tile, real, rows)

        @device_function
        def norms_of(c, addresses, chunks, nodes, counters, sums, numbers, hyper, factor_at):
            """Sum the chunk's tiles; the last block of a tensor also writes the tensor's numbers and scalars."""
            let_next_launch_begin()
            tensor = chunks[c, TENSOR]
            at = addresses_of(addresses, tensor)
            k = shared_of(hyper, tensor, at, factor_at)
            closes, squares = sums_of(c, at, chunks, nodes, counters, sums, k)
            if closes and cuda.threadIdx.x == 0:
                # What elements share is read again here, so that it needs no registers before.
                close_tensor(tensor, squares, at, numbers, hyper, factor_at)

        return norms_of

    @device_function
    def row(at, first, stop, aligned, k):
        """Update a row, by a warp."""
        x = cuda.local.array((arrays, 8), real)
        if aligned and first + ROW <= stop:
            update_row(at, own(first), stop, WHOLE, k, x)
        else:
            update_row(at, own(first), stop, PARTIAL, k, x)

    @device_function
    def update(c, offset, length, addresses, chunks, numbers, hyper, factor_at, found_at):
        """Update ``length`` elements of the chunk, or as many as there are, from ``offset`` on."""
        tensor, start = chunks[c, TENSOR], chunks[c, START] + offset
        stop = min(chunks[c, STOP], start + length)
        at, h = addresses_of(addresses, tensor), hypers_of(hyper, tensor)
        # Nothing read so far was written by the previous launch. Its numbers are needed from here on.
        wait_for_previous_launch()
        if found(found_at):
            return
        k = rescaled(h, factor_at) + numbers_of(numbers, tensor)
        for first in of_warp(start, stop, ROW):
            row(at, first, stop, chunks[c, ALIGNED], k)

    return SimpleNamespace(
        rule=rule, found=found, addresses_of=addresses_of, hypers_of=hypers_of, numbers_of=numbers_of,
        rescaled=rescaled, shared_of=shared_of, tile=tile, row=row, update_row=update_row, arrays=arrays,
        norms_by=norms_by, norms=norms_by(tile, (0, norms)), count=norms, close=close_tensor, update=update,
    )


def norm_row(slots: Slots, routine: Routine, rule: NormRule, norms: int) -> Callable:
    """``add_row(at, i, stop, whole, k, s)``, as `tile_sums` takes it: store new states, and add the squares of norms.

    Its loads ask the cache to keep what the update reads again, unless it also writes states, too much for the cache.
    """
    array = {name: a for a, name in enumerate(rule.reads)}
    states = {name: a for name, a in array.items() if rule.moments and name in routine.states}
    load = slots.load(rule.reads, "" if rule.moments else "keep")
    store: Any = slots.store(states) if states else None
    as_stored: Any = slots.as_stored(states)
    rounds, moved, written = as_stored is not None, len(states), tuple(states.values())
    arrays, grads, rescale = len(array), array.get("grads", -1), len(routine.hypers) - 1
    moments: Any = rule.moments
    elements, normed, real = column(arrays), rule.normed, slots.real

    @device_function
    def add_row(at, i, stop, whole, k, s):
        x = cuda.local.array((arrays, 8), real)
        load(at, i, stop, whole, x)
        if grads >= 0:
            for e in range(8):
                x[grads, e] = k[rescale] * x[grads, e]
        if moved:
            for e in range(8):
                new = moments(*elements(x, e), k)
                for n in range(moved):
                    x[written[n], e] = new[n]
            store(at, i, stop, whole, x)
            if rounds:  # norms are of what the update will read
                as_stored(at, i, stop, whole, x)
        for e in range(8):
            y = normed(*elements(x, e), k)
            if whole or i + OFFSETS[e] < stop:
                for n in range(norms):
                    s[n, e] = s[n, e] + y[n] * y[n]

    return add_row


def updated_row(slots: Slots, routine: Routine, rule: NormRule) -> tuple[Callable, int]:
    """``update_row(at, i, stop, whole, k, x)``, and how many arrays x has: those of ``rule.updates`` first."""
    results = ["params", *(name for name in routine.states if not rule.moments or name not in rule.reads)]
    array = {name: a for a, name in enumerate(dict.fromkeys([*rule.updates, *results]))}
    written = {name: array[name] for name in results}
    load, store = slots.load(rule.updates), slots.store(written | {"stored_params": array["params"]})
    elements, grads, rescale = column(len(rule.updates)), array.get("grads", -1), len(routine.hypers) - 1
    apply, places, count = rule.rule, tuple(written.values()), len(written)

    @device_function
    def update_row(at, i, stop, whole, k, x):
        load(at, i, stop, whole, x)
        for e in range(8):
            if grads >= 0:
                x[grads, e] = k[rescale] * x[grads, e]
            new = apply(*elements(x, e), k)
            for n in range(count):
                x[places[n], e] = new[n]
        store(at, i, stop, whole, x)

    return update_row, len(array)


def arguments(group: Group, choices: dict[str, Any]) -> tuple[tuple, tuple, tuple]:
    """What determines a group's kernels, the tables that come first in their arguments, and the scratch that follows.

    A launch that takes norms has nodes and counters between these two; first chunk, factor and flag come last.
    """
    factor = group.factor_dtype if any(group.gate) else None
    kind = group.routine, group.dtypes, tuple(sorted(choices.items())), factor
    sums = group.zeros(2, max(1, group.slots))
    numbers = group.zeros(len(phases(*kind).rule.numbers), len(group.members))
    return kind, (group.addresses, group.chunks), (sums, numbers, group.hypers.values)


def launches(group: Group, form: str, **choices: Any) -> Launches:
    """The two launches of a group, or two for each tensor."""
    machine, routine, tiles = group.machine, group.routine, group.chunk_tiles
    kind, tables, scratch = arguments(group, choices)
    norms, update = norms_kernel(*kind), update_kernel(*kind, tiles)
    pieces = [(0, group.chunk_count)] if routine.forms[form].merged else group.chunks_of_tensors()
    steps: list[Callable[[Any], None]] = []
    for first, chunks in pieces:
        args = *scratch, first, *group.gate
        norm_args = *tables, group.nodes, group.counters, *args
        steps.append(machine.prepare(norms, chunks, NORM_BOUNDS[0], norm_args))
        steps.append(machine.prepare(update, chunks * tiles, UPDATE_BOUNDS[0], (*tables, *args), "overlapping"))
    return Launches(machine, steps)


def tile_launches(group: Group, form: str, tiles: Any, places: np.ndarray, **choices: Any) -> Launches:
    """The launch over a group's parts of tensors, whose sums of tiles go to their places, shape (norms, tensors)."""
    machine = group.machine
    kind, tables, (_, _, hyper) = arguments(group, choices)
    args = *tables, _placed(group, places), tiles, hyper, *group.gate
    return Launches(machine, [machine.prepare(tiles_kernel(*kind), group.chunk_count, NORM_BOUNDS[0], args)])


def closing_launches(group: Group, form: str, sums: Any, places: np.ndarray, **choices: Any) -> Launches:
    """The launches that update a group's parts of tensors, whose sums of squares are at their places."""
    machine, block = group.machine, NORM_BOUNDS[0]
    kind, tables, (scratch, numbers, hyper) = arguments(group, choices)
    args = group.addresses, _placed(group, places), sums, numbers, hyper, *group.gate
    closing = machine.prepare(close_kernel(*kind), -(-len(group.members) // block), block, args)
    update, rest = update_kernel(*kind, group.chunk_tiles), (scratch, numbers, hyper, 0, *group.gate)
    grid = group.chunk_count * group.chunk_tiles
    return Launches(machine, [
        closing, machine.prepare(update, grid, UPDATE_BOUNDS[0], (*tables, *rest), "overlapping"),
    ])


def _placed(group: Group, places: np.ndarray) -> Any:
    """The places of a group's tensors, of those of all, on the device."""
    return group.machine.to_device(np.ascontiguousarray(places[:, group.members], np.int64))
