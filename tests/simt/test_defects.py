"""Kernels with one defect each, of every kind that watching is to find, in three schedules."""

import numpy as np
import pytest

from refopt import simt
from refopt.simt import cuda, memory
from simt.cases import FULL, NESTED, PAIR, SCHEDULES, TABLE, Cases, ints


def floats(n=64):
    return np.ones(n, np.float32)


def device(n=64, dtype=np.float32):
    return cuda.device_array(n, dtype)


defect = Cases()  # the outcome is an error, whatever the schedule


# Races in a block.


@defect(simt.DataRace, ints, block=64)
def tile_overwritten_too_early(x):
    tile = cuda.shared.array(64, np.int32)
    t = cuda.threadIdx.x
    for k in range(2):
        tile[t] = x[t] + k
        cuda.syncthreads()
        x[t] = tile[63 - t]


@defect(simt.DataRace, floats, block=64)
def halves_of_dynamic_memory_that_overlap(x):
    memory = cuda.shared.array(0, np.float32)
    t = cuda.threadIdx.x
    first, second = memory[:64], memory[63:]
    first[t] = x[t]
    second[t] = 2 * t


# Races between blocks and streams.


@defect(simt.DataRace, ints, ints, grid=3, block=1)
def lock_without_a_fence_at_its_end(lock, total):
    cuda.cg.this_grid()
    while cuda.atomic.cas(lock, 0, 0, 1):
        pass
    cuda.threadfence()
    total[0] += 1
    cuda.atomic.exch(lock, 0, 0)


@defect(simt.DataRace, ints, grid=2, block=1)
def barrier_of_the_block_for_a_grid(x):
    cuda.cg.this_grid()
    x[cuda.blockIdx.x] = 1
    cuda.syncthreads()
    x[2 + cuda.blockIdx.x] = x[1 - cuda.blockIdx.x]


# Records.


@defect(simt.DataRace, lambda: np.zeros(4, NESTED))
def field_of_a_record_in_a_record(x):
    x[1]["at"]["y"] = cuda.threadIdx.x


@defect(simt.DataRace, lambda: np.zeros(4, NESTED))
def array_in_a_record(x):
    x[1]["w"][1] = cuda.threadIdx.x


@defect(simt.DataRace, lambda: np.zeros(4, PAIR))
def column_of_records(x):
    x["b"][0] = cuda.threadIdx.x


@defect(simt.DataRace, lambda: np.zeros(32, PAIR))
def whole_record_beside_its_field(x):
    if cuda.threadIdx.x == 0:
        x[1] = x[0]
    if cuda.threadIdx.x == 1:
        x[1]["b"] = 2


@defect(simt.UninitializedRead, ints)
def field_of_a_shared_record(y):
    s = cuda.shared.array(32, PAIR)
    s[cuda.threadIdx.x]["a"] = 1
    cuda.syncthreads()
    y[cuda.threadIdx.x] = s[cuda.threadIdx.x]["b"]


TILES = np.dtype([("a", np.float32), ("m", np.float32, (2, 3))])


@defect(simt.UninitializedRead, ints)
def field_of_two_axes(y):
    y[0] = cuda.shared.array(2, TILES)[1]["m"][1, 2]


# Memory that nobody wrote.


@defect(simt.UninitializedRead, device)
def accumulator_that_is_not_zeroed(x):
    x[cuda.threadIdx.x] += 1


@defect(simt.UninitializedRead, device)
def atomic_on_fresh_memory(x):
    cuda.atomic.add(x, 0, 1)


# Warps.


@defect(simt.BarrierDivergence, ints)
def helper_with_a_shuffle_in_two_branches(x):
    def other(value):
        return cuda.shfl_xor_sync(FULL, value, 1)

    t = cuda.threadIdx.x
    if t < 16:
        x[t] = other(t)
    else:
        x[t] = other(2 * t)


@defect(simt.BarrierDivergence, ints)
def vote_that_a_lane_misses(x):
    if cuda.threadIdx.x != 3:
        cuda.any_sync(FULL, 1)
    cuda.syncthreads()


