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


@defect(simt.DataRace, floats, block=64)
def reduction_without_a_barrier(x):
    part = cuda.shared.array(64, np.float32)
    t = cuda.threadIdx.x
    part[t] = x[t]
    cuda.syncthreads()
    step = 32
    while step:
        if t < step:
            part[t] += part[t + step]
        step //= 2
    if t == 0:
        x[0] = part[0]


@defect(simt.DataRace, lambda: ints(33), block=32)
def scan_in_place(x):
    t = cuda.threadIdx.x
    x[t + 1] += x[t] + 1


@defect(simt.DataRace, ints, block=64)
def tile_overwritten_too_early(x):
    tile = cuda.shared.array(64, np.int32)
    t = cuda.threadIdx.x
    for k in range(2):
        tile[t] = x[t] + k
        cuda.syncthreads()
        x[t] = tile[63 - t]


@defect(simt.DataRace, ints)
def vote_instead_of_syncwarp(y):
    s = cuda.shared.array(32, np.int32)
    t = cuda.threadIdx.x
    s[t] = t
    cuda.any_sync(FULL, 1)
    y[t] = s[31 - t]


@defect(simt.DataRace, ints)
def shuffle_instead_of_syncwarp(y):
    s = cuda.shared.array(32, np.int32)
    t = cuda.threadIdx.x
    s[t] = t
    value = cuda.shfl_xor_sync(FULL, t, 1)
    y[t] = s[31 - t] + value


@defect(simt.DataRace, ints)
def match_instead_of_syncwarp(y):
    s = cuda.shared.array(32, np.int32)
    t = cuda.threadIdx.x
    s[t] = t
    cuda.match_any_sync(FULL, 1)
    y[t] = s[31 - t]


@defect(simt.DataRace, ints)
def syncwarp_of_half_the_lanes(y):
    s = cuda.shared.array(32, np.int32)
    t = cuda.threadIdx.x
    s[t] = t
    cuda.syncwarp(0xFFFF if t < 16 else 0xFFFF0000)
    y[t] = s[31 - t]


@defect(simt.DataRace, ints, block=64)
def syncwarp_between_warps(y):
    s = cuda.shared.array(64, np.int32)
    t = cuda.threadIdx.x
    s[t] = t
    cuda.syncwarp()
    y[t] = s[63 - t]


@defect(simt.DataRace, ints)
def values_that_differ(x):
    x[0] = cuda.threadIdx.x


@defect(simt.DataRace, ints)
def histogram_without_atomics(x):
    x[cuda.threadIdx.x % 4] += 1


@defect(simt.DataRace, ints)
def reader_beside_writers_of_one_value(x):
    if cuda.threadIdx.x:
        x[0] = 1
    else:
        x[1] = x[0]


@defect(simt.DataRace, ints)
def atomics_beside_a_plain_store(x):
    if cuda.threadIdx.x == 5:
        x[0] = 3
    else:
        cuda.atomic.add(x, 0, 1)


