"""Atomic operations, and the spins that need them to be yield points."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from refopt import simt
from refopt.simt import cuda

SCHEDULES = ["forward", "reverse", "random"]
NAN = float("nan")


def once(operation, old, *value, dtype=np.int32):
    """The old value that an operation returns and the new one it leaves, in shared and device memory."""

    def body(x, out):
        part = cuda.shared.array(1, dtype)
        part[0] = x[0]
        out[0] = operation(part, 0, *value)
        out[1] = part[0]
        out[2] = operation(x, 0, *value)
        out[3] = x[0]

    out = np.zeros(4, dtype)
    cuda.jit(body)[1, 1](np.array([old], dtype), out)
    assert np.array_equal(out[:2], out[2:], equal_nan=True)
    return out[:2].tolist()


@settings(deadline=None)
@given(st.integers(-(2**31), 2**31 - 1), st.integers(-(2**31), 2**31 - 1))
def test_integer_operations(old, value):
    def wrapped(x):
        return (x + 2**31) % 2**32 - 2**31

    atomic = cuda.atomic
    for operation, expected in (
        (atomic.add, wrapped(old + value)),
        (atomic.sub, wrapped(old - value)),
        (atomic.max, max(old, value)),
        (atomic.min, min(old, value)),
        (atomic.exch, value),
        (atomic.and_, old & value),
        (atomic.or_, old | value),
        (atomic.xor, old ^ value),
    ):
        assert once(operation, old, value) == [old, expected]
    assert once(atomic.cas, old, old, value) == [old, value]
    assert once(atomic.cas, old, wrapped(old + 1), value) == [old, old]


def test_counting_operations():
    assert [once(cuda.atomic.inc, old, 2, dtype=np.uint32)[1] for old in (0, 1, 2, 3)] == [1, 2, 0, 0]
    assert [once(cuda.atomic.dec, old, 2, dtype=np.uint32)[1] for old in (0, 1, 2, 3)] == [2, 0, 1, 2]


def test_nan():
    for operation, old, value, expected in (
        (cuda.atomic.max, 1, NAN, 1),
        (cuda.atomic.nanmax, NAN, 1, 1),
        (cuda.atomic.nanmax, 1, NAN, 1),
        (cuda.atomic.min, 1, NAN, 1),
        (cuda.atomic.nanmin, NAN, 1, 1),
        (cuda.atomic.nanmin, 1, 0, 0),
    ):
        assert once(operation, old, value, dtype=np.float32)[1] == expected
    assert np.isnan(once(cuda.atomic.max, NAN, 1, dtype=np.float32)[1])


def test_compare_and_swap_uses_the_first_element():
    x = np.array([[5, 6]])
    cuda.jit(lambda x: cuda.atomic.compare_and_swap(x, 5, 1))[1, 1](x)
    assert x.tolist() == [[1, 6]]


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_histogram(schedule):
    @cuda.jit
    def kernel(x, bins):
        cuda.atomic.add(bins, (0, x[cuda.grid(1)]), 1)

    x, bins = np.random.default_rng(0).integers(0, 5, 96), np.zeros((1, 5), np.int64)
    with simt.observe(watch=True, schedule=schedule):
        kernel[3, 32](x, bins)
    assert bins[0].tolist() == np.bincount(x, minlength=5).tolist()


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_spin_lock(schedule):
    @cuda.jit
    def kernel(lock, total):
        cuda.cg.this_grid()
        while cuda.atomic.cas(lock, 0, 0, 1):
            pass
        cuda.threadfence()
        value = total[0]
        cuda.threadfence()
        total[0] = value + 1
        cuda.threadfence()
        cuda.atomic.exch(lock, 0, 0)

    lock, total = np.zeros(1, np.int32), np.zeros(1, np.int32)
    with simt.observe(watch=True, schedule=schedule):
        kernel[2, 20](lock, total)
    assert total[0] == 40


@cuda.jit
def wait_for_next_block(flags):
    block = cuda.blockIdx.x
    if block + 1 < cuda.gridDim.x:
        while cuda.atomic.add(flags, block + 1, 0) == 0:
            pass
    cuda.atomic.add(flags, block, 1)


@cuda.jit
def wait_for_next_resident_block(flags):
    cuda.cg.this_grid()
    wait_for_next_block.py_func(flags)


def test_spinning_needs_resident_blocks():
    flags = np.zeros(4, np.int32)
    wait_for_next_resident_block[4, 1](flags)
    assert flags.all()
    with pytest.raises(simt.Deadlock, match="blocks run one after another") as caught:
        wait_for_next_block[4, 1](np.zeros(4, np.int32))
    assert caught.value.block == (0, 0, 0)
    with simt.observe(schedule="reverse"):
        wait_for_next_block[4, 1](flags)


def spin_on_fences(flag):
    while flag[0] == 0:
        cuda.threadfence()


def spin_that_counts(flag):
    while cuda.atomic.add(flag, 0, 1) >= 0:
        pass


def spin_between_barriers(flag):
    while not cuda.syncthreads_or(cuda.atomic.add(flag, 0, 0)):
        pass


def spin_of_a_warp(flag):
    while not cuda.any_sync(3, cuda.atomic.add(flag, 0, 0)):
        pass


@pytest.mark.parametrize("body", [spin_on_fences, spin_that_counts, spin_between_barriers, spin_of_a_warp])
def test_other_spins_are_found_too(body, monkeypatch):
    monkeypatch.setattr(simt.launch, "_MAX_UNCHANGED", 5_000)
    monkeypatch.setattr(simt.launch, "_MAX_ATOMICS", 10_000)
    monkeypatch.setattr(simt.launch, "_MAX_POLLS", (100, 3_000))
    with pytest.raises(simt.Deadlock):
        cuda.jit(body)[1, 2](np.zeros(1, np.int64))


def spin_that_counts_itself(flag, spins):
    while cuda.atomic.add(flag, 0, 0) == 0:
        spins[cuda.threadIdx.x] += 1


def test_a_spin_that_changes_nothing_is_found_before_one_that_does(monkeypatch):
    monkeypatch.setattr(simt.launch, "_MAX_UNCHANGED", 1_000)
    monkeypatch.setattr(simt.launch, "_MAX_ATOMICS", 4_000)
    spins = cuda.to_device(np.zeros(2, np.int64))
    with pytest.raises(simt.Deadlock):
        cuda.jit(spin_that_counts_itself)[1, 2](np.zeros(1, np.int64), spins)
    assert 900 < spins.copy_to_host().sum() <= 1_001
