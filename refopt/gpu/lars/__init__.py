"""LARS with momentum on the GPU: a ladder of four forms, all with the same bits.

1. `separate`: one cooperative launch per tensor.
2. `cooperative`: one launch for all tensors, with a barrier across the grid.
3. ``two_launches``: the end of the first launch is the barrier, as in `refopt.gpu.norms`.
4. `carried_norm`: two launches, with the norm of p from the previous step.
"""

from typing import Any

from refopt.cpu.reduce import TILE
from refopt.gpu import norms
from refopt.gpu.group import Group
from refopt.gpu.lars.carried_norm import UPDATE_AND_NORM_BOUNDS, lars_grad_norm, lars_update_and_norm
from refopt.gpu.lars.cooperative import lars_cooperative
from refopt.gpu.lars.separate import lars_separate
from refopt.gpu.launches import Launches

NORM_BLOCK, UPDATE_BLOCK = norms.NORM_BOUNDS[0], UPDATE_AND_NORM_BOUNDS[0]


def launches(group: Group, form: str, **choices: Any) -> Launches:
    """The launches of a group in one of the four forms."""
    if form == "two_launches":
        return norms.launches(group, form, **choices)
    machine, gate, tiles = group.machine, group.gate, group.chunk_tiles
    asked, tables, scratch = norms.arguments(group, choices)
    if form == "separate":
        return Launches(machine, _separate(group, asked))
    args = *tables, group.nodes, group.counters, *scratch
    if form == "cooperative":
        kernel = lars_cooperative(*asked, tiles)
        grid = machine.resident(kernel, NORM_BLOCK, (*args, *gate), group.chunk_count)
        return Launches(machine, [machine.prepare(kernel, grid, NORM_BLOCK, (*args, *gate), "cooperative")])
    # The first launch takes the norm of p without the flag, so that it exists even if the first step is skipped.
    both = machine.prepare(norms.norms_kernel(*asked), group.chunk_count, NORM_BLOCK, (*args, 0, gate[0], 0))
    of_grads = machine.prepare(lars_grad_norm(*asked), group.chunk_count, NORM_BLOCK, (*args, *gate))
    kernel, pairs = lars_update_and_norm(*asked, tiles), group.chunk_count * tiles // 2
    update = machine.prepare(kernel, pairs, UPDATE_BLOCK, (*tables, *scratch, *gate), "overlapping")
    return Launches(machine, [of_grads, update], first=[both, update])


def _separate(group: Group, asked: tuple) -> list:
    kernel = lars_separate(*asked)
    tiles = [-(-size // TILE) for size in group.sizes]
    sums = group.zeros(2, 2 * max(tiles) + 8)
    steps = []
    for tensor, addresses in enumerate(group.table.host.T.tolist()):
        size = group.sizes[tensor]
        args = *addresses, tensor, size, int(group.aligned[tensor]), sums, group.hypers.values, *group.gate
        grid = group.machine.resident(kernel, NORM_BLOCK, args, -(-tiles[tensor] // (NORM_BLOCK // 32)))
        steps.append(group.machine.prepare(kernel, grid, NORM_BLOCK, args, "cooperative"))
    return steps
