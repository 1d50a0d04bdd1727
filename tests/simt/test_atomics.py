"""Atomic operations, and the spins that need them to be yield points."""

import subprocess
import sys
import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from refopt import simt
from refopt.oracle.observing import starts
from refopt.simt import cuda, memory
from refopt.simt.base.diagnosis import place_of

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
    for operation, expected in ((atomic.add, wrapped(old + value)), (atomic.sub, wrapped(old - value)),
                                (atomic.max, max(old, value)), (atomic.min, min(old, value)), (atomic.exch, value),
                                (atomic.and_, old & value), (atomic.or_, old | value), (atomic.xor, old ^ value)):
        assert once(operation, old, value) == [old, expected]
    assert once(atomic.cas, old, old, value) == [old, value]
    assert once(atomic.cas, old, wrapped(old + 1), value) == [old, old]


def test_counting_operations():
    for dtype in (np.uint32, np.uint64):
        assert [once(cuda.atomic.inc, old, 2, dtype=dtype)[1] for old in (0, 1, 2, 3)] == [1, 2, 0, 0]
        assert [once(cuda.atomic.dec, old, 2, dtype=dtype)[1] for old in (0, 1, 2, 3)] == [2, 0, 1, 2]


def test_others_get_a_turn_after_eight_atomics():
    @cuda.jit
    def kernel(count, places):
        for i in range(10):
            places[cuda.threadIdx.x, i] = cuda.atomic.add(count, 0, 1)

    kernel[1, 2](np.zeros(1, np.int32), places := np.zeros((2, 10), np.int32))
    assert places.tolist() == [[*range(8), 16, 17], [*range(8, 16), 18, 19]]


def test_operands_and_results_have_the_arrays_type():
    """Sums wrap; what is compared with, or exchanged, is taken as an element."""
    assert once(cuda.atomic.cas, 2**32 - 1, -1, 7, dtype=np.uint32)[1] == 7
    for bits in (32, 64):
        assert once(cuda.atomic.add, 2**bits - 1, 5, dtype=f"uint{bits}") == [2**bits - 1, 4]
        assert once(cuda.atomic.sub, 3, 5, dtype=f"uint{bits}") == [3, 2**bits - 2]
        assert once(cuda.atomic.exch, 3, -2, dtype=f"uint{bits}") == [3, 2**bits - 2]


def test_nan():
    for operation, old, value, expected in (
        (cuda.atomic.max, 1, NAN, 1), (cuda.atomic.nanmax, NAN, 1, 1), (cuda.atomic.nanmax, 1, NAN, 1),
        (cuda.atomic.min, 1, NAN, 1), (cuda.atomic.nanmin, NAN, 1, 1), (cuda.atomic.nanmin, 1, 0, 0),
    ):
        assert once(operation, old, value, dtype=np.float32)[1] == expected
    assert np.isnan(once(cuda.atomic.max, NAN, 1, dtype=np.float32)[1])


def compare_and_swap(x):
    cuda.atomic.compare_and_swap(x, 5, 1)


def test_compare_and_swap_uses_the_first_element():
    x = np.array([[5, 6]])
    cuda.jit(compare_and_swap)[1, 1](x)
    assert x.tolist() == [[1, 6]]


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


def spin_on_fences(flag):
    while flag[0] == 0:
        cuda.threadfence()


@cuda.jit(device=True)
def spin_that_counts(flag):
    while cuda.atomic.add(flag, 0, 1) >= 0:
        pass


def spin_between_barriers(flag):
    while not cuda.syncthreads_or(cuda.atomic.add(flag, 0, 0)):
        pass


def spin_of_a_warp(flag):
    while not cuda.any_sync(3, cuda.atomic.add(flag, 0, 0)):
        pass


@pytest.fixture
def hasty(monkeypatch):
    """Threads are looked at, and stopped, early."""
    monkeypatch.setattr(simt.machine.spins, "UNCHANGED", 500)
    monkeypatch.setattr(simt.machine.spins, "POLLS", 50)
    monkeypatch.setattr(simt.machine.spins, "ATOMICS", 5_000)
    seconds, simt.limits.seconds = simt.limits.seconds, 0.05
    yield
    simt.limits.seconds = seconds


@cuda.jit(device=True)
def in_vain(x):
    cuda.atomic.max(x, 0, 0), cuda.atomic.max(x, 0, 0), cuda.atomic.max(x, 0, 0), cuda.atomic.max(x, 0, 0)


def test_atomics_one_after_another_are_no_spin(monkeypatch):
    """They change neither memory nor a variable, but each thread gets somewhere."""
    monkeypatch.setattr(simt.machine.spins, "UNCHANGED", 10)

    @cuda.jit
    def kernel(x):
        in_vain(x), in_vain(x), in_vain(x), in_vain(x), in_vain(x), in_vain(x), in_vain(x), in_vain(x), in_vain(x)

    kernel[1, 16](np.zeros(1, np.int64))


