"""Kernels with one defect each, in three schedules, beside those of `benchmarks.defects`."""

import numpy as np
import pytest

from refopt import simt
from refopt.simt import cuda
from simt.cases import FULL, PAIR, SCHEDULES, Cases, ints


def floats(n=64):
    return np.ones(n, np.float32)


def device(n=64, dtype=np.float32):
    return cuda.device_array(n, dtype)


defect = Cases()  # the outcome is an error, whatever the schedule


@defect(simt.DataRace, floats, block=64)
def halves_of_dynamic_memory_that_overlap(x):
    memory = cuda.shared.array(0, np.float32)
    t = cuda.threadIdx.x
    first, second = memory[:64], memory[63:]
    first[t] = x[t]
    second[t] = 2 * t


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


@defect(simt.UninitializedRead, device)
def atomic_on_fresh_memory(x):
    cuda.atomic.add(x, 0, 1)


@defect(simt.BarrierDivergence, ints)
def helper_with_a_shuffle_in_two_branches(x):
    def other(value):
        return cuda.shfl_xor_sync(FULL, value, 1)

    t = cuda.threadIdx.x
    if t < 16:
        x[t] = other(t)
    else:
        x[t] = other(2 * t)


@defect(simt.BarrierDivergence, ints, grid=2)
def grid_barrier_in_two_places(x):
    grid = cuda.cg.this_grid()
    if cuda.threadIdx.x % 2:
        grid.sync()
    else:
        grid.sync()


@defect(simt.Deadlock, ints)
def spin_for_a_thread_at_a_barrier(flag):
    if cuda.threadIdx.x == 0:
        while cuda.atomic.add(flag, 0, 0) == 0:
            pass
    cuda.syncthreads()
    if cuda.threadIdx.x == 1:
        cuda.atomic.exch(flag, 0, 1)


@pytest.mark.parametrize(("schedule", "seed"), SCHEDULES, ids=[name for name, _ in SCHEDULES])
@pytest.mark.parametrize("name", defect)
def test_a_defect_is_found(name, schedule, seed, monkeypatch):
    case = defect[name]
    body, error = case.body, case.outcome
    monkeypatch.setattr(simt.machine.spins, "UNCHANGED", 1_000)
    with pytest.raises(error) as caught, simt.observe(watch=True, schedule=schedule, seed=seed, **case.options):
        cuda.jit(body)[case.grid, case.block, 0, 1024](*case.arguments())
    lines = [line for *_, line in body.__code__.co_lines() if line]
    assert caught.value.kernel == name and min(lines) <= caught.value.line <= max(lines) + 5
