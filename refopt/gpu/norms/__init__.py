"""Steps that need norms of whole tensors, in two launches for any number of tensors. (docs to come)"""

from collections.abc import Callable
from typing import Any

from refopt.catalog import Routine
from refopt.cpu.reduce import TILE
from refopt.gpu.launches import Launches
from refopt.gpu.norms.chunks import phases
from refopt.gpu.plan import Group
from refopt.gpu.target import Kernel, cuda, factory, kernel

NORM_BOUNDS = 128, 4
UPDATE_BOUNDS = 64, 14


@factory
def norms_kernel(routine: Routine, dtypes: tuple, choices: tuple, factor: str | None) -> Kernel:
    """The first launch, a block to a chunk."""
    do = phases(routine, dtypes, choices, factor)

    def merged(addresses, chunks, nodes, counters, sums, numbers, hyper, first_chunk, factor_at, found_at):
        c = first_chunk + cuda.blockIdx.x
        if not do.found(found_at):
            do.norms(c, addresses, chunks, nodes, counters, sums, numbers, hyper, factor_at)

    merged.__name__ = f"{routine.merged_name}_norms"
    return kernel(NORM_BOUNDS)(merged)


@factory
def update_kernel(routine: Routine, dtypes: tuple, choices: tuple, factor: str | None, chunk_tiles: int) -> Kernel:
    """The second launch, a block to a tile, last tiles first."""
    do = phases(routine, dtypes, choices, factor)

    def merged(addresses, chunks, sums, numbers, hyper, first_chunk, factor_at, found_at):
        tile = cuda.gridDim.x - 1 - cuda.blockIdx.x
        c, offset = first_chunk + tile // chunk_tiles, tile % chunk_tiles * TILE
        do.update(c, offset, TILE, addresses, chunks, sums, numbers, hyper, factor_at, found_at)

    merged.__name__ = f"{routine.merged_name}_update"
    return kernel(UPDATE_BOUNDS)(merged)


def arguments(group: Group, choices: dict[str, Any]) -> tuple[tuple, tuple, tuple]:
    """What says which kernels a group has, the tables that its launches begin with, and the scratch that follows.

    Between the last two come nodes and counters where norms are taken; first chunk, factor and flag end the arguments.
    """
    asked = group.routine, group.dtypes, tuple(sorted(choices.items())), group.factor_dtype if any(group.gate) else None
    sums = group.zeros(2, max(1, group.slots))
    numbers = group.zeros(len(phases(*asked).rule.numbers), len(group.members))
    return asked, (group.addresses, group.chunks), (sums, numbers, group.hypers.values)


def launches(group: Group, form: str, **choices: Any) -> Launches:
    """The two launches of a group, or two for each tensor."""
    machine, routine, tiles = group.machine, group.routine, group.chunk_tiles
    asked, tables, rest = arguments(group, choices)
    norms, update = norms_kernel(*asked), update_kernel(*asked, tiles)
    pieces = [(0, group.chunk_count)] if routine.forms[form].merged else group.chunks_of_tensors()
    steps: list[Callable[[Any], None]] = []
    for first, chunks in pieces:
        args = *rest, first, *group.gate
        norm_args = *tables, group.nodes, group.counters, *args
        steps.append(machine.prepare(norms, chunks, NORM_BOUNDS[0], norm_args))
        steps.append(machine.prepare(update, chunks * tiles, UPDATE_BOUNDS[0], (*tables, *args), "overlapping"))
    return Launches(machine, steps)
