"""Order between launches and copies, by streams, events and the host, seen through the races it prevents.

`test_race_orders.py` has each pair of kinds of accesses, beside each other and ordered.
"""

import itertools

import numpy as np
import pytest

from refopt import simt
from refopt.simt import cuda
from refopt.simt.base import streams
from simt.cases import is_race


@cuda.jit
def write(x):
    x[0] = 1


@cuda.jit
def read(x):
    x[0]


def w(x, stream=0):
    write[1, 1, stream](x)


def r(x, stream=0):
    read[1, 1, stream](x)


def recorded(*stream):
    event = cuda.event()
    event.record(*stream)
    return event


def auto_synchronize(x, a, b):
    with a.auto_synchronize():
        w(x, a)
    r(x, b)


def race(steps):
    """Whether steps on two streams, both using one array, are found to race."""
    x = cuda.to_device(np.zeros(4))
    return is_race(steps, x, cuda.stream(), cuda.stream())


ORDERED = {
    "other data on the default stream": lambda x, a, b: (w(x, a), r(cuda.to_device(np.zeros(1))), w(x, b)),
    "by a third stream": lambda x, a, b: (w(x, a), recorded(a).wait(c := cuda.stream()), recorded(c).wait(b), r(x, b)),
    "two events": lambda x, a, b: (w(x, a), recorded(a).wait(b), recorded(cuda.stream()).wait(b), r(x, b)),
    "event of the default stream": lambda x, a, b: (w(x, a), recorded().wait(b), r(x, b)),
    "wait on the default stream": lambda x, a, b: (w(x, a), recorded(a).wait(), r(x, b)),
    "context synchronized": lambda x, a, b: (w(x, a), cuda.current_context().synchronize(), r(x, b)),
    "event synchronized": lambda x, a, b: (w(x, a), recorded(a).synchronize(), r(x, b)),
    "event asked": lambda x, a, b: (w(x, a), recorded(a).query(), r(x, b)),
    "stream synchronized at the end of a block": auto_synchronize,
    "all synchronized": lambda x, a, b: (w(x, a), cuda.synchronize(), r(x, b)),
    "copy on the default stream": lambda x, a, b: (w(x, a), x.copy_to_host(), w(x, b)),
    "event recorded again": lambda x, a, b: (e := recorded(a), w(x, a), e.record(a), e.wait(b), r(x, b)),
    "reader behind a reader": lambda x, a, b: (
        w(x, a), recorded(a).wait(b), r(x, b), recorded(b).wait(c := cuda.stream()), r(x, c)),
    "writer behind readers": lambda x, a, b: (r(x, a), r(x, b), r(x, a), recorded(b).wait(a), w(x, a)),
    "copies apart": lambda x, a, b: (x[:2].copy_to_device(np.ones(2), stream=a),
                                     x[2:].copy_to_device(np.ones(2), stream=b), x[1:2].copy_to_host(stream=a)),
    "copies of other elements": lambda x, a, b: (
        x[1:].copy_to_host(stream=a), x[1::2].copy_to_device(np.zeros(2), stream=a), w(x, b)),
    "default stream of a thread": lambda x, a, b: (w(x, cuda.per_thread_default_stream()), w(x), w(x, 2)),
    "handle 1 is the default stream": lambda x, a, b: (w(x, a), w(x, 1), w(x, b)),
    "element on its stream": lambda x, a, b: (w(x, a), x.getitem(0, stream=a), x.setitem(0, 1.0, stream=a)),
    "handle": lambda x, a, b: (w(x, int(a)), r(x, a))}
