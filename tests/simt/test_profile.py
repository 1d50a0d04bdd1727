"""Sectors of global memory, bank conflicts of shared memory, and divergence, by line."""

import re

import numpy as np
import pytest

from refopt import simt
from refopt.simt import cuda


@cuda.jit
def copy(x, y, first, step):
    i = cuda.grid(1)
    if first + i * step < x.size:
        y[i] = x[first + i * step]


def profiled(kernel, grid, block, *args, **options):
    with simt.observe(profile=True, **options) as log:
        kernel[grid, block](*args)
    return log.profile


def costs(profile, kind):
    """Requests and sectors of the accesses of a kind."""
    rows = [row for row in profile.sectors if row.kind == kind]
    return sum(row.requests for row in rows), sum(row.sectors for row in rows)


# The figures that NVIDIA states: 4, 8 and 16 sectors of a request for 32 lanes with 4, 8 and 16 bytes side by side.
@pytest.mark.parametrize(("dtype", "first", "step", "sectors"), [
    (np.float32, 0, 1, 4), (np.float32, 8, 1, 4), (np.float32, 1, 1, 5), (np.float32, 0, 2, 8), (np.float32, 0, 8, 32),
    (np.float32, 0, 32, 32), (np.float32, 0, 0, 1), (np.float32, 31, -1, 4), (np.uint8, 0, 1, 1), (np.float16, 0, 1, 2),
    (np.float64, 0, 1, 8)])
