"""Watched launches in several orders: what one order hides is found, and nothing else changes."""

import random

import numpy as np
import pytest

from refopt import simt
from refopt.simt import cuda
from refopt.simt.machine.launch import Launch
from simt.cases import ints


def by_luck(first):
    """The fence and the atomic order block ``first`` before the other only if it comes first."""

    @cuda.jit
    def kernel(x, counter):
        if cuda.blockIdx.x == first:
            x[0] = 1
            cuda.threadfence()
            cuda.atomic.add(counter, 0, 1)
        else:
            cuda.atomic.add(counter, 0, 1)
            cuda.threadfence()
            x[0] = 2

    return kernel


@cuda.jit
def equal_to_the_last(x, counter):
    """Block 0 writes 1, then 2, and block 1 writes 2."""
    if cuda.blockIdx.x == 0:
        x[0] = 1
    x[0] = 2


@cuda.jit
def flag_that_may_be_seen(x, flag):
    if cuda.blockIdx.x == 0:
        x[0] = 7
        cuda.threadfence()
        cuda.atomic.exch(flag, 0, 1)
    elif cuda.atomic.add(flag, 0, 0) == 0:
        x[0] = 8


@cuda.jit
def released_in_the_other_order_alone(x, counter):
    """Block 1 fences what it writes unless it comes first."""
    second = cuda.atomic.add(counter, 0, 1) > 0
    if second or cuda.blockIdx.x == 0:
        cuda.threadfence()
    x[0] = 1 + cuda.blockIdx.x
    if second or cuda.blockIdx.x == 0:
        cuda.threadfence()
    cuda.atomic.add(counter, 0, 1)


HIDDEN = [(by_luck(0), "reverse"), (by_luck(1), "forward"), (equal_to_the_last, "reverse"),
          (flag_that_may_be_seen, "reverse"), (released_in_the_other_order_alone, "reverse")]


@pytest.mark.parametrize(("kernel", "order"), HIDDEN, ids=lambda one: getattr(one, "__name__", one))
def test_what_an_order_hides(kernel, order):
    with pytest.raises(simt.DataRace) as caught, simt.observe(watch=True):
        kernel[2, 1](ints(1), ints(1))
    assert caught.value.order == order
    assert str(caught.value).count(f"found with schedule {order}") == 1
    other = {"forward": "reverse", "reverse": "forward"}[order]
    with simt.observe(watch=True, schedule=other):
        kernel[2, 1](ints(1), ints(1))


def test_after_a_race_in_another_order():
    """Memory has what the first order left, and what comes after is counted."""
    x, counter = cuda.to_device(ints(1)), cuda.to_device(ints(1))
    with simt.observe(watch=True) as log:
        with pytest.raises(simt.DataRace):
            by_luck(0)[2, 1](ints(1), counter)
        assert counter[0] == 2
        by_luck(0)[1, 1](x, ints(1))
    assert len(log.launches) == 2 and log.bytes_written(x) == 4


def test_a_race_of_copies_has_no_order_of_threads():
    @cuda.jit
    def beyond(x):
        x[9] = 1

    x = cuda.to_device(np.zeros(4))
    with simt.observe(watch=True):
        with pytest.raises(simt.OutOfBounds):
            beyond[1, 1](x)
        x.copy_to_device(np.ones(4), stream=cuda.stream())
        with pytest.raises(simt.DataRace) as caught:
            x.copy_to_host(stream=cuda.stream())
    assert caught.value.order is None and "found with schedule" not in str(caught.value)


def test_more_orders_by_seed():
    """Block 1 passes on what block 0 has counted, if it comes between the two others: of six orders one or two."""

    @cuda.jit
    def between(x, counter):
        cuda.cg.this_grid()
        b = cuda.blockIdx.x
        if b == 0:
            x[0] = 1
            cuda.threadfence()
        place = cuda.atomic.add(counter, 0, 1)
        if b == 2 and place == 1:
            x[0] = 2

    def shown(**options):
        try:
            with simt.observe(watch=True, **options):
                between[3, 1](ints(1), ints(1))
        except simt.DataRace as race:
            return race.order
        return None

    assert shown() is None
    order = shown(orders=20)
    assert order.startswith("random (seed ")
    seed = int(order[len("random (seed ") : -1])
    assert shown(schedule="random", seed=seed) == order
    assert shown(orders=seed) is None and shown(orders=1, seed=seed) == order


