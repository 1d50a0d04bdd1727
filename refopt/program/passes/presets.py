"""Named sequences of passes, in the order that optimizes a step best."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from refopt.checks.arguments import RANKS, chosen, whole
from refopt.program.passes.batches import batch_owners
from refopt.program.passes.cast import optimize_cast
from refopt.program.passes.coalesce import coalesce_gradients
from refopt.program.passes.collectives import fuse_all_reduce, fuse_broadcasts, fuse_reduces
from refopt.program.passes.elements import shard_elements
from refopt.program.passes.fold import fold_casts
from refopt.program.passes.offloading import offload
from refopt.program.passes.optimizer import fuse_optimizer
from refopt.program.passes.place import all_reduce_gradients, on_device
from refopt.program.passes.result import Result, changed
from refopt.program.passes.server import send_to_owners
from refopt.program.passes.sharding import shard
from refopt.program.program import Program

Pass = Callable[[Program], Result]
MERGED: Pass = partial(fuse_optimizer, form="merged")


DATA_PARALLEL: list[Pass] = [coalesce_gradients, fuse_all_reduce, MERGED, optimize_cast, fold_casts]
BY_BUFFER: Pass = partial(fuse_optimizer, form="merged", per_buffer=True)
OF_OWNERS: list[Pass] = [fuse_reduces, BY_BUFFER, partial(fuse_broadcasts, limit=16.0), batch_owners]
PRESETS: dict[str, Callable[[int, int], list[Pass]]] = {
    "data_parallel": lambda rank, ranks: DATA_PARALLEL,
    "sharded": lambda rank, ranks: [
        partial(shard, rank=rank, degree=ranks, rule="greedy", order="reduced"), optimize_cast, fold_casts,
        *OF_OWNERS,
    ],
    "sharded_by_element": lambda rank, ranks: [
        optimize_cast, fold_casts, partial(shard_elements, rank=rank, degree=ranks), *OF_OWNERS,
    ],
    "parameter_server": lambda rank, ranks: [
        partial(send_to_owners, devices=ranks), partial(of_one_rank, rank=rank), MERGED
    ],
    "offloaded": lambda rank, ranks: [*DATA_PARALLEL, partial(offload, nbytes=64 * 2**20, masters=True)],
}


def preset(name: str, rank: int = 0, ranks: int = 1) -> list[Pass]:
    """The passes of a preset, for `refopt.program.passes.pipeline`.

    ======================  ========================================================================================
    ``data_parallel``       every rank does everything: an all-reduce and an average for each group of gradients, and
                            one update, which casts
    ``sharded``             each parameter has an owner: reductions, updates that cast, and broadcasts in buckets, for
                            all owners at once
    ``sharded_by_element``  buckets are cut into equal parts: each rank updates its own elements, between a
                            reduce-scatter of the gradients and an all-gather of the parameters; matrices of Muon
                            have owners
    ``parameter_server``    gradients are sent in blocks to the ranks that update them; for the step of one device
    ``offloaded``           ``data_parallel``, with the states in host memory
    ======================  ========================================================================================

    Args:
        name: one of these.
        rank, ranks: the rank of the resulting program, and how many there are. With several, the step of one device is
            first turned into that of all, by `refopt.program.passes.all_reduce_gradients`. The pipeline raises a
            ValueError if the program is for another number.
    """
    chosen("preset: name", name, PRESETS)
    ranks = whole("preset: ranks", ranks, 1, RANKS)
    rank = whole("preset: rank", rank, 0, ranks - 1)
    first = [partial(of_all_ranks, ranks=ranks)] if name != "parameter_server" else []
    return [*first, *PRESETS[name](rank, ranks)]


def of_all_ranks(program: Program, ranks: int) -> Result:
    """The step of all ranks, if it is that of one device."""
    there = next((op.attrs["ranks"] for op in program.main if "ranks" in op.attrs), 1)
    if there == 1 < ranks:
        return all_reduce_gradients(program, ranks)
    if there != ranks:
        raise ValueError(f"preset: ranks: expected {there}, as the program has, got {ranks}")
    return Result(program, False, ("it already is the step of all ranks",))


def of_one_rank(program: Program, rank: int) -> Result:
    """The part of one rank."""
    return changed(program, on_device(program, rank), (), f"it already is the part of rank {rank}")
