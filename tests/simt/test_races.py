"""Data races: for each ordering rule a kernel that relies on it, and the same kernel without it."""

import numpy as np
import pytest

from refopt import simt
from refopt.simt import cuda, memory
from refopt.simt.watch.clocks import ThreadClock
from refopt.simt.watch.races import Detector
from simt.cases import is_race

SCHEDULES = [("forward", 0), ("reverse", 0), ("random", 1), ("random", 2)]


def race(body, *args, grid=1, block=2, strict="same-value", lenient=()):
    """Whether a race is found in a kernel: the answer must not depend on the schedule."""
    answers = set()
    for schedule, seed in SCHEDULES:
        arrays = [cuda.to_device(arg) if isinstance(arg, np.ndarray) else arg for arg in args]
        options = dict(schedule=schedule, seed=seed, strict=strict, lenient=lenient)
        answers.add(is_race(cuda.jit(body)[grid, block], *arrays, **options))
    assert len(answers) == 1
    return answers.pop()


device = cuda.jit(device=True)


@device
def nothing(*_):
    pass


def zeros(n=8, dtype=np.int32):
    return np.zeros(n, dtype)


@device
def write_first_element(x):
    x[0] = 1


@device
def read_first_element(x):
    x[0]


@device
def add_to_first_element(x):
    cuda.atomic.add(x, 0, 1)


@pytest.mark.parametrize("shift, found", [(16, False), (8, True)])
def test_raw_addresses_are_watched(shift, found):
    def body(x, address):
        if cuda.threadIdx.x:
            memory.store(address, np.float32, memory.load(address + 16, np.float32, 4))
        else:
            memory.store(address + 16 + shift, np.float32, (0, 0))
        x[10 + cuda.threadIdx.x] = 0

    array = cuda.to_device(zeros(12, np.float32))
    assert race(body, array, array.address) is found


def last_block_done(barrier=cuda.syncthreads, release=cuda.threadfence, acquire=cuda.threadfence):
    """The last block to finish sums what all blocks wrote."""

    def body(part, count, out):
        last = cuda.shared.array(1, np.int32)
        t = cuda.threadIdx.x
        part[cuda.grid(1)] = t
        barrier()
        if t == 0:
            release()
            last[0] = cuda.atomic.add(count, 0, 1) == cuda.gridDim.x - 1
            acquire()
        cuda.syncthreads()
        if last[0]:
            total = 0
            for i in range(t, part.size, cuda.blockDim.x):
                total += part[i]
            cuda.atomic.add(out, 0, total)

    return body


@pytest.mark.parametrize("options, found", [
    ({}, False), ({"release": nothing}, True), ({"acquire": nothing}, True), ({"barrier": nothing}, True),
    ({"release": cuda.threadfence_block}, True), ({"acquire": cuda.threadfence_block}, True),
    ({"release": cuda.threadfence_system}, False)])
def test_last_block_done_needs_its_barrier_and_both_fences(options, found):
    """Between blocks a barrier is no fence, by the letter; by default the second fence is not asked for."""
    arrays = zeros(12), zeros(1), zeros(1)
    assert race(last_block_done(**options), *arrays, grid=3, block=4, strict="both-fences") is found
    assert race(last_block_done(**options), *arrays, grid=3, block=4) is (found and "acquire" not in options)


@pytest.mark.parametrize("take", [
    device(lambda n: cuda.atomic.add(n, 0, 1)), device(lambda n: cuda.atomic.inc(n, 0, 9))])
def test_one_thread_may_sum_what_a_ticket_counts(take):
    """The last block, of one thread: its ticket orders what it reads, by default."""

    def body(part, count, out):
        part[cuda.blockIdx.x] = 1
        cuda.threadfence()
        if take(count) == cuda.gridDim.x - 1:
            for i in range(part.size):
                out[0] += part[i]

    arrays = zeros(3), zeros(1, np.uint32), zeros(1)
    assert race(body, *arrays, grid=3, block=1) is False
    assert race(body, *arrays, grid=3, block=1, strict="both-fences") is True


@pytest.mark.parametrize(
    "poll", ids=["cas", "add"],
    argvalues=[device(lambda flag: cuda.atomic.cas(flag, 0, 2, 2)), device(lambda flag: cuda.atomic.add(flag, 0, 0))])
@pytest.mark.parametrize(("fence", "found"), [(cuda.threadfence, False), (cuda.syncthreads, False), (nothing, True)])
def test_a_flag_that_is_waited_for_needs_a_fence_after_it(fence, found, poll):
    """Polling is no ticket."""

    def body(x, flag, out):
        cuda.cg.this_grid()
        if cuda.blockIdx.x:
            x[0] = 1
            cuda.threadfence()
            cuda.atomic.exch(flag, 0, 1)
        else:
            while poll(flag) == 0:
                pass
            fence()
            out[0] = x[0]

    arrays = zeros(1), zeros(1), zeros(1)
    assert race(body, *arrays, grid=2, block=1) is found
    assert race(body, *arrays, grid=2, block=1, lenient="acquire") is False


