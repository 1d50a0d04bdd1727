"""What a block does with a chunk in each of the two launches: everything but the arithmetic."""

from collections.abc import Callable
from functools import lru_cache
from types import SimpleNamespace
from typing import Any

import numpy as np

from refopt.catalog import Routine
from refopt.checks.dtypes import arithmetic
from refopt.cpu.reduce import TILE
from refopt.gpu import unroll, vectors
from refopt.gpu.gate import gate
from refopt.gpu.norms.elements import norm_row, tile_sums, update_row
from refopt.gpu.rows import either, of_warp
from refopt.gpu.rules import NormRule
from refopt.gpu.tables import ALIGNED, NODE, SLOT, START, STOP, TENSOR
from refopt.gpu.target import cuda, device_function, let_next_launch_begin, wait_for_previous_launch
from refopt.gpu.tiles import ARRIVALS, ROW, WHOLE_WARP, joiner
from refopt.gpu.tried import norms_taken, rule_for
from refopt.gpu.unroll import named


def walk_tiles(tile: Callable, rows: tuple[int, int]) -> Callable:
    """``over_tiles(c, chunks, at, start, stop, slot, sums, common)``: sums the tiles from start to stop, a warp for
    each tile.

    ``tile(at, first, stop, aligned, common)`` sums a tile. The results go to ``sums``, from the slot on: the lane of
    number n writes row n, for n from ``rows[0]`` to ``rows[1] - 1``.
    """
    first_row, stop_row = rows

    @device_function
    def over_tiles(c, chunks, at, start, stop, slot, sums, common):
        lane = cuda.threadIdx.x % 32
        for first in of_warp(start, stop, TILE):
            x = tile(at, first, stop, chunks[c, ALIGNED], common)
            if first_row <= lane < stop_row:
                sums[lane, slot + (first - start) // TILE] = x

    return named(over_tiles, "over_tiles" + tile.__name__.removeprefix("tile"))


def walk_rows(row: Callable) -> Callable:
    """``over_rows(c, chunks, at, start, stop, slot, sums, common)``: calls ``row`` for each row, a warp for each."""

    @device_function
    def over_rows(c, chunks, at, start, stop, slot, sums, common):
        for first in of_warp(start, stop, ROW):
            row(at, first, stop, chunks[c, ALIGNED], common)

    return over_rows


def chunk_sums(tile: Callable, real: Any, rows: tuple[int, int] = (0, 2)) -> Callable:
    """``sums_of(c, at, chunks, nodes, counters, sums, common)``: a chunk's sums of squares and, in the tensor's last
    block, the tensor's.

    Tile and rows are those of `walk_tiles`. It returns whether this block is the last of the tensor and, if so, on
    even threads the tensor's sums of both rows.
    """
    over_tiles, climb, zero = walk_tiles(tile, rows), joiner(real).climb, real(0)

    @device_function
    def sums_of(c, at, chunks, nodes, counters, sums, common):
        node = chunks[c, NODE]
        # How many chunks the node counts. Loaded early, since the last block to finish would have to wait for it.
        arrivals = nodes[node, ARRIVALS]
        over_tiles(c, chunks, at, chunks[c, START], chunks[c, STOP], chunks[c, SLOT], sums, common)
        # The last block to finish under a node of the tree joins its sums, so none waits for another.
        closes, x = climb(node, arrivals, nodes, counters, sums)
        if closes:
            return True, (x, cuda.shfl_xor_sync(WHOLE_WARP, x, 1))
        return False, (zero, zero)

    return named(sums_of, "sums" + tile.__name__.removeprefix("tile"))


@lru_cache
def phases(routine: Routine, dtypes: tuple, choices: tuple, factor: str | None) -> SimpleNamespace:
    """The two phases of a step for one chunk, ``norms`` and ``update``, and their parts.

    ``closing(name, tile, rows)`` and ``updating(over)`` make other phases, from the tile and rows of `chunk_sums`, and
    from a result of `walk_rows` or `walk_tiles`.

    Args:
        routine, dtypes, choices: as for `refopt.gpu.elementwise.merged_update`.
        factor: the dtype of ``grad_factor``; None if the step has neither factor nor flag.
    """
    real: Any = arithmetic(dtypes[0])
    present = frozenset(name for name, dtype in zip(routine.slot_names, dtypes, strict=True) if dtype)
    rule: NormRule = rule_for(routine, real, present, dict(choices))
    count = norms_taken(routine, rule, real)
    found, factor_of = gate(real, factor)
    addresses_of = unroll.gather("addresses_of", "addresses[{k}, tensor]", "addresses, tensor", len(routine.slots))
    hypers_of = unroll.gather("hypers_of", "hyper[{k}, tensor]", "hyper, tensor", len(routine.hypers))
    numbers_of = unroll.gather("numbers_of", "numbers[{k}, tensor]", "numbers, tensor", len(rule.numbers))
    scalars_of, leave, close = _scalars(routine, real), _leave(routine, rule, real), rule.close
    tile = tile_sums("values", norm_row(routine, dtypes, rule, count), count, real)
    row = either("update_row", update_row(routine, dtypes, rule), ROW)

    @device_function
    def rescaled(h, factor):
        return (*h[:-1], h[-1] * factor)

    @device_function
    def common_of(hyper, tensor, at, factor_at):
        """What all elements of a tensor share in the first launch: the numbers, then the scalars."""
        return rescaled(hypers_of(hyper, tensor), factor_of(factor_at)) + scalars_of(at)

    def closing(name: str, tile: Callable, rows: tuple[int, int]) -> Callable:
        sums_of = chunk_sums(tile, real, rows)

        @device_function
        def norms(c, addresses, chunks, nodes, counters, sums, numbers, hyper, factor_at):
            """Sum the chunk's tiles; the last block of a tensor also writes the tensor's numbers and scalars."""
            let_next_launch_begin()
            tensor = chunks[c, TENSOR]
            at = addresses_of(addresses, tensor)
            common = common_of(hyper, tensor, at, factor_at)
            closes, squares = sums_of(c, at, chunks, nodes, counters, sums, common)
            if closes and cuda.threadIdx.x == 0:
                # All blocks of the tensor have read its scalars by now, so they can be written. The numbers are read
                # again here, so that they need no registers before.
                leave(tensor, at, close(squares, common_of(hyper, tensor, at, factor_at)), numbers)

        return named(norms, name)

    def updating(over: Callable) -> Callable:
        @device_function
        def update(c, offset, length, addresses, chunks, sums, numbers, hyper, factor_at, found_at):
            """Update a part of the chunk."""
            tensor, start = chunks[c, TENSOR], chunks[c, START] + offset
            stop, slot = min(chunks[c, STOP], start + length), chunks[c, SLOT] + offset // TILE
            at, h = addresses_of(addresses, tensor), hypers_of(hyper, tensor)
            # Nothing read so far was written by the previous launch. Its numbers are needed from here on.
            wait_for_previous_launch()
            if found(found_at):
                return
            common = rescaled(h, factor_of(factor_at)) + numbers_of(numbers, tensor)
            over(c, chunks, at, start, stop, slot, sums, common)

        return update

    return SimpleNamespace(
        rule=rule, found=found, addresses_of=addresses_of, common_of=common_of, tile=tile, row=row, closing=closing,
        updating=updating, norms=closing("norms", tile, (0, count)), update=updating(walk_rows(row)),
    )


def _scalars(routine: Routine, real: Any) -> Callable:
    load = getattr(vectors, f"load_{np.dtype(real).name}")
    first = routine.slot_names.index(routine.scalars[0]) if routine.scalars else 0
    return unroll.gather("scalars_of", f"load(at[{first} + {{k}}])", "at", len(routine.scalars), load=load)


def _leave(routine: Routine, rule: NormRule, real: Any) -> Callable:
    """Write the numbers and scalars that a tensor's closing block has computed. For LAMB::

        def leave(tensor, at, closed, numbers):
            numbers[0, tensor] = closed[0]
            numbers[1, tensor] = closed[1]
            numbers[2, tensor] = closed[2]
            store(at[4], closed[3])
            store(at[5], closed[4])
    """
    lines = [f"numbers[{n}, tensor] = closed[{n}]" for n in range(len(rule.numbers))]
    for n, name in enumerate(routine.scalars, len(rule.numbers)):
        lines.append(f"store(at[{routine.slot_names.index(name)}], closed[{n}])")
    store = getattr(vectors, f"store_{np.dtype(real).name}")
    return unroll.written("leave", "tensor, at, closed, numbers", lines, store=store)
