"""The log that `observe` yields, to which the executor reports what launches do."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import Any, NamedTuple
from weakref import WeakSet

import numpy as np

from ..base.diagnosis import two_places
from ..base.errors import DataRace, Deadlock, IntegerError, SimtError, Unsupported
from ..base.places import here
from ..base.state import current
from ..base.streams import Operation, Stream
from ..base.threads import Schedule, Thread
from ..compiled import Compiled
from ..machine.launch import Launch as Execution
from ..machine.warps import warp_barrier
from ..memory.arrays import Copy, DeviceArray
from ..memory.buffers import Buffer
from ..memory.initialized import blank
from ..memory.observed import ObservedArray
from ..memory.shared import with_fields
from ..names import ptx
from ..profile.profile import Profile
from ..rules import Rules
from .cells import EqualValues
from .counts import Counts
from .defects import Defects
from .doubles import Double, check, doubles_of
from .floats import Floats
from .integers import check_added, check_wrapped
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
    """The record of an observe block. The executor calls the methods from `launch` on."""

    def __init__(
        self, count: bool | Sequence[DeviceArray], watch: bool, schedules: list[Schedule], rules: Rules,
        doubles: str = "ignore", compile: bool = False, keep_going: bool = False, profile: bool = False,
        floats: bool = False,
    ) -> None:
        self.schedule, self._schedules, self.rules = schedules[0], schedules, rules
        self.found = Defects(keep_going)
        self.gives_way = False  # to other observe blocks, as one for a whole process does
        self._begun, self._again = 0, False  # launches; whether the current one is a rerun in another order
        self.doubles: list[Double] = []  # in order of first occurrence, each once
        self._on_doubles = doubles
        self.compiled: dict[str, str] | None = {} if compile else None  # the outcome, by kernel
        self.launches: list[Launch] = []
        self.copies: list[Copy] = []
        self.profile = Profile() if profile else None
        self.floats = Floats() if floats else None
        self._looks_closely = profile or floats  # then every access is recorded
        self._local: WeakSet[Buffer] = WeakSet()  # local arrays, which a compiler keeps in registers if it can
        self._count = count is not False  # of all arrays, or only of those in `_only`
        self._only = None if isinstance(count, bool) else frozenset(array.buffer.base for array in count)
        self._detector = Detector(rules, self.report) if watch else None
        self._reads, self._writes = Counts(), Counts()

    def concerns(self, buffer: Buffer) -> bool:
        """Whether accesses to a buffer must be reported to the log."""
        return self._detector is not None or self._looks_closely or self._counts(buffer)

    def _counts(self, buffer: Buffer) -> bool:
        return self._count and buffer.base != 0 and (self._only is None or buffer.base in self._only)

    def bytes_read(self, array: DeviceArray) -> int:
        """Bytes of the array that kernels loaded, by any route; an atomic operation loads and stores."""
        return self._reads.total(array)

    def bytes_written(self, array: DeviceArray) -> int:
        """Bytes of the array that kernels stored, by any route."""
        return self._writes.total(array)

    @property
    def defects(self) -> list[SimtError]:
        """The defects found, one per pair of lines; with `keep_going` all of them, up to `defects.MOST`."""
        return self.found.listed

    @property
    def tolerated(self) -> list[EqualValues]:
        """Where unordered threads wrote equal values, one per pair of lines."""
        return list(self._detector.tolerated.values()) if self._detector is not None else []

    def report(self, error: SimtError) -> None:
        """A defect was found: raise it, or list it."""
        self._ordered(error)
        if not self.found.goes_on:
            raise error
        self.found.add(error)

    def _ordered(self, error: SimtError) -> None:
        """Add the schedule that exposed a defect to its message."""
        if self._detector is not None and self._detector.running and error.order is None:
            error.order = str(self.schedule)
            if self._again or isinstance(error, DataRace):
                other = f", not with {self._schedules[0]}" if self._again else ""
                error.args = (f"{error}\n  found with schedule {self.schedule}{other}",)

    def run(self, operation: Operation, once: Callable[[], None]) -> None:
        """Run a launch, and rerun it in each other order that may expose more."""
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
        """Run a launch in an order; return whether it finished."""
        self.schedule = schedule
        schedule.begin(self._begun - 1)
        try:
            once()
        except Unsupported:
            raise
        except SimtError as error:
            if self._again and isinstance(error, Deadlock) and error.in_turn:
                return False  # a block waits for one that starts later in this order, which is not a defect
            self._ordered(error)
            if not self.found.goes_on:
                raise
            self.found.add(error.with_traceback(None))
            return False
        except Exception as error:
            if self._again:
                error.add_note(f"with schedule {schedule}, not with {self._schedules[0]}")
            raise
        return True

    @contextmanager
    def launch(self, run: Execution, operation: Operation, stream: Stream) -> Iterator[None]:
        """A launch, from start to end."""
        operation.extents = run.grid, run.block
        profile = self.profile if not self._again else None
        if profile is not None:
            profile.begin(run)
        try:
            yield
        finally:
            if profile is not None:
                profile.end()
            if self.floats is not None:
                self.floats.look_at_store()
            if self._count:
                self.launches.append(Launch(run.name, run.grid, run.block, stream, run.cooperative))

    def typed(self, kernel: Any, args: tuple, typed: Compiled) -> None:
        """A kernel was typed for the arguments of a launch, before the launch begins."""
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
        if self.floats is not None and not self._again:
            self.floats.begin()

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

    def copy(self, copy: Copy, operation: Operation, source: DeviceArray | None, target: DeviceArray | None) -> None:
        """The host requested a copy."""
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
        """A watched copy reads, or writes, a part of host memory that kernels also access."""
        assert self._detector is not None
        self._detector.copy(kind, operation, DeviceArray(buffer, part))

    def shared(self, buffer: Buffer, view: np.ndarray) -> Any:
        """A block made a shared array; return the array that its threads see."""
        if self._detector is not None and buffer.written is None:
            buffer.written = blank(buffer)
        close = self._detector is not None or self._looks_closely
        return ObservedArray(buffer, view, self) if close else with_fields(view)

    def local(self, buffer: Buffer, view: np.ndarray) -> Any:
        """A thread made a local array."""
        self._local.add(buffer)
        return self.shared(buffer, view)

    @property
    def watching(self) -> bool:
        """Whether the log looks for defects."""
        return self._detector is not None

    def read(self, buffer: Buffer, offset: int, nbytes: int, frame: FrameType | None = None) -> None:
        """The running thread loads, in a frame of the executor or in the frame that called it."""
        if self._counts(buffer):
            self._reads.add(buffer, offset, nbytes)
        if self._detector is not None:
            self._detector.read(buffer, offset, nbytes, frame or sys._getframe(1))
        if self._looks_closely:
            self._look("load", buffer, offset, nbytes)

    def _look(self, kind: str, buffer: Buffer, offset: int, nbytes: int) -> None:
        """Pass an access to the profile, and to the record of floats."""
        if self._again:
            return
        if self.profile is not None and buffer not in self._local:
            self.profile.access(kind, buffer, offset, nbytes, sys._getframe(2))
        if self.floats is not None:
            (self.floats.load if kind == "load" else self.floats.store)(buffer, offset, nbytes)

    def reader(self, buffer: Buffer) -> Callable[[Buffer, int, int, FrameType], None]:
        """The function to call for loads from a buffer: `read`, or the detector's directly where that is all."""
        if self._detector is None or self._looks_closely or self._counts(buffer):
            return self.read
        return self._detector.read

    def write(
        self, buffer: Buffer, offset: int, nbytes: int, value: Any, dtype: np.dtype, frame: FrameType | None = None
    ) -> None:
        """The running thread stores one or several values of a type."""
        if self._counts(buffer):
            self._writes.add(buffer, offset, nbytes)
        if self._detector is not None:
            self._detector.store(buffer, offset, nbytes, frame or sys._getframe(1), value, dtype)
        if self._looks_closely:
            self._look("store", buffer, offset, nbytes)

    def narrowed(self, value: int, lowest: Any) -> None:
        """The running thread converted an int64 to a type that cannot represent it."""
        if self._detector is not None and type(lowest) is np.int32 and self.rules.int32_overflow:
            current.thread.lost = value, lowest, here().line

    def beyond(self, value: float, name: str) -> None:
        """The running thread converted a float to an integer type whose range it is out of."""
        if self._detector is not None and self.rules.float_range:
            self.report(IntegerError(f"the float {value} does not fit in {name} (rule float-range)", here()))

    def wrapped(self, value: int, name: str) -> None:
        """The running thread computed an integer that a signed type cannot represent."""
        if self._detector is not None and self.rules.signed_overflow:
            check_wrapped(value, name)

    def added(self, old: Any, value: Any, new: Any, sign: int) -> None:
        """The running thread's last atomic added int32s."""
        if self._detector is not None and self.rules.int32_overflow:
            check_added(old, value, new, sign)

    def ticket(self) -> None:
        """The running thread's last atomic changed a value and is not a lock operation."""
        if self._detector is not None:
            self._detector.ticket()

    def atomic(self, buffer: Buffer, offset: int, nbytes: int, fresh: bool = False) -> None:
        """The running thread does an atomic operation."""
        if self._counts(buffer):
            self._reads.add(buffer, offset, nbytes)
            self._writes.add(buffer, offset, nbytes)
        if self._detector is not None:
            self._detector.atomic(buffer, offset, nbytes, sys._getframe(1), fresh)
        if self._looks_closely:
            self._look("atomic", buffer, offset, nbytes)