def threads_in_order(schedule, seed=0):
    seen = []

    @cuda.jit
    def kernel():
        cuda.syncthreads()
        note()

    note = simt.ptx_twin()(lambda: seen.append((cuda.blockIdx.x, cuda.threadIdx.x)))

    with simt.observe(schedule=schedule, seed=seed):
        kernel[3, 4]()
    return seen


def test_schedules():
    forward = [(block, thread) for block in range(3) for thread in range(4)]
    assert threads_in_order("forward") == forward and threads_in_order("reverse") == forward[::-1]
    shuffled = threads_in_order("random")
    assert sorted(shuffled) == forward and shuffled not in (forward, forward[::-1])
    assert threads_in_order("random", 1) != threads_in_order("random", 2)
    assert len({tuple(dict(threads_in_order("random", seed))) for seed in range(20)}) == 6  # all orders of three blocks


def test_a_random_order_does_not_depend_on_what_ran_before():
    @cuda.jit
    def arrive(counter, places):
        places[cuda.grid(1)] = cuda.atomic.add(counter, 0, 1)

    def order(*before):
        with simt.observe(schedule="random", seed=5):
            for threads in before:
                arrive[1, threads](ints(1), ints())
            arrive[4, 16](ints(1), places := ints())
        return places.tolist()

    assert order(3) == order(40) != order(3, 3)


def test_the_first_random_order_is_that_of_the_seed():
    """Of `random.Random`: of the blocks, each of which has one thread."""

    @cuda.jit
    def arrive(counter, places):
        places[cuda.atomic.add(counter, 0, 1)] = cuda.blockIdx.x

    with simt.observe(schedule="random", seed=5):
        arrive[20, 1](ints(1), places := ints(20))
    assert places.tolist() == random.Random(5).sample(range(20), 20)


def test_a_launch_leaves_what_the_first_order_does():
    @cuda.jit
    def add_up(x, total, places, fresh):
        i = cuda.grid(1)
        cuda.atomic.add(total, 0, x[i])
        places[i] = cuda.atomic.add(total, 1, 1)
        fresh[i] = i
        x[i] += 1

    def run(**options):
        x = cuda.to_device(np.array([1e8, 1, -1e8, 1, 3, 1e-3], np.float32))
        total, places = cuda.to_device(np.zeros(2, np.float32)), cuda.to_device(ints(6))
        fresh = cuda.device_array(6, np.int32)
        with simt.observe(watch=True, **options) as log:
            add_up[2, 3](x, total, places, fresh)
            add_up[2, 3](x, total, places, fresh)
        counted = log.bytes_read(x), log.bytes_written(total), len(log.launches)
        return [one.copy_to_host().tobytes() for one in (x, total, places, fresh)], counted

    assert run() == run(schedule="forward") == run(orders=3) != run(schedule="reverse")


def test_what_no_order_can_change_is_run_once(monkeypatch):
    runs, run = [], Launch.run
    monkeypatch.setattr(Launch, "run", lambda self, args: (runs.append(self.name), run(self, args)))

    @cuda.jit
    def barrier(x):
        x[cuda.threadIdx.x] = 1
        cuda.syncthreads()
        x[63 - cuda.threadIdx.x] += 1

    @cuda.jit
    def atomic(x):
        cuda.atomic.add(x, 0, 1)

    with simt.observe(watch=True):
        barrier[1, 64](ints())
        atomic[1, 64](ints())
    with simt.observe():
        atomic[1, 64](ints())
    assert runs == ["barrier", "atomic", "atomic", "atomic"]


def test_printing_and_profiles_once(capsys):
    @cuda.jit
    def kernel(x):
        cuda.atomic.add(x, 0, 1)
        if cuda.threadIdx.x == 0:
            print("here")

    with simt.observe(watch=True, profile=True) as log:
        kernel[1, 32](ints())
    with simt.observe(watch=True, profile=True, schedule="forward") as once:
        kernel[1, 32](ints())
    assert capsys.readouterr().out == "here\nhere\n"
    assert log.profile.sectors == once.profile.sectors and log.profile.lines == once.profile.lines


