"""The tile tree as warps and blocks compute it, against cpu/reduce.py, bit for bit."""

from functools import cache

import numpy as np
import pytest

from refopt.cpu.reduce import LANES, TILE, tree_sum
from refopt.gpu import tables
from refopt.gpu.kernels import kernel
from refopt.gpu.rows import OFFSETS
from refopt.gpu.tables import ARRIVALS, NODE
from refopt.gpu.target import cuda
from refopt.gpu.tiles import WHOLE_WARP, joiner, lane_tree, lane_tree_2, warp_tree_2

pytestmark = pytest.mark.clause("N6")

REALS = [np.float32, np.float64]
reals = pytest.mark.parametrize("real", REALS)


def launch(machine, made, grid, block, *args):
    """Launch with the very block size that is asked for, on the executor too."""
    if machine.name == "executor":
        made.executor[grid, block](*args)
    else:
        machine.prepare(made, grid, block, args)(machine.stream(0))
    machine.synchronize()


def noise(*shape, real):
    return np.random.default_rng(shape).uniform(0, 1, size=shape).astype(real)


@reals
def test_lane_trees(machine, real):
    """256 lanes, four and four to a thread, in 6 shuffles; two sets of lanes in 7."""

    @kernel()
    def trees(x, y, out):
        t = cuda.threadIdx.x
        s = cuda.local.array((2, 8), real)
        for e in range(8):
            s[0, e], s[1, e] = x[4 * t + OFFSETS[e]], y[4 * t + OFFSETS[e]]
        out[0, t], out[3, t] = lane_tree(s, 0), lane_tree(s, 1)
        out[1, t] = lane_tree_2(s)
        out[2, t] = warp_tree_2(x[t], y[t])

    for seed in range(10):
        x, y = noise(2, LANES + seed, real=real)[:, :LANES]
        out = machine.to_device(np.zeros((4, 32), real))
        launch(machine, trees, 1, 32, machine.to_device(x), machine.to_device(y), out)
        one, two, warp, other = out.copy_to_host()
        assert (one == tree_sum(x)).all() and (two[0::2] == tree_sum(x)).all() and (two[1::2] == tree_sum(y)).all()
        assert (warp[0::2] == tree_sum(x[:32])).all() and (warp[1::2] == tree_sum(y[:32])).all()
        assert (other == tree_sum(y)).all()


@reals
@pytest.mark.parametrize("block", [32, 64, 128])
@pytest.mark.parametrize("count", [1, 2, 31, 32, 33, 500, 1023, 1024])
def test_join(machine, real, block, count):
    """A block joins up to 1024 sums, whatever its size and wherever they begin."""
    join = joiner(real).join

    @kernel()
    def joining(sums, first, count, out):
        x = join(sums, first, count)
        out[cuda.threadIdx.x] = x

    sums = noise(2, 5 + count + 3, real=real)
    out = machine.to_device(np.zeros(block, real))
    launch(machine, joining, 1, block, machine.to_device(sums), 5, count, out)
    got, expected = out.copy_to_host(), tree_sum(sums[:, 5 : 5 + count])
    assert (got[0::2] == expected[0]).all() and (got[1::2] == expected[1]).all()


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
