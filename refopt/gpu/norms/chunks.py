"""What a block does with a chunk in each of the two launches: everything but the arithmetic."""

from collections.abc import Callable
from functools import lru_cache
from types import SimpleNamespace
from typing import Any

import numpy as np

from refopt.catalog import Routine
from refopt.cpu.reduce import TILE
from refopt.dtypes import arithmetic
from refopt.gpu import unroll, vectors
from refopt.gpu.gate import gate
from refopt.gpu.norms.elements import either, norm_row, tile_sums, update_row
from refopt.gpu.rules import NormRule
from refopt.gpu.rules.lamb import lamb
from refopt.gpu.rules.novograd import novograd
from refopt.gpu.tables import ALIGNED, NODE, SLOT, START, STOP, TENSOR
from refopt.gpu.target import cuda, device_function, let_next_launch_begin, wait_for_previous_launch
from refopt.gpu.tiles import ARRIVALS, ROW, WHOLE_WARP, joiner


@device_function
def of_warp(start, stop, length):
    """Where the parts begin that fall to this warp, of so many elements each: the block's warps take turns."""
    return range(start + cuda.threadIdx.x // 32 * length, stop, cuda.blockDim.x // 32 * length)


def chunk_sums(tile: Callable, real: Any, rows: tuple[int, int] = (0, 2)) -> Callable:
    """``sums_of(c, chunks, nodes, counters, sums, at, k)``: a chunk's sums of squares, and in one block the tensor's.

    ``tile(at, first, stop, aligned, k)`` sums a tile up. Its sums go to the rows of ``sums`` from ``rows[0]`` to before
    ``rows[1]``; there are two. Returned is whether this block was the last of the tensor, and if so both its sums,
    of rows 0 and 1 in even threads.
    """
    climb = joiner(real).climb
    first_row, stop_row = rows
    zero = real(0)

    @device_function
    def sums_of(c, chunks, nodes, counters, sums, at, k):
        start, stop, slot, node = chunks[c, START], chunks[c, STOP], chunks[c, SLOT], chunks[c, NODE]
        # How many chunks report to the node. Asked for early: whoever is the last to finish needs it in a hurry.
        arrivals = nodes[max(node, 0), ARRIVALS]
        lane = cuda.threadIdx.x % 32
        for first in of_warp(start, stop, TILE):
            x = tile(at, first, stop, chunks[c, ALIGNED], k)
            if first_row <= lane < stop_row:
                sums[lane, slot + (first - start) // TILE] = x
        # The last block to finish under a node of the tree joins its sums, so none waits for another.
        closes, x = climb(node, arrivals, nodes, counters, sums)
        if closes:
            return True, (x, cuda.shfl_xor_sync(WHOLE_WARP, x, 1))
        return False, (zero, zero)

    return sums_of


RULES: dict[str, Callable[..., NormRule]] = {"lamb": lamb, "novograd": novograd}


@lru_cache
def phases(routine: Routine, dtypes: tuple, choices: tuple, factor: str | None) -> SimpleNamespace:
    """The two phases of a step for one chunk, and what they are put together from.

    Args:
        routine, dtypes, choices: as for `refopt.gpu.elementwise.merged_update`.
        factor: the dtype of ``grad_factor``; None if the step is given neither factor nor flag.
    """
    real: Any = arithmetic(dtypes[0])
    present = frozenset(name for name, dtype in zip(routine.slot_names, dtypes, strict=True) if dtype)
    rule = RULES[routine.name](real, present, **dict(choices))
    count = 2 if len(rule.reads) > 1 else 1
    found, factor_of = gate(real, factor)
    addresses_of = unroll.gather("addresses[{k}, tensor]", "addresses, tensor", len(routine.slots))
    hypers_of = unroll.gather("hyper[{k}, tensor]", "hyper, tensor", len(routine.hypers))
    numbers_of = unroll.gather("numbers[{k}, tensor]", "numbers, tensor", len(rule.numbers))
    scalars_of, leave = _scalars(routine, real), _leave(routine, rule, real)
    tile = tile_sums(norm_row(routine, dtypes, rule, count), count, real)
    sums_of, close = chunk_sums(tile, real, (0, count)), rule.close
    row = either(update_row(routine, dtypes, rule), ROW)

    @device_function
    def rescaled(h, factor):
        return (*h[:-1], h[-1] * factor)

    @device_function
    def norms(c, addresses, chunks, nodes, counters, sums, numbers, hyper, factor_at):
        """Tile sums of the chunk; in the block that is the last of its tensor, the tensor's numbers and scalars."""
        let_next_launch_begin()
        tensor = chunks[c, TENSOR]
        at = addresses_of(addresses, tensor)
        k = rescaled(hypers_of(hyper, tensor), factor_of(factor_at)) + scalars_of(at)
        closes, squares = sums_of(c, chunks, nodes, counters, sums, at, k)
        if closes and cuda.threadIdx.x == 0:
            # All blocks of the tensor have read its scalars by now. What is needed here only is read here only, so
            # that it takes no register of those who do not come here.
            k = hypers_of(hyper, tensor) + scalars_of(at)
            leave(tensor, at, close(squares, k), numbers)

    @device_function
    def update(c, offset, length, addresses, chunks, numbers, hyper, factor_at, found_at):
        """Update a part of the chunk, a row to a warp."""
        tensor, start = chunks[c, TENSOR], chunks[c, START] + offset
        stop = min(chunks[c, STOP], start + length)
        h = hypers_of(hyper, tensor)
        # Up to here nothing was read that the launch before this one writes; what follows needs its numbers.
        wait_for_previous_launch()
        if found(found_at):
            return
        k = rescaled(h, factor_of(factor_at)) + numbers_of(numbers, tensor)
        for first in of_warp(start, stop, ROW):
            row(addresses_of(addresses, tensor), first, stop, chunks[c, ALIGNED], k)

    return SimpleNamespace(found=found, norms=norms, update=update, numbers=rule.numbers)


def _scalars(routine: Routine, real: Any) -> Callable:
    load = getattr(vectors, f"load_{np.dtype(real).name}")
    first = routine.slot_names.index(routine.scalars[0]) if routine.scalars else 0
    return unroll.gather(f"load(at[{first} + {{k}}])", "at", len(routine.scalars), load=load)


def _leave(routine: Routine, rule: NormRule, real: Any) -> Callable:
    """Write what a tensor's closing block has come to."""
    lines = [f"numbers[{n}, tensor] = closed[{n}]" for n in range(len(rule.numbers))]
    for n, name in enumerate(routine.scalars, len(rule.numbers)):
        lines.append(f"store(at[{routine.slot_names.index(name)}], closed[{n}])")
    store = getattr(vectors, f"store_{np.dtype(real).name}")
    return unroll.function("leave", "tensor, at, closed, numbers", lines, store=store)
