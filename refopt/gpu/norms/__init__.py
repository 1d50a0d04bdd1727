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

    def merged(addresses, chunks, numbers, hyper, first_chunk, factor_at, found_at):
        tile = cuda.gridDim.x - 1 - cuda.blockIdx.x
        c, offset = first_chunk + tile // chunk_tiles, tile % chunk_tiles * TILE
        do.update(c, offset, TILE, addresses, chunks, numbers, hyper, factor_at, found_at)

    merged.__name__ = f"{routine.merged_name}_update"
    return kernel(UPDATE_BOUNDS)(merged)


def launches(group: Group, form: str, **choices: Any) -> Launches:
    """The two launches of a group, or two for each tensor."""
    machine, routine, tiles = group.machine, group.routine, group.chunk_tiles
    asked = routine, group.dtypes, tuple(sorted(choices.items())), group.factor_dtype if any(group.gate) else None
    norms, update = norms_kernel(*asked), update_kernel(*asked, tiles)
    sums, numbers = group.zeros(2, max(1, group.slots)), group.zeros(len(phases(*asked).numbers), len(group.members))
    pieces = [(0, group.chunk_count)] if routine.forms[form].merged else group.chunks_of_tensors()
    steps: list[Callable[[Any], None]] = []
    for first, chunks in pieces:
        tables, rest = (group.addresses, group.chunks), (numbers, group.hypers.values, first, *group.gate)
        args = *tables, group.nodes, group.counters, sums, *rest
        steps.append(machine.prepare(norms, chunks, NORM_BOUNDS[0], args))
        steps.append(machine.prepare(update, chunks * tiles, UPDATE_BOUNDS[0], (*tables, *rest), "overlapping"))
    return Launches(machine, steps)
