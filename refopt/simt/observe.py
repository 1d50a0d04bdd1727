"""`observe`: what kernels did, counted and, if asked, watched for defects."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np

from .arguments import flag
from .arrays import Copy, DeviceArray
from .errors import LaunchError, here
from .launch import Launch as Execution
from .memory import Buffer
from .observed import ObservedArray
from .races import Detector
from .state import current, one_at_a_time
from .streams import Operation, Stream
from .threads import Schedule, Thread


class Launch(NamedTuple):
    """A launch that was observed."""

    kernel: str
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    stream: Stream
    cooperative: bool


class Log:
    """What was observed. The methods from `launch` on are how the executor reports."""

    def __init__(self, count: bool | Sequence[DeviceArray], watch: bool, schedule: Schedule) -> None:
        self.schedule = schedule
        self.launches: list[Launch] = []
        self.copies: list[Copy] = []
        self.profile: Any = None  # with `observe(profile=True)`, a `Profile`
        self.floats: Any = None  # with `observe(floats=True)`, a `Floats`
        self._count = bool(count) if isinstance(count, bool) else True
        self._only = None if isinstance(count, bool) else frozenset(array.buffer.base for array in count)
        self._detector = Detector() if watch else None
        self._reads: dict[int, dict[tuple[int, int], int]] = {}  # base -> (offset, nbytes) -> times
        self._writes: dict[int, dict[tuple[int, int], int]] = {}

    def concerns(self, buffer: Buffer) -> bool:
        """Whether access to a buffer is to be reported."""
        return self._detector is not None or (self._count and self._counts(buffer))

    def _counts(self, buffer: Buffer) -> bool:
        return buffer.base != 0 and (self._only is None or buffer.base in self._only)

    def bytes_read(self, array: DeviceArray) -> int:
        """Bytes of the array that kernels loaded, by any route; an atomic operation loads and stores."""
        return _total(self._reads.get(array.buffer.base, {}), array)

    def bytes_written(self, array: DeviceArray) -> int:
        """Bytes of the array that kernels stored, by any route."""
        return _total(self._writes.get(array.buffer.base, {}), array)

    @contextmanager
    def launch(self, run: Execution, operation: Operation, stream: Stream) -> Iterator[None]:
        """A launch, from start to end."""
        if self._detector is not None:
            self._detector.operation = operation
        try:
            yield
        finally:
            if self._count:
                self.launches.append(Launch(run.name, run.grid, run.block, stream, run.cooperative))

    def start(self, threads: list[Thread]) -> None:
        """A block becomes resident."""
        if self._detector is not None:
            self._detector.start(threads)

    def join(self, threads: list[Thread]) -> None:
        """Threads met at a barrier or warp operation."""
        if self._detector is not None:
            self._detector.join(threads)

    def fence(self, thread: Thread, device: bool) -> None:
        """A thread passed a fence."""
        if self._detector is not None:
            thread.clock.fence(device)

    def copy(
        self, copy: Copy, operation: Operation, source: DeviceArray | None, target: DeviceArray | None
    ) -> None:
        """The host asked for a copy."""
        if self._count:
            self.copies.append(copy)
        if self._detector is not None:
            if source is not None:
                self._detector.copy("read", operation, source)
            if target is not None:
                self._detector.copy("write", operation, target)

    def shared(self, buffer: Buffer, view: np.ndarray) -> Any:
        """A block made a shared array; what its threads see of it."""
        if self._detector is None:
            return view
        if buffer.written is None:
            buffer.written = bytearray(buffer.nbytes)
        return ObservedArray(buffer, view, self)

    def read(self, buffer: Buffer, offset: int, nbytes: int) -> None:
        """The running thread loads."""
        if self._count and self._counts(buffer):
            _add(self._reads, buffer.base, offset, nbytes)
        if self._detector is not None:
            self._detector.access("read", buffer, offset, nbytes)

    def write(self, buffer: Buffer, offset: int, nbytes: int) -> None:
        """The running thread stores."""
        if self._count and self._counts(buffer):
            _add(self._writes, buffer.base, offset, nbytes)
        if self._detector is not None:
            self._detector.access("write", buffer, offset, nbytes)

    def atomic(self, buffer: Buffer, offset: int, nbytes: int) -> None:
        """The running thread does an atomic operation."""
        if self._count and self._counts(buffer):
            _add(self._reads, buffer.base, offset, nbytes)
            _add(self._writes, buffer.base, offset, nbytes)
        if self._detector is not None:
            self._detector.access("atomic", buffer, offset, nbytes)


def _add(counts: dict[int, dict[tuple[int, int], int]], base: int, offset: int, nbytes: int) -> None:
    times = counts.get(base)
    if times is None:
        times = counts[base] = {}
    access = offset, nbytes
    times[access] = times.get(access, 0) + 1


def _total(times: dict[tuple[int, int], int], array: DeviceArray) -> int:
    before = [0, *array.coverage().cumsum().tolist()]  # bytes of the array among the first of the allocation
    return sum((before[at + n] - before[at]) * count for (at, n), count in times.items())


def _log(profile: bool, floats: bool, *args: Any) -> Log:
    if not (profile or floats):
        return Log(*args)
    from .instrumented import InstrumentedLog

    return InstrumentedLog(*args, profile=profile, floats=floats)


@contextmanager
def observe(
    count: bool | Sequence[DeviceArray] = True,
    watch: bool = False,
    schedule: str = "forward",
    seed: int = 0,
    profile: bool = False,
    floats: bool = False,
) -> Iterator[Log]:
    """Observe the launches of a with block: count launches and bytes, watch for defects, set the schedule.

    ``count`` may be a list of the arrays whose bytes are asked for: others are then as fast as without it.
    With ``profile``, ``log.profile`` has sectors of global memory, bank conflicts of shared memory and divergence, by
    line; with ``floats``, ``log.floats`` has where NaN, infinities, overflow and subnormal numbers arise.
    All threads of Python are observed. The block begins and ends between launches, never in one.
    """
    counted = count if isinstance(count, list | tuple) else flag("count", count)
    more = flag("profile", profile), flag("floats", floats)
    log = _log(*more, counted, flag("watch", watch), Schedule(schedule, seed))
    with one_at_a_time:
        if current.inside:
            raise LaunchError("a kernel cannot be observed from within", here())
        if current.observer is not None:
            raise RuntimeError("observe blocks do not nest, and no two threads have one at once")
        current.observer = log
    try:
        yield log
    finally:
        with one_at_a_time:
            current.observer = None
