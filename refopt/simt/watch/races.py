"""Finds data races, and reads of memory that was never written.

Each access is checked against conflicting ones in the cells of its bytes. Clocks decide the order of two accesses, not
which one happened to run first. The cost of an access does not depend on how many threads share the location: threads
that met share a view, and a lookup by one of them serves the others.
"""

from __future__ import annotations

from collections.abc import Callable
from types import FrameType
from typing import Any

import numpy as np

from ..base.errors import SimtError, UninitializedRead
from ..base.places import Site, here
from ..base.state import current
from ..base.streams import Operation
from ..base.threads import Thread
from ..base.undefined import refuse
from ..memory.buffers import Buffer, describe
from ..memory.initialized import Kept, kept, track
from ..rules import Rules
from .cells import Access, Cell, EqualValues, Shadow, knows_one, unordered
from .clocks import KEY_BITS, ThreadClock, View, join, share
from .host import Reports
from .integers import check_stored

_RANK = (1 << KEY_BITS) - 1


class Detector(Reports):
    """The detector of one observe block."""

    def __init__(self, rules: Rules, report: Callable[[SimtError], None]) -> None:
        super().__init__(rules, report)
        self.tolerated: dict[tuple, EqualValues] = {}  # by lines
        self.running = False
        self.may_differ = False  # whether another order of the launch's threads may expose more
        # The buffers that the launch accesses, as they were before it; None if it is not rerun.
        self.touched: list[Kept] | None = None

    def begin(self, operation: Operation, again: bool) -> None:
        """A launch starts; `again` says whether it may be rerun."""
        self.operation, self.may_differ, self.running = operation, False, True
        self.touched = [] if again else None

    def end(self) -> None:
        """The launch has ended."""
        self.running, self.touched = False, None

    def start(self, threads: list[Thread]) -> None:
        """A block of the launch starts."""
        for thread in threads:
            thread.clock = ThreadClock(thread.block.number, thread.rank, len(threads))

    def join(self, threads: list[Thread]) -> None:
        """Threads met."""
        clocks = [thread.clock for thread in threads]
        if not self.rules.both_fences:
            for clock in clocks:
                clock.acquire()
            share(clocks)
        join(clocks)

    def shadow(self, buffer: Buffer) -> Shadow:
        """The buffer's shadow in this observe block, entered by the running launch."""
        shadow = buffer.shadow
        if shadow is None or shadow.owner is not self:
            shadow = buffer.shadow = Shadow(self)
            if buffer.base:
                track(buffer)
        if shadow.operation is not self.operation and self.operation is not None:
            shadow.enter(self.operation)
            if self.touched is not None and buffer.base and buffer.data.flags.writeable:
                self.touched.append(kept(buffer))
        return shadow

    def read(self, buffer: Buffer, offset: int, nbytes: int, frame: FrameType) -> None:
        """The running thread loads."""
        shadow = buffer.shadow
        if shadow is None or shadow.operation is not self.operation:
            shadow = self.shadow(buffer)
        clock = current.thread.clock
        cell = shadow.cells.get(offset)
        if cell is not None and nbytes == shadow.width and cell.written and not shadow.unordered:
            self._read(cell, clock, buffer, offset, frame)
            return
        self._check_initialized(buffer, offset, nbytes)
        self._check_copies("read", shadow, clock, buffer, offset, nbytes, frame)
        for cell in shadow.at(offset, nbytes):
            cell.written = True
            self._read(cell, clock, buffer, offset, frame)

    def _read(self, cell: Cell, clock: ThreadClock, buffer: Buffer, offset: int, frame: FrameType) -> None:
        if cell.operation is not self.operation or cell.pending:
            self._enter("read", cell, clock, buffer, offset, frame)
        write = cell.write
        if write is not None and cell.write_known is not clock.view and cell.write_known is not clock.base:
            if _contains(clock.view, write):
                cell.write_known = clock.view
            elif write[0] != clock.key and not (cell.same and knows_one(clock, cell.same)):
                self._race(buffer, offset, "write", write, "read", _access(clock, frame))
        unseen = cell.atomics and cell.atomics_known is not clock.view and cell.atomics_known is not clock.base
        if unseen and self._all_known("atomic", cell.atomics, clock, buffer, offset, "read", frame):
            cell.atomics_known = clock.view
        last = cell.reads.get(clock.key)
        if last is None or last[1] != clock.epoch:
            cell.reads[clock.key] = _access(clock, frame)
            cell.reads_known = None

    def store(
        self, buffer: Buffer, offset: int, nbytes: int, frame: FrameType, value: Any, dtype: np.dtype
    ) -> None:
        """The running thread stores one or several values of a type."""
        refuse(value, f"a write to {buffer.label}")
        if type(value) is np.int32 and current.thread.lost is not None:
            check_stored(value, dtype, buffer.label)

        def same() -> bool:
            return bytes(buffer.data[offset : offset + nbytes]) == np.array(value, dtype).tobytes()

        self.write(buffer, offset, nbytes, frame, same)

    def write(self, buffer: Buffer, offset: int, nbytes: int, frame: FrameType, same: Callable[[], bool]) -> None:
        """The running thread stores; `same` says whether the store changes nothing."""
        shadow, clock = self.shadow(buffer), current.thread.clock
        access = _access(clock, frame)
        self._check_copies("write", shadow, clock, buffer, offset, nbytes, frame)
        if buffer.written is not None:
            buffer.written[offset : offset + nbytes] = b"\1" * nbytes
        one = shadow.cells.get(offset)
        for cell in (one,) if one is not None and nbytes == shadow.width else shadow.at(offset, nbytes):
            cell.written = True
            self._write(cell, clock, buffer, offset, access, frame, same)

    def _write(
        self, cell: Cell, clock: ThreadClock, buffer: Buffer, offset: int, access: Access, frame: FrameType,
        same: Callable[[], bool],
    ) -> None:
        if cell.operation is not self.operation or cell.pending:
            self._enter("write", cell, clock, buffer, offset, frame)
        joins = False  # whether it writes the same value as an unordered thread
        if cell.write is not None and (cell.same or cell.write_known is not clock.view):
            others = cell.write, *(cell.same or {}).values()
            other = next((one for one in others if not clock.knows(one[0], one[1])), None)
            joins = other is not None and not self.rules.same_value and same()
            if other is not None and joins:
                self._tolerate(buffer, other, access)
            elif other is not None:
                self._race(buffer, offset, "write", unordered(clock, others)[0], "write", access)
        if cell.atomics:
            self._all_known("atomic", cell.atomics, clock, buffer, offset, "write", frame)
        if joins:
            if cell.same is None:
                cell.same = {}
            cell.same[clock.key] = access
            return
        if cell.reads:
            self._all_known("read", cell.reads, clock, buffer, offset, "write", frame)
            cell.reads.clear()
        cell.write, cell.same, cell.write_known = access, None, None
        cell.atomics.clear()

    def atomic(self, buffer: Buffer, offset: int, nbytes: int, frame: FrameType, fresh: bool) -> None:
        """The running thread does an atomic operation."""
        shadow, clock = self.shadow(buffer), current.thread.clock
        self.may_differ = True
        if not fresh:
            self._check_initialized(buffer, offset, nbytes)
        elif buffer.written is not None:
            buffer.written[offset : offset + nbytes] = b"\1" * nbytes
        self._check_copies("atomic", shadow, clock, buffer, offset, nbytes, frame)
        for cell in shadow.at(offset, nbytes):
            cell.written = True
            if cell.operation is not self.operation or cell.pending:
                self._enter("atomic", cell, clock, buffer, offset, frame)
            if cell.write is not None and (cell.same or cell.write_known is not clock.view):
                for one in unordered(clock, (cell.write, *(cell.same or {}).values()))[:1]:
                    self._race(buffer, offset, "write", one, "atomic", _access(clock, frame))
            unseen = cell.reads and cell.reads_known is not clock.view and cell.reads_known is not clock.base
            if unseen and self._all_known("read", cell.reads, clock, buffer, offset, "atomic", frame):
                cell.reads_known = clock.view
            last = cell.atomics.get(clock.key)
            if last is None or last[1] != clock.epoch:
                cell.atomics[clock.key] = _access(clock, frame)
                cell.atomics_known = None
        clock.atomic(shadow.released.setdefault(offset, {}))
        if not self.rules.acquire:
            clock.acquire()

    def ticket(self) -> None:
        """The running thread's atomic changed a value and is not a lock operation."""
        if not self.rules.both_fences:
            current.thread.clock.acquire()

    def _all_known(
        self, first: str, accesses: dict[int, Access], clock: ThreadClock, buffer: Buffer, offset: int, kind: str,
        frame: FrameType,
    ) -> bool:
        """Whether the thread's view has all of these; an unknown access by another thread is a race."""
        view, all_there, race = clock.view, True, False
        for one in accesses.values():
            vector = view.get(one[0] >> KEY_BITS)
            if vector is None or vector.item(one[0] & _RANK) < one[1]:
                all_there = False
                race = race or one[0] != clock.key
        if race:
            self._race(buffer, offset, first, unordered(clock, accesses.values())[0], kind, _access(clock, frame))
        return all_there

    def _tolerate(self, buffer: Buffer, one: Access, other: Access) -> None:
        """Note that equal values were written."""
        self.may_differ = True
        sites = buffer.label, one[2], other[2]
        if sites not in self.tolerated:
            first, second = (Access(key, epoch, Site(*at)).place(self.operation) for key, epoch, at in (one, other))
            self.tolerated[sites] = EqualValues(buffer.label, first, second)

    def _enter(
        self, kind: str, cell: Cell, clock: ThreadClock, buffer: Buffer, offset: int, frame: FrameType
    ) -> None:
        """Enter the running launch into a cell, and check its access against those of earlier operations."""
        if cell.operation is not self.operation:
            cell.enter(self.operation)
        for past in cell.pending:
            if past.conflicts(kind):
                self._race(buffer, offset, past.kind, past.access, kind, _access(clock, frame), past.operation)

    def _check_copies(
        self, kind: str, shadow: Shadow, clock: ThreadClock, buffer: Buffer, offset: int, nbytes: int, frame: FrameType
    ) -> None:
        for past, mask in shadow.unordered:
            if past.conflicts(kind) and mask[offset : offset + nbytes].any():
                self._race(buffer, offset, past.kind, past.access, kind, _access(clock, frame), past.operation)

    def _check_initialized(self, buffer: Buffer, offset: int, nbytes: int) -> None:
        written = buffer.written
        if written is None or not self.rules.uninitialized or 0 not in written[offset : offset + nbytes]:
            return
        # If another thread writes it meanwhile, unordered, that is a race, which the caller finds.
        current.launch.stall()
        if 0 in written[offset : offset + nbytes]:
            what = f"read of uninitialized {describe(buffer, offset)}"
            self.report(UninitializedRead(what, here(), array=buffer.label, offset=offset))


def _contains(view: View, access: Access) -> bool:
    """Whether a view has an access."""
    vector = view.get(access[0] >> KEY_BITS)
    return vector is not None and vector.item(access[0] & _RANK) >= access[1]


def _access(clock: ThreadClock, frame: FrameType) -> Access:
    """The running thread's access, from a frame of the executor or outside it."""
    code = frame.f_code
    # Plain tuples take a third of the time; `_race` turns them into `Access` and `Site`.
    site: Any = (code, frame.f_lasti, None, 0) if code is current.kernel_code else Site.of(frame)
    access: Any = (clock.key, clock.epoch, site)
    return access
