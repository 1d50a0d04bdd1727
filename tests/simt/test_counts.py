"""Launches, bytes and copies are counted exactly."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from refopt import simt
from refopt.simt import cuda, memory


@cuda.jit
def axpy(a, x, y):
    for i in range(cuda.grid(1), x.size, cuda.gridsize(1)):
        y[i] += a * x[i]


@settings(deadline=None)
@given(st.integers(0, 50), st.sampled_from([np.float16, np.float32, np.float64]), st.booleans())
def test_bytes(n, dtype, watch):
    x, y, z = (cuda.to_device(np.ones(n, dtype)) for _ in range(3))
    size = np.dtype(dtype).itemsize
    with simt.observe(watch=watch) as log:
        axpy[2, 4](dtype(2), x, y)
        axpy[1, 3](dtype(2), y, y)
    assert (log.bytes_read(x), log.bytes_written(x)) == (n * size, 0)
    assert (log.bytes_read(y), log.bytes_written(y)) == (4 * n * size - n * size, 2 * n * size) or n == 0
    assert (log.bytes_read(z), log.bytes_written(z)) == (0, 0)


def test_launches():
    stream = cuda.stream()

    @cuda.jit
    def together():
        cuda.cg.this_grid().sync()

    x = cuda.to_device(np.zeros(4))
    axpy[1, 1](1.0, x, x)
    with simt.observe() as log:
        axpy[2, (4, 1)](1.0, x, x)
        together[3, 2, stream]()
    axpy[1, 1](1.0, x, x)
    assert log.launches == [("axpy", (2, 1, 1), (4, 1, 1), cuda.default_stream(), False),
                            ("together", (3, 1, 1), (2, 1, 1), stream, True)]
    assert log.launches[1].kernel == "together" and log.bytes_written(x) == 32


def test_views_addresses_and_atomics_count_for_the_same_bytes():
    @cuda.jit
    def kernel(table, address):
        table[1, 0]
        memory.load(address + 8, np.float32, 2)
        memory.store(address, np.float32, (0,))
        cuda.atomic.add(table, (1, 1), 1)
        memory.atomic_add(address, np.float32, 1)

    x = cuda.to_device(np.zeros(8, np.float32))
    with simt.observe() as log:
        kernel[1, 1](x.reshape(2, 4)[:, 1:], x.address)
    assert (log.bytes_read(x), log.bytes_written(x)) == (20, 12)
    assert [log.bytes_read(x[i : i + 1]) for i in range(8)] == [4, 0, 4, 4, 0, 4, 4, 0]
    assert [log.bytes_written(x[i : i + 1]) for i in range(8)] == [8, 0, 0, 0, 0, 0, 4, 0]
    assert log.bytes_read(x[::2]) == 12


@pytest.mark.parametrize("watch", [False, True])
@pytest.mark.parametrize("order", ["C", "F"])
def test_bytes_are_counted_where_they_are(order, watch):
    """By element, in whatever order the axes lie, by whatever index: [0, 2], [1, 2] and [2, 3]."""

    @cuda.jit
    def kernel(x):
        x[1, 2] = x[0, -1]
        x.T[2, 0] = x[2][1]
        x[np.int8(2), -1] = x[:, 1:][1, 0]

    x = cuda.to_device(np.zeros((3, 4), order=order))
    with simt.observe(watch=watch) as log:
        kernel[1, 1](x)
    written, read = (
        [(i, j) for i, j in np.ndindex(3, 4) if total(x[i : i + 1, j : j + 1])]
        for total in (log.bytes_written, log.bytes_read))
    assert written == [(0, 2), (1, 2), (2, 3)] and read == [(0, 3), (1, 1), (2, 1)] and log.bytes_read(x) == 24


def test_shared_memory_is_not_counted_and_failed_launches_are():
    @cuda.jit
    def kernel(x):
        part = cuda.shared.array(1, np.float64)
        part[0] = x[0]
        part[0]
        x[4]

    x = cuda.to_device(np.zeros(4))
    with pytest.raises(simt.OutOfBounds), simt.observe() as log:
        kernel[1, 1](x)
    assert log.bytes_read(x) == 8 and len(log.launches) == 1


def test_copies():
    x = cuda.to_device(np.zeros(4))
    stream = cuda.stream()
    with simt.observe() as log:
        x.name = "x"
        x.copy_to_host(stream=stream)
        x[1:3] = 0
        cuda.to_device(np.zeros(2, np.float32))
        cuda.device_array_like(x).copy_to_device(x)
        x[0]
        axpy[1, 1](1.0, np.zeros(3), x)
    kinds = [(copy.kind, copy.nbytes, copy.source, copy.target) for copy in log.copies]
    assert kinds == [("DtoH", 32, "x", None), ("HtoD", 16, None, "x"), ("HtoD", 8, None, None), ("DtoD", 32, "x", None),
                     ("DtoH", 8, "x", None), ("HtoD", 24, None, None), ("DtoH", 24, None, None)]
    assert log.copies[0].stream is stream and log.copies[1].stream is cuda.default_stream()


def test_counting_can_be_off():
    x = cuda.to_device(np.zeros(4))
    with simt.observe(count=False, watch=True) as log:
        axpy[1, 1](1.0, x, x)
    assert (log.launches, log.copies, log.bytes_read(x)) == ([], [], 0)
    y = cuda.to_device(np.zeros(4))
    with simt.observe(count=[y]) as log:
        axpy[1, 1](1.0, x, y)
    assert (log.bytes_read(x), log.bytes_read(y), log.bytes_written(y)) == (0, 32, 32)