UNORDERED = {
    "event recorded too early": lambda x, a, b: (e := recorded(a), w(x, a), e.wait(b), r(x, b)),
    "event recorded again, waited for before": lambda x, a, b: (
        e := recorded(a), e.wait(b), w(x, a), e.record(a), r(x, b)),
    "event recorded on another stream": lambda x, a, b: (
        w(x, a), e := recorded(a), e.record(cuda.stream()), e.wait(b), r(x, b)),
    "a reader that waits for another later": lambda x, a, b: (
        r(x, a), r(x, b), e := recorded(b), recorded(a).wait(b), e.wait(c := cuda.stream()), w(x, c)),
    "event never recorded": lambda x, a, b: (w(x, a), cuda.event().wait(b), r(x, b)),
    "event synchronized too early": lambda x, a, b: (e := recorded(a), w(x, a), e.synchronize(), r(x, b)),
    "reader beside one that waits": lambda x, a, b: (w(x, a), recorded(a).wait(b), r(x, b), r(x, cuda.stream())),
    "copy beside one that waits": lambda x, a, b: (x.copy_to_device(np.ones(4), stream=a), recorded(a).wait(b),
                                                   x.copy_to_host(stream=b), x.copy_to_host(stream=cuda.stream())),
    "writer beside a reader": lambda x, a, b: (r(x, a), r(x, b), r(x, a), w(x, a)),
    "copies that overlap": lambda x, a, b: (x[:3].copy_to_device(np.ones(3), stream=a), x[2:].copy_to_host(stream=b)),
    "copy behind a smaller one": lambda x, a, b: (
        x.copy_to_device(np.ones(4), stream=a), x[:2].copy_to_device(np.ones(2), stream=a),
        x[3:].copy_to_host(stream=b)),
    "copy behind one to the host": lambda x, a, b: (
        x.copy_to_device(np.ones(4), stream=a), x.copy_to_host(stream=a), x.copy_to_host(stream=b)),
    "copy behind a reader": lambda x, a, b: (
        w(x, a), recorded(a).wait(b), r(x, b), x.copy_to_host(stream=cuda.stream())),
    "reader beside one behind a copy": lambda x, a, b: (
        x.copy_to_device(np.ones(4), stream=a), r(x, a), r(x, b)),
    "array made on another stream": lambda x, a, b: r(cuda.to_device(np.ones(4), stream=a), b),
    "overwritten by another array": lambda x, a, b: (r(x, a), x.copy_to_device(cuda.device_array(4), stream=b)),
    "default stream of a thread": lambda x, a, b: (w(x, cuda.per_thread_default_stream()), w(x, a)),
    "element set on another stream": lambda x, a, b: (w(x, a), x.setitem(slice(0, 2), 1.0, stream=b)),
    "element read on another stream": lambda x, a, b: (w(x, a), x.getitem(0, stream=b))}


@pytest.mark.parametrize("steps", ORDERED.values(), ids=ORDERED)
def test_ordered(steps):
    assert not race(steps)


@pytest.mark.parametrize("steps", UNORDERED.values(), ids=UNORDERED)
def test_unordered(steps):
    assert race(steps)


def test_the_report_names_the_first_byte_of_both():
    x, a, b = cuda.to_device(np.zeros(4)), cuda.stream(), cuda.stream()
    with pytest.raises(simt.DataRace, match=r"on \[2\], byte 16 of") as caught, simt.observe(watch=True):
        x[2:].copy_to_device(np.ones(2), stream=a)
        x[:3].copy_to_host(stream=b)
    assert caught.value.offset == 16


def test_event_times(monkeypatch):
    """The seconds between two records become milliseconds, below 0 if asked for the other way round."""
    times = itertools.accumulate([10.0, 0.5, 2.0])
    monkeypatch.setattr(streams.time, "perf_counter", lambda: next(times))
    start, end, untimed, never = recorded(), recorded(cuda.stream()), cuda.event(timing=False), cuda.event()
    untimed.record()
    assert cuda.event_elapsed_time(start, end) == 500 == -end.elapsed_time(start) and end.query() is True
    for pair in itertools.permutations([start, untimed, never], 2):
        with pytest.raises(simt.LaunchError, match="needs two recorded events with timing"):
            cuda.event_elapsed_time(*pair)


def test_stream_handles():
    """0, 1 and 2 are streams of CUDA, addresses those of a driver; each new one is beyond 2**32, and another."""
    handles = [int(cuda.stream()) for _ in range(3)]
    assert len({*handles}) == 3 and min(handles) > 2**32
    assert (int(cuda.default_stream()), int(cuda.per_thread_default_stream())) == (0, 2)
    stream = cuda.stream()
    assert cuda.external_stream(int(stream)) is stream and repr(stream) == f"stream {int(stream)}"
    assert cuda.external_stream(987654321) is cuda.external_stream(987654321)
    before = cuda.external_stream(987654322).id  # nobody keeps it
    assert cuda.external_stream(987654322).id == before
    assert [repr(streams.as_stream(n)) for n in (None, 1, 2)] == [*["default stream"] * 2, "per-thread default stream"]


def test_clocks_do_not_grow_with_the_streams_that_there_have_been():
    x, host = cuda.to_device(np.zeros(1)), np.zeros(1)
    for _ in range(100):
        stream = cuda.stream()
        x.copy_to_host(host, stream=stream)
        stream.synchronize()
        x.copy_to_host()
    last = cuda.stream()
    w(x, last)
    assert len(last.clock) < 5 and len(cuda.default_stream().clock) < 5


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
            r(x, cuda.stream())


def test_a_block_knows_nothing_of_the_one_before():
    x = cuda.to_device(np.zeros(4))
    for stream in (cuda.stream(), cuda.stream()):
        with simt.observe(watch=True):
            x.copy_to_device(np.ones(4), stream=stream)
