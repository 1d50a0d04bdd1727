"""Threads of Python beside each other on the executor: one at a time, and none sees what is another's."""

import gc
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from refopt import simt
from refopt.simt import cuda, memory
from refopt.simt.base import streams, watchdog
from refopt.simt.memory import arrays

THREADS = 4


@pytest.fixture
def hasty():
    """Python switches threads as often as it can."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


def in_threads(work):
    """The results of as many threads that begin together."""
    gate = threading.Barrier(THREADS)

    def run(k):
        gate.wait()
        return work(k)

    with ThreadPoolExecutor(THREADS) as pool:
        return list(pool.map(run, range(THREADS)))


class Held:
    """A kernel under way in another thread, until it is let go."""

    def __init__(self, kernel, *args):
        self.inside, self.let_go = threading.Event(), threading.Event()
        self.thread = threading.Thread(target=lambda: kernel[1, 2](self.inside, self.let_go, *args))

    def __enter__(self):
        self.thread.start()
        assert self.inside.wait(30)
        return self

    def __exit__(self, *_):
        self.let_go.set()
        self.thread.join(30)
        assert not self.thread.is_alive()


@cuda.jit
def two_halves(inside, let_go, x):
    """Thread 0 writes, waits for the host, and goes on."""
    part = cuda.shared.array(2, np.int32)
    part[cuda.threadIdx.x] = 1
    if cuda.threadIdx.x == 0:
        x[0] += 1
        inside.set()
        let_go.wait(30)
    cuda.syncthreads()
    x[cuda.threadIdx.x] += part[1 - cuda.threadIdx.x]


@cuda.jit
def add_one(x):
    x[cuda.threadIdx.x] += 1


def later(work):
    """A thread that does it, and has had the time to, if nothing holds it up."""
    thread = threading.Thread(target=work)
    thread.start()
    thread.join(0.05)
    return thread


def test_launches_with_barriers(hasty):
    """Kernels whose threads are switched, launched at once: each has its own threads, blocks and shared memory."""

    @cuda.jit
    def rotate(x, shift):
        part = cuda.shared.array(8, np.int64)
        t = cuda.threadIdx.x
        for _ in range(5):
            part[t] = x[cuda.blockIdx.x, t]
            cuda.syncthreads()
            x[cuda.blockIdx.x, t] = part[(t + shift) % 8]
            cuda.syncthreads()

    def work(k):
        x = cuda.to_device(np.arange(16).reshape(2, 8))
        for _ in range(10):
            rotate[2, 8, cuda.stream()](x, k)
        return x.copy_to_host()

    for k, result in enumerate(in_threads(work)):
        assert (result == np.roll(np.arange(16).reshape(2, 8), -50 * k, axis=1)).all()


@pytest.mark.parametrize("watch", [False, True])
def test_a_launch_waits_for_another(watch):
    """What another thread launches, copies or observes begins when the kernel under way has ended."""
    x, y = cuda.to_device(np.zeros(2, np.int64)), cuda.to_device(np.zeros(2, np.int64))
    seen = []
    observing = []

    def observe():
        with simt.observe(watch=watch) as log:
            observing.append(1)
            add_one[1, 2](y)
        seen.append(("launches", len(log.launches)))

    with Held(two_halves, x) as held:
        waiting = [
            later(lambda: seen.append(("copy", x.copy_to_host().tolist()))), later(observe),
            later(lambda: (add_one[1, 2](y), seen.append(("launched", held.let_go.is_set())))),
            later(lambda: (x[:].copy_to_device(y), seen.append(("overwritten", held.let_go.is_set()))))]
        assert not seen and not observing
        held.let_go.set()
        for thread in waiting:
            thread.join(30)
    assert dict(seen)["launched"] and dict(seen)["overwritten"] and dict(seen)["launches"] >= 1
    assert dict(seen)["copy"] in ([2, 1], [0, 0], [1, 1], [2, 2])  # as a whole, before or after it is overwritten
    assert y.copy_to_host().tolist() == [2, 2]


def test_observing_ends_between_launches():
    """A block that ends beside a kernel of another thread leaves it observed to its end."""
    x = cuda.to_device(np.zeros(2, np.int64))
    block = simt.observe(watch=True)
    log = block.__enter__()
    with Held(two_halves, x) as held:
        ending = later(lambda: block.__exit__(None, None, None))
        assert ending.is_alive() and not log.launches
        held.let_go.set()
        ending.join(30)
    assert log.bytes_written(x) == 8 * 3 and len(log.launches) == 1


def test_a_second_observer_is_refused():
    """One observe block at a time, whichever thread it is of, and none in a kernel."""

    def observing():
        with simt.observe():
            pass

    words = "^observe blocks do not nest, and only one thread at a time can have one$"
    with simt.observe(), ThreadPoolExecutor(1) as pool, pytest.raises(RuntimeError, match=words):
        pool.submit(observing).result()
    with pytest.raises(simt.LaunchError, match="observe cannot be entered inside a kernel"):
        observed = simt.ptx_twin()(observing)
        cuda.jit(lambda: observed())[1, 1]()


def test_host_code_beside_a_kernel_is_host_code():
    """What another thread reads is counted to no kernel, and its errors name no kernel."""
    x, y = cuda.to_device(np.zeros(2, np.int64)), cuda.to_device(np.zeros(2, np.int64))
    with simt.observe(watch=True) as log, Held(two_halves, x):
        memory.load(y.address, np.int64)
        memory.store(y.address, np.int64, (5,))
        with pytest.raises(simt.OutOfBounds, match="host code") as caught:
            memory.load(y.address - 1, np.int64)
    assert (log.bytes_read(y), log.bytes_written(y)) == (0, 0)
    assert caught.value.kernel is None
    assert y.copy_to_host().tolist() == [5, 0]


def test_nothing_keeps_a_launch_that_has_ended(frozen):
    """Nor its observer, and so its arrays: not the thread that watches it, which has looked at it here."""
    x, live = cuda.to_device(np.zeros(2, np.int64)), memory.live_allocations()
    with simt.observe(watch=True), Held(two_halves, x):
        time.sleep(1.5 * watchdog._PERIOD)
    del x
    gc.collect()
    assert memory.live_allocations() == live - 1


def test_tables_of_addresses_are_changed_by_one_thread_at_a_time(monkeypatch):
    """Whoever allocates, another that allocates, looks up or counts waits."""
    waited = []
    forget, mine = memory.buffers._forget_freed, threading.get_ident()

    def meanwhile():
        if threading.get_ident() == mine:
            reads = memory.live_bytes, memory.live_allocations, lambda: memory.find(base, 1)
            waiting.extend(later(other) for other in (lambda: memory.allocate(8), *reads))
            waited.extend(thread.is_alive() for thread in waiting)
        forget()

    kept, waiting = memory.allocate(8), []
    base = kept.base
    monkeypatch.setattr(memory.buffers, "_forget_freed", meanwhile)
    memory.allocate(8)
    for thread in waiting:
        thread.join(30)
    assert waited == [True] * 4 and not any(thread.is_alive() for thread in waiting)


@pytest.mark.parametrize("way", ["to the host", "to the device", "from an array"])
def test_no_launch_comes_between_a_copy_and_its_place_in_the_order(monkeypatch, way):
    """A kernel of another thread that is launched after a copy finds it done."""
    x, host = cuda.to_device(np.zeros(2, np.int64)), np.array([5, 5])
    source = cuda.to_device(host)
    copied, launched = arrays._copied, []

    def then_launch(*args, **named):
        operation = copied(*args, **named)
        if not launched:
            launched.append(later(lambda: add_one[1, 2](x)))
        return operation

    monkeypatch.setattr(arrays, "_copied", then_launch)
    if way == "to the host":
        assert x.copy_to_host().tolist() == [0, 0]
    else:
        x.copy_to_device(host if way == "to the device" else source)
    launched[0].join(30)
    assert x.copy_to_host().tolist() == ([1, 1] if way == "to the host" else [6, 6])


def test_operations_are_counted_one_by_one(hasty):
    """Threads that enqueue on one stream: each operation has a number of its own, and all are known to be enqueued."""
    stream, other = cuda.stream(), cuda.stream()
    numbers = [n for part in in_threads(lambda k: [stream.enqueue("x").number for _ in range(400)]) for n in part]
    assert sorted(numbers) == list(range(min(numbers), min(numbers) + THREADS * 400))
    event = cuda.event()
    event.record(stream)
    event.wait(other)
    assert other.reached()[stream.id] == max(numbers)


def test_a_foreign_handle_is_one_stream(monkeypatch):
    """Threads that name a handle for the first time get one stream for it."""

    class Slow(streams.Stream):
        def __init__(self, handle):
            time.sleep(0.02)
            super().__init__(handle)

    monkeypatch.setattr(streams, "Stream", Slow)
    assert len({id(stream) for stream in in_threads(lambda k: streams.as_stream(900_000))}) == 1