def test_a_loop_that_gets_somewhere_while_it_counts_is_no_spin(monkeypatch):
    monkeypatch.setattr(simt.machine.spins, "UNCHANGED", 10)

    @cuda.jit
    def kernel(x):
        tries, share = 0, 1.0
        while cuda.atomic.add(x, 0, 0) == 0 and share > 1e-30:
            tries += 1
            share *= 0.5
        x[1] = tries

    x = np.zeros(2, np.int64)
    kernel[1, 2](x)
    assert x.tolist() == [0, 100]


def test_spinning_needs_resident_blocks(hasty):
    simt.limits.seconds = 10
    flags = np.zeros(4, np.int32)
    wait_for_next_resident_block[4, 1](flags)
    assert flags.all()
    with pytest.raises(simt.Deadlock, match="blocks run one after another") as caught:
        wait_for_next_block[4, 1](np.zeros(4, np.int32))
    assert caught.value.block == (0, 0, 0)
    with simt.observe(schedule="reverse"):
        wait_for_next_block[4, 1](flags)


@pytest.mark.parametrize("body", [spin_on_fences, spin_between_barriers, spin_of_a_warp])
def test_other_spins_are_found_too(body, hasty):
    simt.limits.seconds = 10
    with pytest.raises(simt.Deadlock, match="spinning on atomics without progress"):
        cuda.jit(body)[1, 2](np.zeros(1, np.int64))


def test_threads_that_spin_are_counted(hasty):
    @cuda.jit
    def kernel(flag):
        if cuda.threadIdx.x < 3:
            while cuda.atomic.add(flag, 0, 0) == 0:
                pass

    simt.limits.seconds = 10
    with pytest.raises(simt.Deadlock, match=r"^3 threads are spinning on atomics without progress"):
        kernel[1, 8](np.zeros(1, np.int64))


def spin_that_counts_itself(flag, spins):
    while cuda.atomic.add(flag, 0, 0) == 0:
        spins[cuda.threadIdx.x] += 1


def spin_with_a_counter(flag, spins):
    tries = 0
    while cuda.atomic.cas(flag, 0, 1, 1) == 0:
        tries += 1


def spin_with_counters(flag, out):
    """The tries of all rounds are stored after the loop; what a round counts begins anew."""
    tries = total = 0
    for i in range(2):
        k = 0
        while True:
            k, tries = k + 1, tries + 1
            total += tries * k
            if cuda.atomic.cas(flag, 0, i + 1, 1) == i + 1:
                break
    out[0] = total


@pytest.mark.parametrize("body", [spin_that_counts_itself, lambda flag, _: spin_that_counts(flag)])
def test_spins_that_change_memory_are_stopped_by_the_clock(body, hasty):
    with pytest.raises(simt.Deadlock, match=r"6 times simt.limits.seconds"):
        cuda.jit(body)[1, 2](np.zeros(1, np.int64), np.zeros(2, np.int64))


@pytest.mark.parametrize("watch", [False, True])
@pytest.mark.parametrize("threads", [2, 64])
@pytest.mark.parametrize("body", [spin_with_a_counter, spin_with_counters], ids=lambda body: body.__name__)
def test_spins_that_only_count_their_tries_are_found(body, threads, watch):
    begun = time.process_time()
    with pytest.raises(simt.Deadlock, match="spinning on atomics without progress"), simt.observe(watch=watch):
        cuda.jit(body)[1, threads](np.zeros(1, np.int64), np.zeros(2, np.int64))
    assert time.process_time() - begun < 2


def counted_to_an_end(x, out):
    """The count decides when the thread gives up."""
    tries = 0
    while cuda.atomic.add(out, 0, 0) != 7:
        more = tries
        tries = more + 1
        if tries == x.size:
            break


def counted_in_the_inner_loop(x, out):
    tries = 0
    while tries < x.size:
        for _ in range(2):
            cuda.atomic.add(out, 0, 0)
            tries += 1


def maximum(x, out):
    for i in range(cuda.grid(1), x.size, cuda.gridsize(1)):
        cuda.atomic.max(out, 0, x[i])


def counted_in_memory(x, out):
    count = cuda.local.array(1, np.int64)
    count[0] = 0
    while count[0] < x.size:
        cuda.atomic.add(out, 0, 0)
        count[0] += 1


