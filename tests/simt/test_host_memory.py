"""What the host does with memory that the device is using: pinned, mapped and managed arrays, by element."""

from types import SimpleNamespace

import numpy as np
import pytest

from refopt import simt
from refopt.simt import cuda
from simt.cases import PAIR


@cuda.jit
def write(x, first, last):
    i = cuda.grid(1)
    if first <= i < last:
        x[i] = 1


@cuda.jit
def read(x, y):
    y[cuda.grid(1)] = x[cuda.grid(1)]


def fill(x, stream=0, first=0, last=32):
    write[1, 32, stream](x, first, last)


def take(x, y, stream=0):
    read[1, 32, stream](x, y)


def zeros(create, shape=32, dtype=np.float32):
    array = create(shape, dtype)
    array[...] = np.zeros(1, dtype)[0]
    return array


def race(steps, **options):
    """The race of steps with two streams, an array of each kind and two of the device, all of zeros; None without."""
    places = {"pinned": cuda.pinned_array, "mapped": cuda.mapped_array, "managed": cuda.managed_array}
    arrays = {name: zeros(create) for name, create in places.items()}
    arrays |= {name: cuda.to_device(np.zeros(32, np.float32)) for name in "xy"}
    try:
        with simt.observe(watch=True, **options):
            steps(SimpleNamespace(a=cuda.stream(), b=cuda.stream(), **arrays))
    except simt.DataRace as error:
        assert error.first.filename == error.filename == __file__
        return error
    return None


BETWEEN_STREAMS = {
    "mapped, read by another stream": lambda s: (fill(s.mapped, s.a), take(s.mapped, s.x, s.b)),
    "mapped, filled beside a kernel": lambda s: (take(s.mapped, s.x, s.a), s.y.copy_to_host(s.mapped, stream=s.b)),
    "mapped, copied out beside a kernel": lambda s: (fill(s.mapped, s.a), s.mapped.copy_to_host(stream=s.b)),
    "mapped, copied beside a kernel": lambda s: (fill(s.mapped, s.a), s.x.copy_to_device(s.mapped, stream=s.b))}


def behind_a_copy_to_locked_memory(s):
    with cuda.pinned(host := np.zeros(32, np.float32)):
        fill(s.managed, s.a)
        s.x.copy_to_host(host, stream=s.a)
        s.managed[3]


WRONG = BETWEEN_STREAMS | {
    "managed, read after a copy to locked memory": behind_a_copy_to_locked_memory,
    "managed, read without waiting": lambda s: (fill(s.managed), s.managed[3]),
    "managed, read after another stream": lambda s: (fill(s.managed, s.a), s.b.synchronize(), s.managed.max()),
    "mapped, written beside a reader": lambda s: (take(s.mapped, s.x, s.a), s.mapped.fill(2)),
    "mapped, filled by a copy that others wait for": lambda s: (
        s.mapped.copy_to_device(s.x, stream=s.a), take(s.x, s.y),
        s.y.copy_to_device(cuda.as_cuda_array(s.mapped), stream=s.a), s.mapped[3]),
    "mapped, a view read": lambda s: (fill(s.mapped, s.a, 8, 12), s.mapped.reshape(4, 8)[:, 3].sum()),
    "pinned, written by two copies": lambda s: [
        x.copy_to_host(s.pinned, stream=stream) for x, stream in ((s.x, s.a), (s.y, s.b))],
    "pinned, read while it is filled": lambda s: (
        s.x.copy_to_host(s.pinned, stream=s.a), s.y.copy_to_device(s.pinned, stream=s.b)),
    "pinned, a view made before": lambda s: (
        view := s.pinned[:4], s.x.copy_to_host(s.pinned, stream=s.a), s.a.synchronize(), s.pinned.sum(),
        s.x.copy_to_host(s.pinned, stream=s.a), view[0]),
    "pinned, a field": lambda s: (
        cuda.to_device(pairs := zeros(cuda.pinned_array, 8, PAIR), stream=s.a), pairs.__setitem__("b", 1))}


@pytest.mark.parametrize("what", WRONG)
def test_the_host_is_too_early(what):
    """What comes second is host code, of no thread, but for one kernel."""
    assert (race(WRONG[what]).thread is None) == (what != "mapped, read by another stream")
    assert (race(WRONG[what], lenient="host-access") is None) == (what not in BETWEEN_STREAMS)