def test_a_launch_that_did_not_end_is_not_run_again():
    @cuda.jit
    def kernel(x):
        cuda.atomic.add(x, 0, 1)
        if cuda.threadIdx.x:
            cuda.syncthreads()

    with simt.observe(watch=True, keep_going=True) as log:
        kernel[1, 4](ints())
    assert [type(error) for error in log.defects] == [simt.BarrierDivergence] and log.found.times == [1]


def test_an_exception_of_another_order_says_which():
    @cuda.jit
    def kernel(x):
        if cuda.atomic.add(x, 0, 1) == 0 and cuda.blockIdx.x == 1:
            raise ValueError("block 1 is first")

    with pytest.raises(ValueError, match="block 1 is first") as caught, simt.observe(watch=True):
        kernel[2, 1](ints(1))
    assert "with schedule reverse, not with forward" in caught.value.__notes__


def test_what_a_launch_wrote_is_fresh_again_in_the_next_order():
    """In reverse nobody has written x[0] before it is read."""

    @cuda.jit
    def kernel(x, y, counter):
        if cuda.atomic.add(counter, 0, 1) == 0:
            x[cuda.blockIdx.x] = 1
        if cuda.blockIdx.x == 0:
            y[0] = x[0]

    with pytest.raises(simt.UninitializedRead) as caught, simt.observe(watch=True):
        kernel[2, 1](cuda.device_array(2, np.int32), ints(1), ints(1))
    assert caught.value.order == "reverse" and "found with schedule reverse, not with forward" in str(caught.value)


def test_later_launches_are_ordered_after_all_of_them():
    @cuda.jit
    def add(x):
        cuda.atomic.add(x, 0, 1)

    @cuda.jit
    def store(x):
        x[0] = 1

    x, first, second = cuda.to_device(ints()), cuda.stream(), cuda.stream()
    with simt.observe(watch=True):
        add[1, 4, first](x)
        store[1, 1, first](x)
        with pytest.raises(simt.DataRace):
            store[1, 1, second](x)
    with simt.observe(watch=True):
        store[1, 1, first](x)
        add[1, 4, second](x[1:])  # runs again, from the same memory, and what came before is still known
        with pytest.raises(simt.DataRace):
            store[1, 1, second](x)


@cuda.jit
def waits_for_block_0(message, flag):
    if cuda.blockIdx.x == 0:
        message[0] = 7
        cuda.threadfence()
        cuda.atomic.exch(flag, 0, 1)
    else:
        while cuda.atomic.add(flag, 0, 0) == 0:
            pass
        cuda.threadfence()
        message[1] = message[0]


@cuda.jit
def waits_for_who_is_first(turn, x):
    """In reverse block 0 waits for what nobody does, although all blocks are there."""
    cuda.cg.this_grid()
    if cuda.atomic.add(turn, 0, 1) == 1 and cuda.blockIdx.x == 0:
        while cuda.atomic.add(x, 0, 0) == 0:
            pass


def test_a_block_that_waits_for_an_earlier_one():
    message = ints(2)
    with simt.observe(watch=True, orders=2, keep_going=True) as log:
        waits_for_block_0[2, 1](message, ints(1))
    assert message.tolist() == [7, 7] and log.defects == []
    with pytest.raises(simt.Deadlock), simt.observe(watch=True, schedule="reverse"):
        waits_for_block_0[2, 1](message, ints(1))
    with pytest.raises(simt.Deadlock, match="with schedule reverse, not with forward"), simt.observe(watch=True):
        waits_for_who_is_first[2, 1](ints(1), ints(1))


def test_equal_values_are_told():
    @cuda.jit
    def halves(x, y):
        i = cuda.grid(1)
        y[i // 2] = x[i]

    with simt.observe(watch=True) as log:
        halves[1, 32](np.ones(32), np.zeros(16))
    (one,) = log.tolerated
    assert one.array == "y" and one.first.thread == (0, 0, 0) and one.second.thread == (1, 0, 0)
    assert "rule same-value" in str(one)


def test_orders_and_keeping_going_are_for_what_is_watched():
    for options, words in (({"orders": 2}, "watch=True"), ({"keep_going": True}, "watch=True"),
                           ({"watch": True, "orders": -1}, "orders")):
        with pytest.raises(ValueError, match=words), simt.observe(**options):
            pass