@pytest.mark.parametrize("take", [
    device(lambda lock: cuda.atomic.cas(lock, 0, 0, 1)), device(lambda lock: cuda.atomic.exch(lock, 0, 1))])
@pytest.mark.parametrize(("fence", "found"), [(cuda.threadfence, False), (nothing, True)])
def test_what_a_lock_protects_needs_a_fence_behind_it(fence, found, take):
    """Whoever takes the lock has changed it, but that is no ticket."""

    def body(lock, total):
        cuda.cg.this_grid()
        while take(lock):
            pass
        fence()
        total[0] += 1
        cuda.threadfence()
        cuda.atomic.exch(lock, 0, 0)

    assert race(body, zeros(1), zeros(1), grid=3, block=1) is found
    assert race(body, zeros(1), zeros(1), grid=3, block=1, lenient="acquire") is False


# What a thread has found in its view must not be believed of others.


def passed_on(body, meet=cuda.syncthreads):
    """Thread 0 writes or reads and hands that to thread 1 alone, by a flag; then all do what `body` says."""

    def kernel(x, flag):
        t = cuda.threadIdx.x
        meet()
        body[0](x) if t == 0 else None
        if t == 0:
            cuda.threadfence()
            cuda.atomic.exch(flag, 0, 1)
        if t == 1:
            while cuda.atomic.add(flag, 0, 0) == 0:
                pass
            cuda.threadfence()
            body[1](x)
            cuda.threadfence()
            cuda.atomic.exch(flag, 1, 1)
        if t == 2:
            while cuda.atomic.add(flag, 1, 0) == 0:
                pass
            body[2](x)

    return kernel


@pytest.mark.parametrize(("first", "then"), [
    (write_first_element, read_first_element), (add_to_first_element, read_first_element),
    (read_first_element, add_to_first_element), (write_first_element, add_to_first_element)])
def test_what_one_thread_knows_its_neighbour_does_not(first, then):
    """Thread 2 comes after thread 1, with the view of the same barrier, but without a fence."""
    arrays = zeros(), zeros(2)
    assert race(passed_on((first, then, then)), *arrays, block=3) is True
    assert race(passed_on((first, then, nothing)), *arrays, block=3) is False
    fenced = device(lambda x: (cuda.threadfence(), then(x)))
    assert race(passed_on((first, then, fenced)), *arrays, block=3) is False


@pytest.mark.parametrize("who", [0, 1])
@pytest.mark.parametrize(
    ("early", "late"), [(read_first_element, add_to_first_element), (add_to_first_element, read_first_element)])
def test_a_later_access_has_to_be_known_as_well(early, late, who):
    """All know what thread 0 did, and one has checked it; what that one then does nobody knows."""

    def body(x):
        t = cuda.threadIdx.x
        if t == 0:
            early(x)
        cuda.syncthreads()
        if t == who:
            late(x)
            early(x)
        if t == 2:
            late(x)

    assert race(body, zeros(), block=3) is True


@pytest.mark.parametrize("late", [read_first_element, add_to_first_element])
def test_an_own_access_is_known_to_nobody_else(late):
    """Thread 0 does both; thread 1, which shares its view, does the second alone."""
    early = add_to_first_element if late is read_first_element else read_first_element

    def body(x):
        cuda.syncthreads()
        if cuda.threadIdx.x == 0:
            early(x)
        late(x)

    def alone(x):
        cuda.syncthreads()
        if cuda.threadIdx.x == 0:
            early(x)
            late(x)

    assert race(body, zeros(), block=2) is True and race(alone, zeros(), block=2) is False


def test_writes_of_one_value():
    """Whoever comes last, it is the same; another value, or a reader beside the writers, is a race."""

    def body(x, values, read):
        x[0] = values[cuda.threadIdx.x]
        if x[0] != 1:
            x[1] = 1
        if cuda.threadIdx.x == read:
            x[2] = 0

    def reader(x):
        if cuda.threadIdx.x < 2:
            x[0] = 1
        else:
            x[0]

    def reader_of_the_next(x):
        t = cuda.threadIdx.x
        if t < 2:
            x[0] = 1
        cuda.syncthreads()
        if t == 2:
            x[0] = 2
        if t == 3:
            x[0]

    def overwriter(x):
        x[0] = 1
        if cuda.threadIdx.x == 1:
            x[0] = 2

    same, other = np.ones(3, np.int32), np.array([1, 1, 2], np.int32)
    assert race(body, zeros(), same, 0, block=3, strict=()) is False
    assert race(body, zeros(), same, 0, block=3) is True
    assert race(body, zeros(), other, 0, block=3, strict=()) is True
    assert race(reader, zeros(), block=3, strict=()) is True
    assert race(overwriter, zeros(), block=3, strict=()) is True
    assert race(reader_of_the_next, zeros(), block=4, strict=()) is True


@device
def write_another_value(x):
    x[0] = 2


