"""Streams and events.

Everything runs immediately, in the call that enqueues it, so these objects hold no work. They record order: for the
race detector, each operation gets a clock that says which earlier operations it is ordered after.
"""

from __future__ import annotations

import itertools
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from .arguments import shown, whole
from .errors import LaunchError
from .state import one_at_a_time

# Stream id -> number of its last operation that is known to be complete. Numbers run over all streams, so that one
# number covers all operations before it, and clocks do not grow with every stream ever created.
Clock = dict[int, int]
_ALL = -1  # instead of a stream id: the operations of all streams up to a number


def _merge(*clocks: Clock) -> Clock:
    """A new clock: the union of clocks."""
    merged: Clock = {}
    for clock in clocks:
        for stream, number in clock.items():
            if number > merged.get(stream, 0):
                merged[stream] = number
    least = merged.get(_ALL, 0)
    return {stream: number for stream, number in merged.items() if number > least or stream == _ALL}


def _learn(known: Clock, *clocks: Clock) -> None:
    """Merge other clocks into a clock."""
    merged = _merge(known, *clocks)
    known.clear()
    known.update(merged)


_ids = itertools.count()
_FIRST_HANDLE = 1 << 32  # distinct from handles made elsewhere
_enqueued: Clock = {_ALL: 0}  # all work so far
_host: Clock = {}  # the work that the host has waited for
_returned: Clock = {}  # the work that the host knows to be done because a copy has returned


class Operation:
    """A launch or a copy, with the clock of the operations that it is ordered after."""

    def __init__(self, stream: Stream, name: str) -> None:
        self.stream, self.name, self.clock = stream.id, name, stream.clock
        self.number = self.clock[stream.id]
        self.extents = (1, 1, 1), (1, 1, 1)  # grid and block, of a launch

    def after(self, other: Operation) -> bool:
        """Whether `other` is complete before this one starts."""
        return other.is_in(self.clock)

    def is_in(self, clock: Clock) -> bool:
        """Whether a clock knows that the operation is complete."""
        return clock.get(_ALL, 0) >= self.number or clock.get(self.stream, 0) >= self.number


class Stream:
    """A CUDA stream. Streams run independently, but the default stream waits for all others, and they for it."""

    def __init__(self, handle: int | None = None) -> None:
        self.id = next(_ids)
        self.handle = _FIRST_HANDLE + self.id if handle is None else handle
        self.clock: Clock = {}
        _by_handle[self.handle] = self

    def __int__(self) -> int:
        return self.handle

    def __repr__(self) -> str:
        names = {id(_default): "default stream", id(_per_thread): "per-thread default stream"}
        return names.get(id(self), f"stream {self.handle}")

    def reached(self) -> Clock:
        """The clock that the stream's next operation will be ordered after."""
        return _merge(self.clock, _host, _enqueued if self is _default else _default.clock)

    def enqueue(self, name: str) -> Operation:
        """A new operation at the end of the stream."""
        with one_at_a_time:
            self.clock = self.reached()
            _enqueued[_ALL] += 1
            self.clock[self.id] = _enqueued[_ALL]
            return Operation(self, name)

    def synchronize(self) -> None:
        """Make the host wait for the work enqueued so far."""
        with one_at_a_time:
            _learn(_host, self.reached())

    def add_callback(self, callback: Callable[[Stream, int, Any], Any], arg: Any = None) -> None:
        """Call a function with the stream, status 0 and an argument once the work so far is done: immediately."""
        callback(self, 0, arg)

    async def async_done(self) -> None:
        """Wait for the work so far."""
        self.synchronize()

    @contextmanager
    def auto_synchronize(self) -> Iterator[Stream]:
        """Synchronize at the end of a with block."""
        yield self
        self.synchronize()


_by_handle: weakref.WeakValueDictionary[int, Stream] = weakref.WeakValueDictionary()
_default = Stream(0)
_per_thread = Stream(2)  # CUDA's own handles
_by_handle[1] = _default


class Event:
    """A CUDA event: a point in a stream's work."""

    def __init__(self, timing: bool = True) -> None:
        self.timing = timing
        self.clock: Clock | None = None
        self.time = 0.0

    def record(self, stream: Any = 0) -> None:
        """Mark the work enqueued on a stream so far."""
        with one_at_a_time:
            self.clock, self.time = as_stream(stream).reached(), time.perf_counter()

    def wait(self, stream: Any = 0) -> None:
        """Order a stream's later work after the marked work; an event never recorded orders nothing."""
        with one_at_a_time:
            stream = as_stream(stream)
            stream.clock = _merge(stream.clock, self.clock or {})

    def synchronize(self) -> None:
        """Make the host wait for the marked work."""
        with one_at_a_time:
            _learn(_host, self.clock or {})

    def query(self) -> bool:
        """Whether the marked work is complete, which is always true."""
        self.synchronize()
        return True

    def elapsed_time(self, end: Event) -> float:
        """Milliseconds from this event to another."""
        if not isinstance(end, Event):
            raise TypeError(f"end: expected an event, got {shown(end)}")
        if self.clock is None or end.clock is None or not (self.timing and end.timing):
            raise LaunchError("event_elapsed_time needs two recorded events with timing")
        return (end.time - self.time) * 1e3


def as_stream(stream: Any) -> Stream:
    """The Stream for a stream argument: 0 or None, a Stream, or a raw handle."""
    if isinstance(stream, Stream):
        return stream
    handle = 0 if stream is None else whole("stream", stream)
    if handle == 0:
        return _default
    with one_at_a_time:
        known = _by_handle.get(handle)
        if known is None:
            known = _adopted[handle] = Stream(handle)
        return known


_adopted: dict[int, Stream] = {}  # streams made elsewhere, known only by handle


def stream() -> Stream:
    """A new stream."""
    return Stream()


def default_stream() -> Stream:
    """The legacy default stream."""
    return _default


def per_thread_default_stream() -> Stream:
    """The default stream of a host thread: ordered only with the legacy default stream, as any stream is."""
    return _per_thread


def external_stream(ptr: int) -> Stream:
    """The stream of a handle made elsewhere."""
    return as_stream(ptr)


def event(timing: bool = True) -> Event:
    """A new event."""
    return Event(timing)


def event_elapsed_time(start: Event, end: Event) -> float:
    """Milliseconds between two recorded events."""
    return start.elapsed_time(end)


def is_waited_for(operation: Operation) -> bool:
    """Whether the host has waited for an operation."""
    return operation.is_in(_host) or operation.is_in(_returned)


def is_before_all(operation: Operation) -> bool:
    """Whether everything enqueued from now on is ordered after an operation; host accesses need not be."""
    return operation.is_in(_host) or operation.is_in(_default.clock)


def returned(operation: Operation) -> None:
    """A copy to the host has returned, so it is done: always on the default stream, on others to pageable memory.

    Only the former orders work that is enqueued later. A program that relies on the latter has a race as soon as its
    memory is pinned.
    """
    if operation.stream == _default.id:
        _learn(_host, _returned, operation.clock)
        _returned.clear()
    else:
        _learn(_returned, _host, operation.clock)


def synchronize() -> None:
    """Make the host wait for all work."""
    with one_at_a_time:
        _learn(_host, _enqueued)