def counted_in_shared_memory(x, out):
    count = cuda.shared.array(1, np.int64)
    count[0] = 0
    cuda.syncthreads()
    while count[0] < 2_000:
        cuda.syncthreads()
        if cuda.threadIdx.x == 0:
            count[0] += 1
            cuda.atomic.add(out, 0, 0)
        cuda.syncthreads()


NO_SPINS = [maximum, counted_in_memory, counted_in_shared_memory, counted_to_an_end, counted_in_the_inner_loop]


@pytest.mark.parametrize("threads", [1, 32])
@pytest.mark.parametrize("body", NO_SPINS)
def test_atomics_that_change_nothing_are_no_spin(body, threads, hasty):
    """More of them than a spin may do, between two ends of threads."""
    simt.limits.seconds = 10
    cuda.jit(body)[1, threads](np.zeros(16_000 if threads == 1 else 1_000), np.zeros(1))


def test_a_count_at_an_address_is_no_spin(hasty):
    """No variable of the thread changes, but memory does."""
    simt.limits.seconds = 10

    @cuda.jit
    def body(address, flag):
        while memory.load(address, np.int32)[0] < 16_000:
            cuda.atomic.add(flag, 0, 0)
            memory.store(address, np.int32, (memory.load(address, np.int32)[0] + 1,))

    x = cuda.to_device(np.zeros(1, np.int32))
    body[1, 1](x.address, np.zeros(1))


@pytest.mark.parametrize("watch", [False, True])
@pytest.mark.parametrize("helper", [False, True])
def test_a_thread_that_runs_on_is_stopped(watch, helper, hasty):
    """With the line, and the name of the setting; what comes after it works."""

    @cuda.jit(device=True)
    def wait(flag):
        while flag[0] == 0:
            pass

    @cuda.jit
    def body(flag):
        if cuda.threadIdx.x == 1:
            if helper:
                wait(flag)
            else:
                while flag[0] == 0:
                    pass

    stopped = pytest.raises(simt.TimeLimitExceeded, match=r"0.05 s .* \(simt.limits.seconds\)")
    with stopped as caught, simt.observe(watch=watch):
        body[1, 2](np.zeros(1))
    error, first = caught.value, body.py_func.__code__.co_firstlineno
    assert error.kernel == "body" and error.thread == (1, 0, 0) and error.filename == __file__
    assert error.line in ([first - 4, first - 3] if helper else [first + 6, first + 7])
    maximum_of = np.zeros(1)
    cuda.jit(maximum)[1, 2](np.ones(3), maximum_of)
    assert maximum_of[0] == 1


def test_an_audit_hook_that_is_stopped_is_not_the_place():
    names = {"__tracebackhide__": starts.__tracebackhide__}
    exec("def hook(): raise simt_error", names)
    with pytest.raises(NameError) as caught:
        names["hook"]()
    assert place_of(caught.value).filename == __file__


def test_a_launch_is_profiled_after_one_was_stopped(hasty):
    """CPython 3.11 does not end a traced function while an exception from another thread seems to be on its way."""
    code = """if True:
        import numpy as np
        from refopt import simt
        from refopt.simt import cuda

        def spin(x):
            while x[0] == 0:
                pass

        def add(x):
            x[0] += 1

        simt.limits.seconds = 0.05
        try:
            simt.run(spin)[1, 1](np.zeros(1))
        except simt.TimeLimitExceeded:
            with simt.observe(profile=True):
                simt.run(add)[1, 1](np.zeros(1))
            print("profiled")
    """
    child = subprocess.run([sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True, timeout=20)
    assert child.stdout == "profiled\n", child.stderr


def test_a_launch_may_take_longer_than_the_limit(hasty):
    """What counts is the time without a step; threads take them."""

    @cuda.jit
    def body(x):
        for i in range(3_000):
            x[cuda.threadIdx.x] += i

    body[40, 8](np.zeros(8))


@pytest.mark.parametrize("seconds", [0, -1, float("nan"), True, "10", None])
def test_limits_are_checked(seconds):
    with pytest.raises(ValueError, match=r"simt\.limits\.seconds: expected"):
        simt.limits.seconds = seconds
    with pytest.raises(AttributeError, match="no limit minutes"):
        simt.limits.minutes = 1


def test_an_index_may_be_a_float():
    """As where Numba unifies int64 and uint64."""

    @cuda.jit
    def kernel(x, y, where):
        where = (where, np.uint64(1))
        if where[0] > 5:
            where = (0, 0)
        cuda.atomic.add(x, where, 1)
        cuda.atomic.add(y, np.float32(2.9), 1)

    x, y = np.zeros((2, 2)), np.zeros(3)
    for watch in (False, True):
        with simt.observe(watch=watch):
            kernel[1, 2](x, y, 1)
    assert x.tolist() == [[0, 0], [0, 4]] and y.tolist() == [0, 0, 4]
