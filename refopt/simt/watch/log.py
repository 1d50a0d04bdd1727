"""What was observed of launches: the log that `observe` gives, to which the executor reports."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import Any, NamedTuple

import numpy as np

from ..base.diagnosis import two_places
from ..base.errors import DataRace, Deadlock, SimtError, Unsupported
from ..base.places import here
from ..base.state import current
from ..base.streams import Operation, Stream
from ..base.threads import Schedule, Thread
from ..base.undefined import refuse
from ..compiled import Compiled
from ..machine.launch import Launch as Execution
from ..machine.warps import warp_barrier
from ..memory.arrays import Copy, DeviceArray
from ..memory.buffers import Buffer
from ..memory.initialized import blank
from ..memory.observed import ObservedArray
from ..names import ptx
from ..rules import Rules
from .cells import EqualValues
from .defects import Defects
from .doubles import Double, check, doubles_of
from .integers import check_added, check_stored
from .orders import run_again
from .races import Detector


class Launch(NamedTuple):
    """A launch that was observed."""

    kernel: str
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    stream: Stream
    cooperative: bool


class Log:
    """What was observed. The methods from `launch` on are how the executor reports."""

    def __init__(
        self, count: bool | Sequence[DeviceArray], watch: bool, schedules: list[Schedule], rules: Rules,
        doubles: str = "ignore", compile: bool = False, keep_going: bool = False,
    ) -> None:  # fmt: skip
        self.schedule, self.rules = schedules[0], rules
        self.found = Defects(keep_going)
        self.gives_way = False  # to other observe blocks, as that of a whole process does
        self._schedules = schedules
        self._begun = 0  # launches
        self._again = False  # the launch that runs has run in another order
        self.doubles: list[Double] = []  # in the order in which they were met, each once
        self._on_doubles = doubles
        self.compiled: dict[str, str] | None = {} if compile else None  # what came of it, by the kernel
        self.launches: list[Launch] = []
        self.copies: list[Copy] = []
        self.profile: Any = None  # with `observe(profile=True)`, a `Profile`
        self.floats: Any = None  # with `observe(floats=True)`, a `Floats`
        self._count = bool(count) if isinstance(count, bool) else True
        self._only = None if isinstance(count, bool) else frozenset(array.buffer.base for array in count)
        self._detector = Detector(rules, self.report) if watch else None
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

    @property
    def defects(self) -> list[SimtError]:
        """The defects that were found, each once by its lines; with `keep_going` all, up to `defects.MOST`."""
        return self.found.listed

    @property
    def tolerated(self) -> list[EqualValues]:
        """Where threads that are not ordered wrote equal values, each once by its lines."""
        return list(self._detector.tolerated.values()) if self._detector is not None else []

    def report(self, error: SimtError) -> None:
        """A defect was found: it is raised, or listed."""
        self._ordered(error)
        if not self.found.goes_on:
            raise error
        self.found.add(error)

    def _ordered(self, error: SimtError) -> None:
        """Note the order that shows a defect."""
        if self._detector is not None and self._detector.running and error.order is None:
            error.order = str(self.schedule)
            if self._again or isinstance(error, DataRace):
                other = f", not by {self._schedules[0]}" if self._again else ""
                error.args = (f"{error}\n  shown by the order {self.schedule}{other}",)

    def run(self, operation: Operation, once: Callable[[], None]) -> None:
        """Run a launch, and once more in each other order that may show more."""
        self._begun += 1
        detector, others, counting = self._detector, self._schedules[1:], self._count
        if detector is not None:
            detector.begin(operation, bool(others))
        try:
            ended = self._run(self._schedules[0], once)
            if detector is not None and others and detector.may_differ and ended:
                self._again, self._count = True, False
                run_again(lambda schedule: self._run(schedule, once), others, detector)
        finally:
            self._again, self._count, self.schedule = False, counting, self._schedules[0]
            if detector is not None:
                detector.end()

    def _run(self, schedule: Schedule, once: Callable[[], None]) -> bool:
        """Run a launch in an order; whether it came to its end."""
        self.schedule = schedule
        schedule.begin(self._begun - 1)
        try:
            once()
        except Unsupported:
            raise
        except SimtError as error:
            if self._again and isinstance(error, Deadlock) and error.in_turn:
                return False  # a block has to wait for one that comes later in this order, which tells nothing
            self._ordered(error)
            if not self.found.goes_on:
                raise
            self.found.add(error.with_traceback(None))
            return False
        except Exception as error:
            if self._again:
                error.add_note(f"in the order {schedule}, not in {self._schedules[0]}")
            raise
        return True

    @contextmanager
    def launch(self, run: Execution, operation: Operation, stream: Stream) -> Iterator[None]:
        """A launch, from start to end."""
        operation.extents = run.grid, run.block
        try:
            yield
        finally:
            if self._count:
                self.launches.append(Launch(run.name, run.grid, run.block, stream, run.cooperative))

    def typed(self, kernel: Any, args: tuple, typed: Compiled) -> None:
        """A kernel was typed for the arguments of a launch, which has not begun."""
        if self.compiled is not None:
            self.compiled[kernel.__name__] = ptx.compiled(kernel, args)
        if self._on_doubles != "ignore":
            doubles = doubles_of(kernel.__name__, args, typed)
            if self._on_doubles == "refuse":
                check(doubles)
            self.doubles += [double for double in doubles if double not in self.doubles]

    def start(self, threads: list[Thread]) -> None:
        """A block becomes resident."""
        if self._detector is not None:
            self._detector.start(threads)

    def join(self, threads: list[Thread]) -> None:
        """Threads met at a barrier."""
        if self._detector is not None:
            self._detector.join(threads)

    def met(self, operation: Any, lanes: list[Thread]) -> None:
        """Lanes met in a warp operation: `syncwarp` orders memory, the others do not."""
        if self._detector is None:
            return
        joins = operation is warp_barrier
        if joins or not self.rules.warp_order:
            self._detector.join(lanes)
        if not joins and self.rules.shuffle_sites and len({lane.met for lane in lanes}) > 1:
            self.report(two_places(current.launch, lanes))

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
                if copy.kind == "DtoH":
                    self._detector.copied_out(source)
            if target is not None:
                self._detector.copy("write", operation, target)

    def host_copy(self, kind: str, operation: Operation, buffer: Buffer, part: np.ndarray) -> None:
        """A copy reads, or writes, a part of host memory that kernels access as well."""
        if self._detector is not None:
            self._detector.copy(kind, operation, DeviceArray(buffer, part))

    def shared(self, buffer: Buffer, view: np.ndarray) -> Any:
        """A block made a shared array; what its threads see of it."""
        if self._detector is None:
            return view
        if buffer.written is None:
            buffer.written = blank(buffer)
        return ObservedArray(buffer, view, self)

    def local(self, buffer: Buffer, view: np.ndarray) -> Any:
        """A thread made a local array."""
        return self.shared(buffer, view)

    @property
    def watching(self) -> bool:
        """Whether defects are looked for."""
        return self._detector is not None

    def read(self, buffer: Buffer, offset: int, nbytes: int, frame: FrameType | None = None) -> None:
        """The running thread loads, in a frame of the executor or in the one it was called from."""
        if self._count and self._counts(buffer):
            _add(self._reads, buffer.base, offset, nbytes)
        if self._detector is not None:
            self._detector.read(buffer, offset, nbytes, frame or sys._getframe(1))

    def reader(self, buffer: Buffer) -> Callable[[Buffer, int, int, FrameType], None]:
        """What is to be told of loads from a buffer: `read`, or what it would tell."""
        if self._detector is None or (self._count and self._counts(buffer)):
            return self.read
        return self._detector.read

    def write(
        self, buffer: Buffer, offset: int, nbytes: int, value: Any, dtype: np.dtype, frame: FrameType | None = None
    ) -> None:
        """The running thread stores a value of a type, or several of them."""
        if self._count and self._counts(buffer):
            _add(self._writes, buffer.base, offset, nbytes)
        if self._detector is not None:
            refuse(value, f"a write to {buffer.label}")
            if type(value) is np.int32 and current.thread.lost is not None:
                check_stored(value, dtype, buffer.label)

            def same() -> bool:
                return bytes(buffer.data[offset : offset + nbytes]) == np.array(value, dtype).tobytes()

            self._detector.write(buffer, offset, nbytes, frame or sys._getframe(1), same)

    def narrowed(self, value: int, lowest: Any) -> None:
        """The running thread made an int64 a type that does not hold it."""
        if self._detector is not None and type(lowest) is np.int32 and self.rules.int32_overflow:
            current.thread.lost = value, lowest, here().line

    def added(self, old: Any, value: Any, new: Any, sign: int) -> None:
        """The last atomic of the running thread made a sum of int32s."""
        if self._detector is not None and self.rules.int32_overflow:
            check_added(old, value, new, sign)

    def ticket(self) -> None:
        """The last atomic of the running thread changed something, and is no lock."""
        if self._detector is not None:
            self._detector.ticket()

    def atomic(self, buffer: Buffer, offset: int, nbytes: int, fresh: bool = False) -> None:
        """The running thread does an atomic operation."""
        if self._count and self._counts(buffer):
            _add(self._reads, buffer.base, offset, nbytes)
            _add(self._writes, buffer.base, offset, nbytes)
        if self._detector is not None:
            self._detector.atomic(buffer, offset, nbytes, sys._getframe(1), fresh)


def _add(counts: dict[int, dict[tuple[int, int], int]], base: int, offset: int, nbytes: int) -> None:
    times = counts.get(base)
    if times is None:
        times = counts[base] = {}
    access = offset, nbytes
    times[access] = times.get(access, 0) + 1


def _total(times: dict[tuple[int, int], int], array: DeviceArray) -> int:
    before = [0, *array.coverage().cumsum().tolist()]  # bytes of the array among the first of the allocation
    return sum((before[at + n] - before[at]) * count for (at, n), count in times.items())
