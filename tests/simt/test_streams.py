"""Order between launches and copies, by streams, events and the host, seen through the races it prevents."""

import numpy as np
import pytest

from refopt import simt
from refopt.simt import cuda


@cuda.jit
def write(x):
    x[0] = 1


@cuda.jit
def read(x):
    x[0]


def race(steps):
    """Whether steps on two streams, both using one array, are found to race."""
    x = cuda.to_device(np.zeros(4))
    a, b = cuda.stream(), cuda.stream()
    try:
        with simt.observe(watch=True):
            steps(x, a, b)
    except simt.DataRace:
        return True
    return False


def test_handles_are_like_no_others():
    """0, 1 and 2 are streams of CUDA, addresses those of a driver; each new one is beyond 2**32, and another."""
    handles = [int(cuda.stream()) for _ in range(3)]
    assert len({*handles}) == 3 and min(handles) > 2**32


def test_clocks_do_not_grow_with_the_streams_that_there_have_been():
    x, host = cuda.to_device(np.zeros(1)), np.zeros(1)
    for _ in range(100):
        stream = cuda.stream()
        x.copy_to_host(host, stream=stream)
        stream.synchronize()
        x.copy_to_host()
    last = cuda.stream()
    write[1, 1, last](x)
    assert len(last.clock) < 5 and len(cuda.default_stream().clock) < 5


def on_one_stream(x, a, b):
    write[1, 1, a](x)
    read[1, 1, a](x)
    write[1, 1, a](x)


def on_two_streams(x, a, b):
    write[1, 1, a](x)
    read[1, 1, b](x)


def reads_on_two_streams(x, a, b):
    read[1, 1, a](x)
    read[1, 1, b](x)


def write_after_reads(x, a, b):
    read[1, 1, a](x)
    read[1, 1, b](x)
    write[1, 1, b](x)


def read_of_an_old_write_behind_an_ordered_read(x, a, b):
    write[1, 1, a](x)
    read[1, 1, a](x)
    read[1, 1, b](x)


def through_the_default_stream(x, a, b):
    write[1, 1, a](x)
    read[1, 1](x)
    write[1, 1, b](x)


def default_stream_on_other_data(x, a, b):
    write[1, 1, a](x)
    read[1, 1](cuda.to_device(np.zeros(1)))
    write[1, 1, b](x)


def event(x, a, b):
    write[1, 1, a](x)
    done = cuda.event()
    done.record(a)
    done.wait(b)
    read[1, 1, b](x)


def event_without_wait(x, a, b):
    write[1, 1, a](x)
    cuda.event().record(a)
    read[1, 1, b](x)


def event_recorded_too_early(x, a, b):
    done = cuda.event()
    done.record(a)
    write[1, 1, a](x)
    done.wait(b)
    read[1, 1, b](x)


def event_never_recorded(x, a, b):
    write[1, 1, a](x)
    cuda.event().wait(b)
    read[1, 1, b](x)


def wait_on_the_wrong_stream(x, a, b):
    write[1, 1, a](x)
    done = cuda.event()
    done.record(a)
    done.wait(cuda.stream())
    read[1, 1, b](x)


def stream_synchronize(x, a, b):
    write[1, 1, a](x)
    a.synchronize()
    read[1, 1, b](x)


def synchronize_the_other_stream(x, a, b):
    write[1, 1, a](x)
    b.synchronize()
    read[1, 1, b](x)


def auto_synchronize(x, a, b):
    with a.auto_synchronize():
        write[1, 1, a](x)
    read[1, 1, b](x)


def event_synchronize(x, a, b):
    write[1, 1, a](x)
    done = cuda.event()
    done.record(a)
    done.synchronize()
    read[1, 1, b](x)


def synchronize(x, a, b):
    write[1, 1, a](x)
    cuda.synchronize()
    read[1, 1, b](x)