@defect(simt.DataRace, floats, block=64)
def scratch_of_a_sum_used_again_too_early(x):
    part = cuda.shared.array(2, np.float32)
    t = cuda.threadIdx.x
    value = x[t]
    for _ in range(2):
        for step in (16, 8, 4, 2, 1):
            value += cuda.shfl_xor_sync(FULL, value, step)
        if t % 32 == 0:
            part[t // 32] = value
        cuda.syncthreads()
        value = part[0] + part[1]
    x[t] = value


@defect(simt.DataRace, floats, block=64)
def halves_of_dynamic_memory_that_overlap(x):
    memory = cuda.shared.array(0, np.float32)
    t = cuda.threadIdx.x
    first, second = memory[:64], memory[63:]
    first[t] = x[t]
    second[t] = 2 * t


# Races between blocks and streams.


@defect(simt.DataRace, ints, grid=2, block=1)
def neighbour_of_another_block(x):
    i = cuda.grid(1)
    x[i] = x[(i + 1) % 2] + 1


@defect(simt.DataRace, ints, ints, ints, grid=4, block=2)
def last_block_without_a_fence(part, count, out):
    if cuda.threadIdx.x == 0:
        part[cuda.blockIdx.x] = 1
        if cuda.atomic.add(count, 0, 1) == cuda.gridDim.x - 1:
            for i in range(4):
                out[0] += part[i]


@defect(simt.DataRace, ints, ints, ints, grid=3, block=4)
def last_block_without_a_barrier(part, count, out):
    last = cuda.shared.array(1, np.int32)
    t = cuda.threadIdx.x
    part[cuda.grid(1)] = t
    if t == 0:
        cuda.threadfence()
        last[0] = cuda.atomic.add(count, 0, 1) == cuda.gridDim.x - 1
    cuda.syncthreads()
    if last[0]:
        out[t] = part[t + 1] + part[11 - t]


@defect(simt.DataRace, ints, ints, grid=3, block=1)
def lock_without_a_fence_at_its_end(lock, total):
    cuda.cg.this_grid()
    while cuda.atomic.cas(lock, 0, 0, 1):
        pass
    cuda.threadfence()
    total[0] += 1
    cuda.atomic.exch(lock, 0, 0)


@defect(simt.DataRace, ints, ints, grid=2, block=1)
def message_with_a_fence_of_the_block(x, flag):
    cuda.cg.this_grid()
    if cuda.blockIdx.x:
        x[0] = 1
        cuda.threadfence_block()
        cuda.atomic.exch(flag, 0, 1)
    else:
        while cuda.atomic.add(flag, 0, 0) == 0:
            pass
        cuda.threadfence()
        x[1] = x[0]


@defect(simt.DataRace, ints, grid=2, block=1)
def barrier_of_the_block_for_a_grid(x):
    cuda.cg.this_grid()
    x[cuda.blockIdx.x] = 1
    cuda.syncthreads()
    x[2 + cuda.blockIdx.x] = x[1 - cuda.blockIdx.x]


# Records.


@defect(simt.DataRace, lambda: np.zeros(4, PAIR))
def record_field_written_by_all(x):
    x[0]["a"] = cuda.threadIdx.x


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


# Memory that nobody wrote.


@defect(simt.UninitializedRead, device)
def accumulator_that_is_not_zeroed(x):
    x[cuda.threadIdx.x] += 1


@defect(simt.UninitializedRead, device)
def atomic_on_fresh_memory(x):
    cuda.atomic.add(x, 0, 1)


@defect(simt.UninitializedRead, device, ints)
def fresh_memory_by_address(x, y):
    if cuda.threadIdx.x == 0:
        x[:32] = 1
        y[0] = x[40]


@defect(simt.UninitializedRead, floats)
def local_array_that_is_not_zeroed(x):
    acc = cuda.local.array(4, np.float32)
    for i in range(4):
        acc[i] += x[i]
    x[cuda.threadIdx.x] = acc[0]


@defect(simt.UninitializedRead, floats)
def local_array_that_is_half_filled(x):
    acc = cuda.local.array(4, np.float32)
    for i in range(3):
        acc[i] = i
    x[cuda.threadIdx.x] = acc[0] + acc[3]


@defect(simt.UninitializedRead, floats, block=30)
def shared_tile_beyond_the_block(x):
    part = cuda.shared.array(32, np.float32)
    part[cuda.threadIdx.x] = 1
    cuda.syncthreads()
    x[cuda.threadIdx.x] = part[31 - cuda.threadIdx.x]


# Warps.


@defect(simt.UninitializedRead, floats)
def sum_with_lanes_that_have_exited(x):
    t = cuda.threadIdx.x
    if t >= 20:
        return
    value = x[t]
    for delta in (16, 8, 4, 2, 1):
        value += cuda.shfl_down_sync(FULL, value, delta)
    if t == 0:
        x[0] = value


@defect(simt.UninitializedRead, floats)
def sum_with_lanes_outside_the_mask(x):
    t = cuda.threadIdx.x
    value = x[t]
    if t < 16:
        for delta in (16, 8, 4, 2, 1):
            value += cuda.shfl_down_sync(0xFFFF, value, delta)
        if t == 0:
            x[0] = value


@defect(simt.UninitializedRead, ints)
def broadcast_of_a_lane_that_has_exited(x):
    t = cuda.threadIdx.x
    if t == 0:
        return
    x[t] = cuda.shfl_sync(FULL, t, 0) * 2


@defect(simt.UninitializedRead, floats, block=24)
def short_warp_summed_as_a_full_one(x):
    value = x[cuda.threadIdx.x]
    for lanes in (16, 8, 4, 2, 1):
        value += cuda.shfl_xor_sync(FULL, value, lanes)
    cuda.atomic.add(x, 40, value)


@defect(simt.BarrierDivergence, ints)
def shuffles_of_two_branches(x):
    t = cuda.threadIdx.x
    if t < 16:
        value = cuda.shfl_xor_sync(FULL, t, 1)
    else:
        value = cuda.shfl_xor_sync(FULL, t, 1)
    x[t] = value


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
def votes_of_two_branches(x):
    t = cuda.threadIdx.x
    if t < 16:
        x[t] = cuda.ballot_sync(FULL, t > 3)
    else:
        x[t] = cuda.ballot_sync(FULL, t > 20)


@defect(simt.UninitializedRead, ints)
def maximum_with_lanes_outside_the_mask(x):
    t = cuda.threadIdx.x
    best = x[t]
    if t < 16:
        for step in (16, 8, 4, 2, 1):
            other = cuda.shfl_down_sync(0xFFFF, best, step)
            if other > best:
                best = other
    if t == 0:
        x[0] = best


@defect(simt.BarrierDivergence, ints)
def vote_that_a_lane_misses(x):
    if cuda.threadIdx.x != 3:
        cuda.any_sync(FULL, 1)
    cuda.syncthreads()


@defect(simt.LaunchError, ints)
def mask_without_the_caller(x):
    cuda.syncwarp(0xFFFF)


# Barriers.


@defect(simt.BarrierDivergence, ints)
def barrier_in_a_branch(x):
    t = cuda.threadIdx.x
    if t < 16:
        x[t] = 1
        cuda.syncthreads()
    x[t] = 2


@defect(simt.BarrierDivergence, ints)
def two_barriers_in_one_warp(x):
    if cuda.threadIdx.x % 2:
        cuda.syncthreads()
    else:
        cuda.syncthreads()


@defect(simt.BarrierDivergence, ints)
def helper_with_a_barrier_in_two_branches(x):
    def wait():
        cuda.syncthreads()

    if cuda.threadIdx.x % 2:
        wait()
    else:
        wait()


@defect(simt.BarrierDivergence, ints)
def loop_of_another_length(x):
    for _ in range(cuda.threadIdx.x // 16 + 1):
        cuda.syncthreads()


@defect(simt.BarrierDivergence, ints, grid=2)
def grid_barrier_that_a_thread_misses(x):
    grid = cuda.cg.this_grid()
    if cuda.blockIdx.x == 1 and cuda.threadIdx.x == 0:
        return  # others may, but the blocks meet in their first threads
    grid.sync()


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


@defect(simt.BarrierDivergence, floats, block=64)
def barrier_within_a_guard(x):
    """It completes on GPUs of today, as the others exit; by CUDA's own rules it must not be reached by some alone."""
    part = cuda.shared.array(64, np.float32)
    i = cuda.grid(1)
    if i < 5:
        part[i] = x[i]
        cuda.syncthreads()
        x[i] = part[4 - i]


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


@defect(simt.OutOfBounds, ints, grid=3)
def no_guard_at_the_end(x):
    x[cuda.grid(1)] = 1


@defect(simt.OutOfBounds, ints, strict="negative-index")
def left_neighbour_of_the_first(x):
    t = cuda.threadIdx.x
    value = x[t - 1]
    cuda.syncthreads()
    x[t] = value


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
    monkeypatch.setattr(simt.spins, "UNCHANGED", 1_000)
    seconds, simt.limits.seconds = simt.limits.seconds, 0.1 if error is simt.TimeLimitExceeded else 10
    watched = simt.observe(watch=True, schedule=schedule, seed=seed, **case.options)
    arguments = case.arguments()
    try:
        with pytest.raises(error) as caught, watched:
            cuda.jit(body)[case.grid, case.block, 0, 1024](*arguments)
    finally:
        simt.limits.seconds = seconds
    lines = [line for *_, line in body.__code__.co_lines() if line]
    assert caught.value.kernel == name and min(lines) <= caught.value.line <= max(lines) + 5


def test_there_are_enough_of_them():
    assert len(defect) >= 40 and len(defect) * len(SCHEDULES) >= 120