@pytest.mark.parametrize("last", [write_another_value, add_to_first_element])
def test_one_who_knows_a_writer_does_not_know_another_of_the_value(last):
    """Thread 1 is ordered after thread 0, and comes after thread 2 by luck."""

    def kernel(x, flag):
        t = cuda.threadIdx.x
        if t == 0:
            x[0] = 1
            cuda.threadfence()
            cuda.atomic.exch(flag, 0, 1)
        if t == 1:
            while cuda.atomic.add(flag, 0, 0) == 0:
                pass
            cuda.threadfence()
            x[0]
            cuda.atomic.exch(flag, 1, 1)
            while cuda.atomic.add(flag, 2, 0) == 0:
                pass
            last(x)
        if t == 2:
            while cuda.atomic.add(flag, 1, 0) == 0:
                pass
            x[0] = 1
            cuda.atomic.exch(flag, 2, 1)

    assert race(kernel, zeros(), zeros(), block=3, strict=()) is True


def test_a_fence_of_an_earlier_launch_does_not_help():
    @cuda.jit
    def pass_on(x, flag, fenced):
        if cuda.blockIdx.x == 0:
            x[0] = 1
            if fenced:
                cuda.threadfence()
            cuda.atomic.exch(flag, 0, 1)
        else:
            cuda.atomic.add(flag, 0, 0)
            cuda.threadfence()
            x[0]

    x, flag = cuda.to_device(zeros()), cuda.to_device(zeros())
    with simt.observe(watch=True, schedule="forward"):
        pass_on[2, 1](x, flag, True)
        with pytest.raises(simt.DataRace):
            pass_on[2, 1](x, flag, False)


def test_an_atomic_that_observes_nothing_orders_nothing():
    """The flag is set on another location."""

    def body(x):
        if cuda.threadIdx.x:
            cuda.atomic.add(x, 1, 1)
            cuda.threadfence()
            x[0]
        else:
            x[0] = 1
            cuda.threadfence()
            cuda.atomic.add(x, 2, 1)

    assert race(body, zeros())


def test_the_report_names_both_accesses():
    @device
    def helper(x):
        x[1, 2] = cuda.threadIdx.x

    def body(x):
        if cuda.threadIdx.x == 3:
            helper(x)
        if cuda.threadIdx.x == 1:
            x[1, 2]

    x = cuda.to_device(np.zeros((2, 4), np.float32))
    x.name = "velocity"
    with pytest.raises(simt.DataRace) as caught, simt.observe(watch=True):
        cuda.jit(body)[(1, 2), 4](x)
    error, first_line = caught.value, body.__code__.co_firstlineno
    assert (error.array, error.offset, error.kernel, error.line) == (
        "velocity", 24, "body", helper.__code__.co_firstlineno + 2)
    assert (error.block, error.thread) == ((0, 0, 0), (3, 0, 0))
    assert (error.first.line, error.first.thread) == (first_line + 4, (1, 0, 0))
    assert error.second.via == f"{__file__}:{first_line + 2}"
    for words in ("[1, 2], byte 24 of velocity (shape (2, 4), float32", "read in kernel body", "write",
                  f"{__file__}:{first_line + 4}", "thread (1, 0, 0)", "thread (3, 0, 0)"):
        assert words in str(error)


def test_the_report_has_the_indices_of_all_axes():
    def body(x):
        of, at = cuda.blockIdx, cuda.threadIdx
        here = of.x == 1 and of.y == 2 and of.z == 1
        if here and at.x == 3 and at.y + at.z == 2 and at.z < 2:
            x[0] = at.y

    with pytest.raises(simt.DataRace) as caught, simt.observe(watch=True):
        cuda.jit(body)[(2, 3, 2), (4, 3, 2)](zeros())
    accesses = caught.value.first, caught.value.second
    assert {access.block for access in accesses} == {(1, 2, 1)}
    assert [access.thread for access in accesses] == [(3, 2, 0), (3, 1, 1)]


def all_read_one(x, y):
    y[cuda.grid(1)] = x[0]


def all_add_then_all_read(x, y):
    cuda.cg.this_grid()
    cuda.atomic.add(x, 0, 1)
    cuda.cg.this_grid().sync()
    y[cuda.grid(1)] = x[0]


def all_write_one_value(x, y):
    x[0] = 1
    y[cuda.grid(1)] = x[0]


@pytest.mark.parametrize("body", [all_read_one, all_add_then_all_read, all_write_one_value])
def test_the_cost_of_watching_is_linear(body, monkeypatch):
    """Four times the threads at one location look at about four times the accesses of others; 16 times, if it were not.
    """
    looked, all_known, knows = [0], Detector._all_known, ThreadClock.knows

    def at_all(detector, first, accesses, *rest):
        looked[0] += len(accesses)
        return all_known(detector, first, accesses, *rest)

    def at_one(clock, *access):
        looked[0] += 1
        return knows(clock, *access)

    monkeypatch.setattr(Detector, "_all_known", at_all)
    monkeypatch.setattr(ThreadClock, "knows", at_one)

    def cost(threads):
        looked[0] = 0
        with simt.observe(watch=True):
            for _ in range(2):
                cuda.jit(body)[threads // 32, 32](zeros(1), zeros(threads))
        return looked[0]

    assert cost(256) <= 6 * cost(64) + 100
