"""Steps that need norms of whole tensors, in two launches for any number of tensors.

The device functions of `refopt.gpu.rules.NormRule` differ between optimizers; this package has what they share.

How the work is cut. A tensor is cut into **chunks**, one for each block of the first launch, and a chunk into **tiles**
of 1024 elements, which a **warp**, 32 threads issued together, takes one at a time. A tile has four **rows** of 256.
The warp processes a row at once: each of its threads, a **lane**, has eight elements of it. This alone determines the
order of all additions (numerics, N6); the number of blocks or threads changes no bit. `elements` has what a warp does,
`chunks` what a block does.

The first launch sums squares. A warp stores the sum of each of its tiles in memory. Blocks join the sums of a tensor
along a tree: a **node** of the tree counts arrivals, one for each chunk under it, and the last block to arrive joins
the node's sums and continues with the parent. So no block ever waits for another, which might not have started. The
block that joins the topmost node *closes* the tensor: it has the norms, and computes from them the few numbers that the
update needs, such as a learning rate.

The second launch updates. The end of the first is the barrier: all norms are known. It takes the **last tiles first**:
they were read last, so part of them is still in the L2 cache, which the first launch asks to keep them. Its blocks may
start while the first launch drains (**programmatic dependent launch**): meanwhile they look up their part in the
tables, and wait where they need the first launch's results.

**Launch bounds** are the largest number of threads in a block, and the number of blocks that must fit on a
multiprocessor at a time. They decide how its 65,536 registers are divided: 128 per thread for the norms, 72 for an
update. Without bounds the compiler saves registers, and a thread with few registers has few loads in flight. These
bounds were the fastest on an H200.
"""

from collections.abc import Callable
from typing import Any

from refopt.catalog import Routine
from refopt.cpu.reduce import TILE
from refopt.gpu.group import Group
from refopt.gpu.kernels import Kernel, factory, kernel
from refopt.gpu.launches import Launches
from refopt.gpu.norms.chunks import phases
from refopt.gpu.target import cuda

__all__ = ["NORM_BOUNDS", "UPDATE_BOUNDS", "arguments", "launches", "norms_kernel", "update_kernel"]

# Threads per block, and blocks per multiprocessor.
NORM_BOUNDS = 128, 4
UPDATE_BOUNDS = 64, 14


@factory
def norms_kernel(routine: Routine, dtypes: tuple, choices: tuple, factor: str | None) -> Kernel:
    """The first launch, a block for each chunk."""
    do = phases(routine, dtypes, choices, factor)

    def merged(addresses, chunks, nodes, counters, sums, numbers, hyper, first_chunk, factor_at, found_at):
        c = first_chunk + cuda.blockIdx.x
        if not do.found(found_at):
            do.norms(c, addresses, chunks, nodes, counters, sums, numbers, hyper, factor_at)

    merged.__name__ = f"{routine.merged_name}_norms"
    return kernel(NORM_BOUNDS)(merged)


@factory
def update_kernel(routine: Routine, dtypes: tuple, choices: tuple, factor: str | None, chunk_tiles: int) -> Kernel:
    """The second launch, a block for each tile, last tiles first."""
    do = phases(routine, dtypes, choices, factor)

    def merged(addresses, chunks, sums, numbers, hyper, first_chunk, factor_at, found_at):
        tile = cuda.gridDim.x - 1 - cuda.blockIdx.x
        c, offset = first_chunk + tile // chunk_tiles, tile % chunk_tiles * TILE
        do.update(c, offset, TILE, addresses, chunks, sums, numbers, hyper, factor_at, found_at)

    merged.__name__ = f"{routine.merged_name}_update"
    return kernel(UPDATE_BOUNDS)(merged)


def arguments(group: Group, choices: dict[str, Any]) -> tuple[tuple, tuple, tuple]:
    """What determines a group's kernels, the tables that come first in their arguments, and the scratch that follows.

    A launch that takes norms has nodes and counters between these two; first chunk, factor and flag come last.
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
