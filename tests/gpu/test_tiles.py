"""The tile tree as warps and blocks compute it, against cpu/reduce.py, bit for bit."""

from functools import cache

import numpy as np
import pytest

from refopt.cpu.reduce import TILE, tree_sum
from refopt.gpu import tables
from refopt.gpu.kernels import kernel
from refopt.gpu.tables import ARRIVALS, NODE
from refopt.gpu.target import cuda
from refopt.gpu.tiles import WHOLE_WARP, joiner

pytestmark = pytest.mark.clause("N6")


def launch(machine, made, grid, block, *args):
    """Launch with the very block size that is asked for, on the executor too."""
    if machine.name == "executor":
        made.executor[grid, block](*args)
    else:
        machine.prepare(made, grid, block, args)(machine.stream(0))
    machine.synchronize()


def noise(*shape, real):
    return np.random.default_rng(shape).uniform(0, 1, size=shape).astype(real)


@cache
def climber(real):
    climb = joiner(real).climb

    @kernel()
    def climbing(chunks, nodes, counters, sums, out, closed):
        node = chunks[cuda.blockIdx.x, NODE]
        closes, x = climb(node, nodes[node, ARRIVALS], nodes, counters, sums)
        if closes:
            y = cuda.shfl_xor_sync(WHOLE_WARP, x, 1)
            if cuda.threadIdx.x == 0:
                out[0], out[1] = x, y
                cuda.atomic.add(closed, 0, 1)

    return climbing


SLOW = [(2, 33), (8, 2), (8, 31), (8, 32), (8, 1023), (8, 3000)]
OFTEN = [(2, 1), (2, 2), (2, 1025), (8, 1), (8, 33), (8, 1024)]
CLIMBS = [*OFTEN, *(pytest.param(*x, marks=pytest.mark.slow) for x in SLOW)]


@pytest.mark.parametrize("real", [np.float32, pytest.param(np.float64, marks=pytest.mark.slow)])
@pytest.mark.parametrize(("chunk_tiles", "count"), CLIMBS)
def test_climb(machine, real, chunk_tiles, count):
    """The last block under each node joins, so that one block of a tensor ends up with its sums, time after time."""
    host = tables.build([count * TILE - 3], [True], chunk_tiles)
    chunks, nodes = machine.to_device(host.chunks), machine.to_device(host.nodes)
    counters = machine.to_device(np.zeros(len(host.nodes), np.uint32))
    for repeat in range(2):
        sums = np.zeros((2, host.slots), real)
        sums[:, :count] = noise(2, count + repeat, real=real)[:, :count]
        out, closed = machine.to_device(np.zeros(2, real)), machine.to_device(np.zeros(1, np.int32))
        args = chunks, nodes, counters, machine.to_device(sums), out, closed
        launch(machine, climber(real), len(host.chunks), 32, *args)
        assert closed.copy_to_host().tolist() == [1]
        assert (out.copy_to_host() == tree_sum(sums[:, :count])).all() and not counters.copy_to_host().any()
