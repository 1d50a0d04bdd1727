"""Where NaN, infinities, overflow and subnormal numbers arise, are stored and are loaded, by line."""

import numpy as np
import pytest

from refopt import simt
from refopt.simt import cuda, memory

TINY = np.finfo(np.float32).tiny


def events(kernel, block, *args, **options):
    """Lines relative to the kernel's first, what, how and how often; and the line of the first NaN or infinity."""
    with simt.observe(floats=True, **options) as log:
        kernel[1, block](*args)
    first = kernel.py_func.__code__.co_firstlineno
    rows = {(event.line - first, event.what, event.how, event.array): event.times for event in log.floats.events}
    return rows, log.floats


def device(*values, dtype=np.float32):
    return cuda.to_device(np.array(values, dtype))


@pytest.mark.parametrize("schedule", ["forward", "reverse"])
@pytest.mark.parametrize("watch", [False, True])
def test_each_arises_at_its_line(schedule, watch):
    @cuda.jit
    def kernel(x, y):
        i = cuda.threadIdx.x
        a = x[i] * x[i]
        b = x[i] / (x[i] - x[i])
        c = a - a
        cuda.syncthreads()
        y[i] = np.float32(c + b)

    rows, floats = events(kernel, 4, device(1, 2, 3e38, 1e-30), device(0, 0, 0, 0), watch=watch, schedule=schedule)
    assert rows == {(3, "overflow", "arises", None): 1, (3, "subnormal", "arises", None): 1,
                    (4, "inf", "arises", None): 4, (5, "nan", "arises", None): 1, (7, "nan", "store", "y"): 1,
                    (7, "inf", "store", "y"): 3}
    assert (floats.first.what, floats.first.line) == ("inf", kernel.py_func.__code__.co_firstlineno + 4)


@pytest.mark.parametrize("dtype", [np.float16, np.float32])
def test_what_was_there_before_is_a_load(dtype):
    @cuda.jit
    def kernel(x, y):
        i = cuda.threadIdx.x
        y[i] = x[i] + np.float32(1)

    rows, floats = events(kernel, 3, device(1, np.inf, np.nan, dtype=dtype), device(0, 0, 0, dtype=dtype))
    assert rows == {(3, "inf", "load", "x"): 1, (3, "nan", "load", "x"): 1, (3, "inf", "store", "y"): 1,
                    (3, "nan", "store", "y"): 1}
    assert (floats.first.what, floats.first.how, floats.first.first.thread) == ("inf", "load", (1, 0, 0))
    assert str(floats).splitlines()[0].startswith("test_floats.py:") and "inf is loaded (x), times: 1," in str(floats)


def test_a_store_may_round():
    @cuda.jit
    def kernel(x, y):
        y[0] = x[0]
        y[1] = x[1]
        y[2] = x[2]

    rows, _ = events(kernel, 1, device(1e300, 1e-40, 1e-300, dtype=np.float64), device(0, 0, 0))
    assert rows == {(2, "overflow", "arises", None): 1, (2, "inf", "store", "y"): 1,
                    (3, "subnormal", "arises", None): 1, (3, "subnormal", "store", "y"): 1,
                    (4, "subnormal", "arises", None): 1}


def test_an_overflow_may_be_the_first():
    @cuda.jit
    def kernel(x):
        x[0] = x[0] * x[0]

    assert events(kernel, 1, device(1e-30))[1].first is None
    first = events(kernel, 1, device(1e30))[1].first
    assert (first.what, first.how) == ("overflow", "arises")


def test_addresses_shared_memory_and_atomics():
    @cuda.jit
    def kernel(address, y):
        part = cuda.shared.array(4, np.float32)
        a = memory.load(address, np.float32, 4)
        part[0] = a[0]
        memory.store(address, np.float32, (a[1], a[1], a[1], a[1]))
        cuda.atomic.add(y, 0, a[2])

    x = device(np.nan, TINY / 2, np.inf, TINY)
    rows, _ = events(kernel, 1, x.address, device(0))
    assert [(*key[:3], times) for key, times in rows.items()] == [
        (3, "nan", "load", 1), (3, "inf", "load", 1), (3, "subnormal", "load", 1), (4, "nan", "store", 1),
        (5, "subnormal", "store", 4), (6, "inf", "store", 1)]


def test_finite_numbers_are_no_event():
    @cuda.jit
    def kernel(x, y, words):
        i = cuda.grid(1)
        y[i] = x[i] * np.float32(0.1) + np.float32(TINY)
        words[i] |= 0x7FC00000  # a NaN's bits, in an array of integers

    n = 8
    arrays = device(*range(n)), device(*range(n)), device(*range(n), dtype=np.int32)
    assert events(kernel, n, *arrays)[0] == {}


def test_without_floats_nothing_is_signalled():
    @cuda.jit
    def kernel(y):
        y[0] = np.float32(1) / np.float32(0)

    y = device(0)
    with simt.observe(floats=True):
        pass
    with simt.observe() as log, np.errstate(all="raise"):
        kernel[1, 1](y)
    assert log.floats is None and y.copy_to_host()[0] == np.inf