# Barriers.


@defect(simt.BarrierDivergence, ints)
def helper_with_a_barrier_in_two_branches(x):
    def wait():
        cuda.syncthreads()

    if cuda.threadIdx.x % 2:
        wait()
    else:
        wait()


@defect(simt.BarrierDivergence, ints, grid=2)
def grid_barrier_in_two_places(x):
    grid = cuda.cg.this_grid()
    if cuda.threadIdx.x % 2:
        grid.sync()
    else:
        grid.sync()


@defect(simt.BarrierDivergence, ints, block=64)
def barrier_that_counts_beside_one_that_does_not(x):
    if cuda.threadIdx.x < 32:
        x[cuda.threadIdx.x] = cuda.syncthreads_count(1)
    else:
        cuda.syncthreads()


@defect(simt.BarrierDivergence, ints, block=64)
def barrier_that_a_branch_beside_has_not(x):
    t = cuda.threadIdx.x
    if t < 32:
        x[t] = 1
        cuda.syncthreads()
        x[t] += 1
    else:
        x[t] = 2


@defect(simt.BarrierDivergence, ints, block=64)
def barrier_of_a_grid_stride_loop(x):
    i = cuda.grid(1)
    while i < x.size - 7:
        x[i] = 1
        cuda.syncthreads()
        i += cuda.gridsize(1)


@defect(simt.BarrierDivergence, ints)
def barrier_that_continue_skips(x):
    t = cuda.threadIdx.x
    for i in range(4):
        if (t + i) % 5 == 0:
            continue
        cuda.syncthreads()
    x[t] = 1


@defect(simt.Deadlock, ints)
def spin_for_a_thread_at_a_barrier(flag):
    if cuda.threadIdx.x == 0:
        while cuda.atomic.add(flag, 0, 0) == 0:
            pass
    cuda.syncthreads()
    if cuda.threadIdx.x == 1:
        cuda.atomic.exch(flag, 0, 1)


# Bounds.


@defect(simt.OutOfBounds, lambda: np.zeros((4, 4)), strict="negative-index", block=4)
def row_above_the_first(x):
    t = cuda.threadIdx.x
    x[3, t] = x[t - 1][0]


@defect(simt.OutOfBounds, ints)
def table_that_is_too_short(x):
    x[cuda.threadIdx.x] = TABLE[cuda.threadIdx.x + 1]


# What does not end.


@defect(simt.TimeLimitExceeded, ints)
def spin_on_a_plain_load(flag):
    if cuda.threadIdx.x == 1:
        while flag[0] == 0:
            pass


@defect(simt.Deadlock, ints, grid=2, block=1)
def wait_for_a_block_that_is_not_resident(flag):
    if cuda.blockIdx.x == 0:
        while cuda.atomic.add(flag, 1, 0) == 0:
            pass
    else:
        while cuda.atomic.add(flag, 2, 0) == 0:
            pass


@defect(simt.SimtError, ints)
def address_beyond_the_array(x):
    memory.load(64, np.int32)


@pytest.mark.parametrize(("schedule", "seed"), SCHEDULES, ids=[name for name, _ in SCHEDULES])
@pytest.mark.parametrize("name", defect)
def test_a_defect_is_found(name, schedule, seed, monkeypatch):
    case = defect[name]
    body, error = case.body, case.outcome
    monkeypatch.setattr(simt.machine.spins, "UNCHANGED", 1_000)
    seconds, simt.limits.seconds = simt.limits.seconds, 0.1 if error is simt.TimeLimitExceeded else 10
    try:
        with pytest.raises(error) as caught, simt.observe(watch=True, schedule=schedule, seed=seed, **case.options):
            cuda.jit(body)[case.grid, case.block, 0, 1024](*case.arguments())
    finally:
        simt.limits.seconds = seconds
    lines = [line for *_, line in body.__code__.co_lines() if line]
    assert caught.value.kernel == name and min(lines) <= caught.value.line <= max(lines) + 5