@pytest.mark.parametrize("options", [{}, {"schedule": "random"}, {"watch": True}])
def test_sectors_of_a_warp(dtype, first, step, sectors, options):
    x, y = cuda.to_device(np.zeros(1024, dtype)), cuda.device_array(32, dtype)
    profile = profiled(copy, 1, 32, x, y, first, step, **options)
    assert costs(profile, "load") == (1, sectors)
    [load] = [row for row in profile.sectors if row.kind == "load"]
    assert (load.array, load.lanes, load.per_request) == ("x", 32, sectors)
    distinct = len({first + i * step for i in range(32)}) * np.dtype(dtype).itemsize
    assert load.efficiency == -(-distinct // 32) / sectors


# As Numba compiles them: PTX of `copy` has two loads of half the bytes, and as many of a byte as a record has.
@pytest.mark.parametrize(("dtype", "requests", "sectors"), [
    (np.complex64, 2, 8), (np.complex128, 2, 16), (np.dtype([("a", np.float32), ("b", np.int16)]), 6, 6)])
def test_complex_numbers_and_records_are_several_accesses(dtype, requests, sectors):
    x, y = cuda.to_device(np.zeros(32, dtype)), cuda.device_array(32, dtype)
    assert costs(profiled(copy, 1, 32, x, y, 0, 1), "load") == (requests, requests * sectors)


def test_warps_blocks_and_launches_add_up():
    x, y = cuda.to_device(np.zeros(100, np.float32)), cuda.device_array(256, np.float32)
    with simt.observe(profile=True) as log:
        copy[2, 48](x, y, 0, 1)  # warps of 32, 16, 32 and 16 lanes
        assert costs(log.profile, "load") == (4, 4 + 2 + 4 + 2)
        copy[4, 32](x, y, 0, 1)  # the last has 4
    assert costs(log.profile, "load") == (4 + 4, 4 + 2 + 4 + 2 + 4 + 4 + 4 + 1)
    assert costs(log.profile, "store") == costs(log.profile, "load")
    profile = profiled(copy, 2, 544, x, cuda.device_array(1088, np.float32), 0, 1)
    assert {row.executions for row in profile.lines if row.active == 1} == {2 * 17}


@cuda.jit
def reversed_in_shared_memory(x, y):
    tile = cuda.shared.array(64, np.float32)
    tile[2 * cuda.threadIdx.x] = x[cuda.threadIdx.x]
    y[cuda.threadIdx.x] = tile[0]


def test_a_profile_is_shown_in_tables():
    """With the names of columns; text is aligned to the left, numbers to the right."""
    x, y = (cuda.to_device(np.zeros(32, np.float32)) for _ in range(2))
    lines = str(profiled(reversed_in_shared_memory, 1, 32, x, y)).splitlines()
    rows = [re.split(" {2,}", line) for line in lines]
    copied = "tile[2 * cuda.threadIdx.x] = x[cuda.threadIdx.x]"
    assert rows[0] == ["global memory", "array", "requests", "sectors", "per request", "efficiency", "source"]
    assert rows[1][1:] == ["load", "x", "1", "4", "4.00", "1.00", copied] and "" in lines
    assert rows[4] == ["shared memory", "array", "requests", "wavefronts", "conflicts", "source"]
    assert rows[5][1:] == ["store", "shared array tile", "1", "2", "1", copied]
    assert rows[8] == ["lines", "warps", "active", "divergent", "source"] and rows[10][1:] == ["1", "1.00", "0", copied]
    assert lines[1].index("4.00") + 4 == lines[0].index("per request") + len("per request")
    assert lines[5].index("shared array") == lines[4].index("array")


@cuda.jit
def loops_on_a_line(x, y):
    t = cuda.threadIdx.x
    for i in range(3):
        n = 0
        while n < (t + i) % 3: n += x[t]  # noqa: E701
        for _ in range(t % 2): n += x[t]  # noqa: E701
        y[t] = n


@cuda.jit
def long_condition(x, y):
    t = cuda.threadIdx.x
    n = 0
    while (
        n < 4
        and x[n]
    ):
        n += 1
        if (n + t) % 2:
            continue
        n += 1
    y[t] = n


def test_loops_on_one_line():
    """The iterations of each pass of the outer loop count apart: at most two, and one."""
    x, y = cuda.to_device(np.ones(33, np.int64)), cuda.device_array(33, np.int64)
    first, second = [row for row in profiled(loops_on_a_line, 1, 32, x, y).sectors if row.kind == "load"]
    assert (first.requests, second.requests) == (3 * 2, 3)
    assert (first.lanes, second.lanes) == (sum((t + i) % 3 for t in range(32) for i in range(3)), 3 * 16)


def test_a_condition_on_several_lines():
    """It is tested first before the loop, then at its end or, after `continue`, at its start: with the others."""
    x, y = cuda.to_device(np.ones(32, np.int64)), cuda.device_array(32, np.int64)
    [load] = [row for row in profiled(long_condition, 1, 32, x, y).sectors if row.kind == "load"]
    # Even lanes: 0, 1, 3, 4. Odd lanes: 0, 2, 4. The last test of `x[n]` is that with n below 4.
    assert (load.requests, load.lanes) == (3, 16 * 3 + 16 * 2)


def test_a_statement_of_several_lines_is_no_divergence():
    @cuda.jit
    def kernel(x, y):
        t = cuda.threadIdx.x
        y[
            t
        ] = max(
            x[t], x[t + 1])

    profile = profiled(kernel, 1, 32, cuda.to_device(np.zeros(33)), cuda.device_array(32))
    assert {(row.active, row.divergent) for row in profile.lines} == {(1.0, 0)}


@pytest.mark.parametrize(("watch", "dtype", "conflicts", "ways"), [
    (False, np.float32, 31, 32.0), (True, np.float32, 31, 32.0), (False, np.float64, 30, 16.0)])
def test_local_arrays_cost_nothing_and_shared_ones_wavefronts(watch, dtype, conflicts, ways):
    @cuda.jit
    def kernel(x, y):
        t = cuda.threadIdx.x
        own, part = cuda.local.array(1, dtype), cuda.shared.array((32, 32), dtype)
        own[0] = x[t]
        part[t, 0] = own[0]
        cuda.syncthreads()
        y[t] = part[31 - t, 0]

    x, y = (cuda.to_device(np.zeros(32, np.float32)) for _ in range(2))
    profile = profiled(kernel, 1, 32, x, y, watch=watch)
    rows = [(row.kind, row.requests, row.wavefronts, row.conflicts, row.ways) for row in profile.banks]
    assert rows == [(kind, 1, 32, conflicts, ways) for kind in ("store", "load")]
    assert [(row.kind, row.array) for row in profile.sectors] == [("load", "x"), ("store", "y")]


@pytest.mark.filterwarnings("ignore::refopt.simt.UntypedWarning")  # as this one has no source to be read
def test_functions_of_no_module_are_profiled():
    """Those that are made from text, as of merged kernels, have globals without a name."""
    scope = {"__name__": None}
    exec("def twice(x):\n    return x + x\n", scope)
    cuda.jit(device=True)(scope["twice"])
    twice = scope["twice"]

    @cuda.jit
    def kernel(x, y):
        y[cuda.grid(1)] = twice(x[cuda.grid(1)])

    x, y = (cuda.to_device(np.ones(32, np.float32)) for _ in range(2))
    assert costs(profiled(kernel, 1, 32, x, y), "load") == (1, 4)
    assert y.copy_to_host().tolist() == [2] * 32