def copy_on_another_stream(x, a, b):
    write[1, 1, a](x)
    x.copy_to_host(stream=b)


def copy_on_the_default_stream(x, a, b):
    write[1, 1, a](x)
    x.copy_to_host()
    write[1, 1, b](x)


def write_after_an_asynchronous_copy(x, a, b):
    x.copy_to_host(stream=a)
    write[1, 1, b](x)


def read_after_an_asynchronous_copy(x, a, b):
    x.copy_to_host(stream=a)
    read[1, 1, b](x)


def copy_of_other_elements(x, a, b):
    x[1:].copy_to_host(stream=a)
    x[1::2].copy_to_device(np.zeros(2), stream=a)
    write[1, 1, b](x)


def copies_on_two_streams(x, a, b):
    x.copy_to_device(np.zeros(4), stream=a)
    x[2:].copy_to_host(stream=b)


def overwritten_by_a_copy_of_another_array(x, a, b):
    read[1, 1, a](x)
    x.copy_to_device(cuda.device_array(4), stream=b)


def default_stream_of_a_thread(x, a, b):
    write[1, 1, cuda.per_thread_default_stream()](x)
    write[1, 1](x)
    write[1, 1, 2](x)


def default_stream_of_a_thread_beside_another(x, a, b):
    write[1, 1, cuda.per_thread_default_stream()](x)
    write[1, 1, a](x)


def elements_set_on_another_stream(x, a, b):
    write[1, 1, a](x)
    x.setitem(slice(0, 2), 1.0, stream=b)


def element_read_on_its_stream(x, a, b):
    write[1, 1, a](x)
    x.getitem(0, stream=a)
    x.setitem(0, 1.0, stream=a)


def handle(x, a, b):
    write[1, 1, int(a)](x)
    read[1, 1, a](x)


RIGHT = [
    on_one_stream, reads_on_two_streams, through_the_default_stream, default_stream_on_other_data, event,
    stream_synchronize, auto_synchronize, event_synchronize, synchronize, copy_on_the_default_stream,
    read_after_an_asynchronous_copy, copy_of_other_elements, default_stream_of_a_thread, element_read_on_its_stream,
    handle,
]
WRONG = [
    on_two_streams, write_after_reads, read_of_an_old_write_behind_an_ordered_read, event_without_wait,
    event_recorded_too_early, event_never_recorded, wait_on_the_wrong_stream, synchronize_the_other_stream,
    copy_on_another_stream, write_after_an_asynchronous_copy, copies_on_two_streams,
    overwritten_by_a_copy_of_another_array, default_stream_of_a_thread_beside_another, elements_set_on_another_stream,
]


@pytest.mark.parametrize("steps", RIGHT)
def test_ordered(steps):
    assert not race(steps)


@pytest.mark.parametrize("steps", WRONG)
def test_unordered(steps):
    assert race(steps)


def test_event_times():
    start, end = cuda.event(), cuda.event()
    start.record()
    with pytest.raises(simt.LaunchError):
        cuda.event_elapsed_time(start, end)
    end.record(cuda.stream())
    assert cuda.event_elapsed_time(start, end) >= 0 and end.query()


def test_stream_handles():
    assert int(cuda.default_stream()) == 0
    stream = cuda.stream()
    assert cuda.external_stream(int(stream)) is stream
    assert cuda.external_stream(987654321) is cuda.external_stream(987654321)


def test_copies_that_all_later_work_waits_for_are_forgotten():
    """Copying an array element by element takes time linear in its elements."""
    x, side = cuda.to_device(np.zeros(64)), cuda.stream()
    with simt.observe(watch=True):
        for i in range(64):
            x[i] = 1
        assert len(x.buffer.shadow.copies) < 3
        x[0:1].copy_to_device(np.ones(1), stream=side)
        x[1:2].copy_to_device(np.ones(1), stream=side)
        with pytest.raises(simt.DataRace):
            read[1, 1, cuda.stream()](x)
