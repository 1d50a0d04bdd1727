"""What the host does with memory that the device is using: pinned, mapped and managed arrays, by element."""

import numpy as np
import pytest

from refopt import simt
from refopt.simt import cuda

PAIR = np.dtype([("a", np.float32), ("b", np.float32)])


@cuda.jit
def write(x, first, last):
    i = cuda.grid(1)
    if first <= i < last:
        x[i] = 1


@cuda.jit
def read(x, y):
    y[cuda.grid(1)] = x[cuda.grid(1)]


def zeros(create, shape=32, dtype=np.float32):
    array = create(shape, dtype)
    array[...] = np.zeros(1, dtype)[0]
    return array


def device():
    return cuda.to_device(np.zeros(32, np.float32))


def race(steps, **options):
    a, b = cuda.stream(), cuda.stream()
    try:
        with simt.observe(watch=True, **options):
            steps(a, b)
    except simt.DataRace as error:
        assert error.first.filename == error.filename == __file__
        return True
    return False


# Each is a defect.


def managed_read_without_waiting(a, b):
    x = zeros(cuda.managed_array)
    write[1, 32](x, 0, 32)
    x[3]


def managed_read_after_another_stream(a, b):
    x = zeros(cuda.managed_array)
    write[1, 32, a](x, 0, 32)
    b.synchronize()
    x.max()


def mapped_written_beside_a_reader(a, b):
    x, y = zeros(cuda.mapped_array), device()
    read[1, 32, a](x, y)
    x.fill(2)


def mapped_view_read(a, b):
    x = zeros(cuda.mapped_array)
    write[1, 32, a](x, 8, 12)
    x.reshape(4, 8)[:, 3].sum()


def mapped_read_by_another_stream(a, b):
    x, y = zeros(cuda.mapped_array), device()
    write[1, 32, a](x, 0, 32)
    read[1, 32, b](x, y)


def copy_from_mapped_beside_a_kernel(a, b):
    x, y = zeros(cuda.mapped_array), device()
    write[1, 32, a](x, 0, 32)
    y.copy_to_device(x, stream=b)


def pinned_written_by_two_copies(a, b):
    h, x, y = zeros(cuda.pinned_array), device(), device()
    x.copy_to_host(h, stream=a)
    y.copy_to_host(h, stream=b)


def pinned_read_while_it_is_filled(a, b):
    h, x, y = zeros(cuda.pinned_array), device(), device()
    x.copy_to_host(h, stream=a)
    y.copy_to_device(h, stream=b)


def pinned_like(a, b):
    h, x = cuda.pinned_array_like(np.zeros(32, np.float32)), device()
    x.copy_to_host(h, stream=a)
    h[0]


def pinned_by_a_mask(a, b):
    h, x = zeros(cuda.pinned_array), device()
    x.copy_to_host(h, stream=a)
    h[np.arange(32) % 2 == 0]


def pinned_field(a, b):
    h = zeros(cuda.pinned_array, 8, PAIR)
    cuda.to_device(h, stream=a)
    h["b"] = 1


def pinned_iterated(a, b):
    h, x = zeros(cuda.pinned_array), device()
    x.copy_to_host(h, stream=a)
    sum(h.flat)


WRONG = [
    managed_read_without_waiting, managed_read_after_another_stream, mapped_written_beside_a_reader, mapped_view_read,
    mapped_read_by_another_stream, copy_from_mapped_beside_a_kernel, pinned_written_by_two_copies,
    pinned_read_while_it_is_filled, pinned_like, pinned_by_a_mask, pinned_field, pinned_iterated,
]


@pytest.mark.parametrize("steps", WRONG)
def test_the_host_is_too_early(steps):
    assert race(steps)
    between_streams = steps in (mapped_read_by_another_stream, copy_from_mapped_beside_a_kernel)
    assert race(steps, lenient="host-access") is between_streams


# None of these is one.


def halves(a, b):
    h, x, y = zeros(cuda.pinned_array, 64), device(), device()
    x.copy_to_host(h[:32], stream=a)
    y.copy_to_host(h[32:], stream=b)
    a.synchronize()
    assert h[:32].sum() == 0 and h[31] == 0
    b.synchronize()
    h += 1


def chunks(a, b):
    h, x = zeros(cuda.pinned_array), device()
    for i in range(4):
        stream, part = (a, b)[i % 2], slice(8 * i, 8 * i + 8)
        x[part].copy_to_device(h[part], stream=stream)
        write[1, 8, stream](x[part], 0, 8)
        x[part].copy_to_host(h[part], stream=stream)
    cuda.synchronize()
    assert h.sum() == 32


def fields(a, b):
    h = zeros(cuda.pinned_array, 8, PAIR)
    cuda.to_device(np.zeros(8, np.float32)).copy_to_device(np.zeros(8, np.float32), stream=a)
    h["b"] = 1


def two_readers(a, b):
    h, x, y = zeros(cuda.pinned_array), device(), device()
    x.copy_to_device(h, stream=a)
    y.copy_to_device(h, stream=b)
    assert h[0] == 0


def after_a_copy_on_the_default_stream(a, b):
    h, x = zeros(cuda.pinned_array), device()
    x.copy_to_host(h, stream=a)
    x[:4].copy_to_host()
    assert h[0] == 0


def after_a_copy_to_pageable_memory(a, b):
    h, x = zeros(cuda.pinned_array), device()
    x.copy_to_host(h, stream=a)
    x.copy_to_host(stream=a)
    assert h[0] == 0


def other_elements_of_mapped_memory(a, b):
    x = zeros(cuda.mapped_array)
    write[1, 32, a](x, 0, 16)
    x[20] = 3
    assert x[16:].sum() == 3
    a.synchronize()
    assert x[:16].sum() == 16


def managed_after_waiting(a, b):
    x = zeros(cuda.managed_array)
    write[1, 32](x, 0, 32)
    cuda.synchronize()
    x += 1
    write[1, 32](x, 0, 16)
    event = cuda.event()
    event.record()
    event.synchronize()
    assert x.tolist() == [1] * 16 + [2] * 16


def filled_where_nobody_looks(a, b):
    x, y = cuda.managed_array(32, np.float32), device()
    np.asarray(x)[:] = 2
    read[1, 32](x, y)
    assert y.copy_to_host().sum() == 64


def bytes_that_look_like_poison(a, b):
    x, y = cuda.managed_array(32, np.uint8), device()
    x.fill(0xAB)
    read[1, 32](x, y)
    assert y.copy_to_host()[0] == 0xAB


RIGHT = [
    halves, chunks, fields, two_readers, after_a_copy_on_the_default_stream, after_a_copy_to_pageable_memory,
    other_elements_of_mapped_memory, managed_after_waiting, filled_where_nobody_looks, bytes_that_look_like_poison,
]


@pytest.mark.parametrize("steps", RIGHT)
def test_the_host_is_not_too_early(steps):
    assert not race(steps)


@pytest.mark.parametrize("create", [cuda.mapped_array, cuda.managed_array, cuda.pinned_array])
def test_what_neither_has_written_is_uninitialised(create):
    x, y = create(32, np.float32), device()
    x[:31] = 1
    with simt.observe(watch=True), pytest.raises(simt.UninitializedRead) as caught:
        read[1, 32](x if create is not cuda.pinned_array else cuda.to_device(x), y)
    assert caught.value.thread == (31, 0, 0)
    x[31] = 2
    with simt.observe(watch=True):
        read[1, 32](x if create is not cuda.pinned_array else cuda.to_device(x), y)
    assert y[31] == 2
