"""LARS with momentum on the GPU: a ladder of four ways to run it, all with the same bits.

1. `separate`: one cooperative launch per tensor.
2. `cooperative`: one launch for all tensors, with a barrier across the grid.
3. `two_launches`: the barrier is the end of the first launch.
4. `carried_norm`: two launches, and the norm of p comes from the step before.
"""

from refopt import catalog
from refopt.cpu.reduce import TILE
from refopt.gpu.lars.carried_norm import lars_grad_norm, lars_update_and_norm
from refopt.gpu.lars.cooperative import lars_cooperative
from refopt.gpu.lars.phases import NORM_BOUNDS, UPDATE_BOUNDS
from refopt.gpu.lars.rule import Signature
from refopt.gpu.lars.separate import lars_separate
from refopt.gpu.lars.two_launches import lars_norms, lars_update
from refopt.gpu.launches import Launches
from refopt.gpu.plan import Group

NORM_BLOCK, UPDATE_BLOCK = NORM_BOUNDS[0], UPDATE_BOUNDS[0]
ADAPT = catalog.LARS_MOMENTUM.choices["adapt"]


def launches(group: Group, form: str, *, adapt: str, norm_of: str) -> Launches:
    """The launches of a group in one of the four forms."""
    signature = Signature(group.dtypes, norm_of, group.factor_dtype if any(group.gate) else None)
    machine = group.machine
    mode = ADAPT.index(adapt)
    if form == "separate":
        return Launches(machine, _separate(group, signature, mode))
    sums, rates = group.zeros(2, group.slots), group.zeros(2, len(group.members))
    tables, hyper = (group.addresses, group.chunks), group.hypers.values
    norm_args = *tables, group.nodes, group.counters, sums, rates, hyper, mode, *group.gate
    chunks, chunk_tiles = group.chunk_count, group.chunk_tiles
    if form == "cooperative":
        kernel = lars_cooperative(signature, chunk_tiles)
        grid = min(machine.resident(kernel, NORM_BLOCK, norm_args), chunks)
        return Launches(machine, [machine.prepare(kernel, grid, NORM_BLOCK, norm_args, "cooperative")])
    if form == "two_launches":
        norms = machine.prepare(lars_norms(signature), chunks, NORM_BLOCK, norm_args)
        kernel, tiles = lars_update(signature, chunk_tiles), chunks * chunk_tiles
        update = machine.prepare(kernel, tiles, UPDATE_BLOCK, (*tables, hyper, rates, *group.gate), "overlapping")
        return Launches(machine, [norms, update])
    # Even if the first step is skipped, the next one finds the norm of p: no flag for the launch that takes it.
    norms = machine.prepare(lars_norms(signature), chunks, NORM_BLOCK, (*norm_args[:-1], 0))
    grad_norm = machine.prepare(lars_grad_norm(signature), chunks, NORM_BLOCK, norm_args)
    kernel, pairs = lars_update_and_norm(signature, chunk_tiles), chunks * chunk_tiles // 2
    update = machine.prepare(kernel, pairs, UPDATE_BLOCK, (*tables, hyper, rates, sums, *group.gate), "overlapping")
    return Launches(machine, [grad_norm, update], first=[norms, update])


def _separate(group: Group, signature: Signature, mode: int) -> list:
    kernel = lars_separate(signature)
    tiles = [-(-size // TILE) for size in group.sizes]
    sums = group.zeros(2, 2 * max(tiles) + 8)
    made = []
    for tensor, column in enumerate(zip(*group.arrays, strict=True)):
        addresses = [array.address if array else 0 for array in column]
        args = (
            *addresses, group.sizes[tensor], int(group.aligned[tensor]), tensor,
            sums, group.hypers.values, mode, *group.gate,
        )  # fmt: skip
        grid = min(group.machine.resident(kernel, NORM_BLOCK, args), -(-tiles[tensor] // (NORM_BLOCK // 32)))
        made.append(group.machine.prepare(kernel, grid, NORM_BLOCK, args, "cooperative"))
    return made
