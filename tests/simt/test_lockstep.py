"""Accesses are put together by warps as another model does it, which keeps the lanes in step."""

from random import Random

import numpy as np
import pytest

from refopt import simt
from refopt.simt import cuda
from simt.lockstep import LANES, SIZE, Warp, Writer


def profiled(source, x):
    scope = {}
    exec(compile(source, "<kernel>", "exec"), scope)
    called = scope["kernel"]
    body = simt.ptx_twin("int64")(lambda *args: called(*args) or 0)  # it has no source that can be read

    @cuda.jit
    def start(x, y):
        t = cuda.threadIdx.x
        y[t] = body(x, t, t % 5)

    with simt.observe(profile=True) as log:
        start[1, LANES](cuda.to_device(x), cuda.device_array(LANES, np.int64))
    return log.profile


def compare(seed):
    """What the executor and the model have of eight programs."""
    for part in range(8):
        source = Writer(Random(seed + part)).source()
        x = Random(seed).choices(range(50), k=SIZE)
        warp = Warp(source, x)
        warp.run()
        profile = profiled(source, np.array(x, np.int64))
        lines = {row.line: row[3:] for row in profile.lines if row.filename == "<kernel>"}
        expected = {
            line: (len(runs), sum(run.lanes for run in runs), sum(len(run.following) > 1 for run in runs))
            for line, runs in warp.lines.items()}
        assert lines == expected, source
        rows = [row for row in profile.sectors if row.filename == "<kernel>"]
        assert {row.line: (row.requests, row.lanes, row.sectors) for row in rows} == {
            line: (len(runs), sum(map(len, runs)), sum(len({index // 4 for index in run}) for run in runs))
            for line, runs in warp.loads.items()
        }, source


@pytest.mark.parametrize("seed", [
    *range(60, 108, 8), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(108, 156, 8))])
def test_random_programs(seed):
    compare(seed)


def test_a_branch_that_ends_in_a_break():
    """Lanes that come to it in several rounds of a loop pass it together, behind the loop; in the model they do not."""
    with pytest.raises(AssertionError, match="break"):
        compare(182)