def test_the_report_names_the_first_byte_of_both():
    assert race(lambda s: (cuda.as_cuda_array(s.mapped)[8:12].copy_to_device(s.x[:4], stream=s.a),
                           s.mapped[5:10].sum())).offset == 32


def halves(s):
    h = zeros(cuda.pinned_array, 64)
    s.x.copy_to_host(h[:32], stream=s.a)
    s.y.copy_to_host(h[32:], stream=s.b)
    s.a.synchronize()
    assert h[:32].sum() == 0 and h[31] == 0
    s.b.synchronize()
    h += 1


def chunks(s):
    for i in range(4):
        stream, part = (s.a, s.b)[i % 2], slice(8 * i, 8 * i + 8)
        s.x[part].copy_to_device(s.pinned[part], stream=stream)
        write[1, 8, stream](s.x[part], 0, 8)
        s.x[part].copy_to_host(s.pinned[part], stream=stream)
    cuda.synchronize()
    assert s.pinned.sum() == 32


def two_readers(s):
    s.x.copy_to_device(s.pinned, stream=s.a)
    s.y.copy_to_device(s.pinned, stream=s.b)
    assert s.pinned[0] == 0


def after_a_copy_on_the_default_stream(s):
    s.x.copy_to_host(s.pinned, stream=s.a)
    s.x[:4].copy_to_host()
    assert s.pinned[0] == 0


def after_a_copy_to_pageable_memory(s):
    s.x.copy_to_host(s.pinned, stream=s.a)
    s.x.copy_to_host(stream=s.a)
    assert s.pinned[0] == 0


def after_a_copy_to_pinned_memory_on_the_default_stream(s):
    fill(s.managed, s.a)
    s.x.copy_to_host(s.pinned)
    assert s.managed.sum() == 32


def mapped_memory_that_is_read_twice(s):
    take(s.mapped, s.x, s.a)
    s.y.copy_to_device(s.mapped, stream=s.b)


def other_elements_of_mapped_memory(s):
    fill(s.mapped, s.a, 0, 16)
    s.mapped[20] = 3
    assert s.mapped[16:].sum() == 3
    s.x[:4].copy_to_host(s.mapped[:4], stream=s.a)
    s.mapped[16:] = 1
    s.a.synchronize()
    assert s.mapped.sum() == 28


def managed_after_waiting(s):
    fill(s.managed)
    cuda.synchronize()
    s.managed += 1
    fill(s.managed, 0, 0, 16)
    event = cuda.event()
    event.record()
    event.synchronize()
    assert s.managed.tolist() == [1] * 16 + [2] * 16


def filled_where_nobody_looks(s):
    managed = cuda.managed_array(32, np.float32)
    np.asarray(managed)[:] = 2
    take(managed, s.y)
    assert s.y.copy_to_host().sum() == 64


def bytes_that_look_like_poison(s):
    for kind, poison in ((np.uint8, 0xAB), (np.uint16, 0xABAB)):
        managed = cuda.managed_array(32, kind)
        managed.fill(poison)
        take(managed, s.y)
        assert s.y.copy_to_host()[0] == poison


@pytest.mark.parametrize("steps", [
    halves, chunks, two_readers, after_a_copy_on_the_default_stream, after_a_copy_to_pageable_memory,
    after_a_copy_to_pinned_memory_on_the_default_stream, mapped_memory_that_is_read_twice,
    other_elements_of_mapped_memory, managed_after_waiting, filled_where_nobody_looks, bytes_that_look_like_poison])
def test_the_host_is_not_too_early(steps):
    assert not race(steps)


@pytest.mark.parametrize("create", [cuda.mapped_array, cuda.managed_array, cuda.pinned_array])
def test_what_neither_has_written_is_uninitialised(create):
    x, y = create(32, np.float32), np.zeros(32, np.float32)
    x[:31] = 1
    with simt.observe(watch=True), pytest.raises(simt.UninitializedRead) as caught:
        take(x if create is not cuda.pinned_array else cuda.to_device(x), y)
    assert caught.value.thread == (31, 0, 0)
    x[31] = 2
    with simt.observe(watch=True):
        take(x if create is not cuda.pinned_array else cuda.to_device(x), y)
    assert y[31] == 2
