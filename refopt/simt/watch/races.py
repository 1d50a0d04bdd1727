"""Finds data races, and reads of memory that nobody wrote.

An access is checked against those that conflict with it, in the cells of its bytes: the order of two accesses is
taken from clocks, never from which happened to run first. Each access costs the same however many threads share
the location: threads that met share a view, and what one of them has found in it the others need not look for.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from itertools import chain
from types import FrameType
from typing import Any

import numpy as np

from ..base.errors import DataRace, UninitializedRead
from ..base.places import Site, here
from ..base.state import current
from ..base.streams import Operation, is_before_all, is_waited_for
from ..base.threads import Thread
from ..memory.arrays import DeviceArray
from ..memory.buffers import Buffer, describe
from ..memory.initialized import track
from ..rules import Rules
from .cells import Access, Cell, Past, Shadow
from .clocks import KEY_BITS, ThreadClock, View, join, share

_RANK = (1 << KEY_BITS) - 1


class Detector:
    """Watches one observe block."""

    def __init__(self, rules: Rules) -> None:
        self.rules = rules
        self.operation: Any = None  # the launch that runs

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
        """The buffer's shadow in this observe block, entered by the launch that runs."""
        shadow = buffer.shadow
        if shadow is None or shadow.owner is not self:
            shadow = buffer.shadow = Shadow(self)
            if buffer.base:
                track(buffer)
        if shadow.operation is not self.operation and self.operation is not None:
            shadow.enter(self.operation)
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
        if cell.operation is not self.operation:
            cell.enter(self.operation)
        if cell.pending:
            self._check_pending("read", cell, clock, buffer, offset, frame)
        write = cell.write
        if write is not None and cell.write_known is not clock.view and cell.write_known is not clock.base:
            if _contains(clock.view, write):
                cell.write_known = clock.view
            elif write[0] != clock.key and not (cell.same and _knows_one(clock, cell.same)):
                raise self._race(buffer, offset, "write", write, "read", _access(clock, frame))
        unseen = cell.atomics and cell.atomics_known is not clock.view and cell.atomics_known is not clock.base
        if unseen and self._all_known("atomic", cell.atomics, clock, buffer, offset, "read", frame):
            cell.atomics_known = clock.view
        last = cell.reads.get(clock.key)
        if last is None or last[1] != clock.epoch:
            cell.reads[clock.key] = _access(clock, frame)
            cell.reads_known = None

    def write(self, buffer: Buffer, offset: int, nbytes: int, frame: FrameType, same: Callable[[], bool]) -> None:
        """The running thread stores; `same` tells whether that changes nothing."""
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
    ) -> None:  # fmt: skip
        if cell.operation is not self.operation:
            cell.enter(self.operation)
        if cell.pending:
            self._check_pending("write", cell, clock, buffer, offset, frame)
        joins = False  # writes what others write that it is not ordered with
        write = cell.write
        if write is not None and (cell.same or cell.write_known is not clock.view):
            for one in chain((write,), (cell.same or {}).values()):
                if not clock.knows(one[0], one[1]):
                    if self.rules.same_value or not same():
                        raise self._race(buffer, offset, "write", one, "write", access)
                    joins = True
                    break
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
        if not fresh:
            self._check_initialized(buffer, offset, nbytes)
        elif buffer.written is not None:
            buffer.written[offset : offset + nbytes] = b"\1" * nbytes
        self._check_copies("atomic", shadow, clock, buffer, offset, nbytes, frame)
        for cell in shadow.at(offset, nbytes):
            cell.written = True
            if cell.operation is not self.operation:
                cell.enter(self.operation)
            if cell.pending:
                self._check_pending("atomic", cell, clock, buffer, offset, frame)
            if cell.write is not None and (cell.same or cell.write_known is not clock.view):
                for one in (cell.write, *(cell.same or {}).values()):
                    if not clock.knows(one[0], one[1]):
                        raise self._race(buffer, offset, "write", one, "atomic", _access(clock, frame))
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
        """The atomic of the running thread changed something, and is no lock."""
        if not self.rules.both_fences:
            current.thread.clock.acquire()

    def copy(self, kind: str, operation: Operation, array: DeviceArray) -> None:
        """The host copies from or to an array."""
        buffer, mask = array.buffer, array.coverage()
        shadow = buffer.shadow
        if shadow is None or shadow.owner is not self:
            shadow = buffer.shadow = Shadow(self)
        access = Access(-1, 0, Site.of(sys._getframe(1)))
        self._check_launches(kind, buffer, mask, access, operation.after, operation)
        if kind == "write":  # what it copies may be uninitialised
            for cell in shadow.cells.values():
                cell.written = False
        kept = []
        for past, bytes_of in shadow.copies:
            if is_before_all(past.operation) and (not buffer.mapped or is_waited_for(past.operation)):
                continue
            if operation.after(past.operation):
                if (kind == "write" or past.kind == "read") and np.array_equal(bytes_of, mask):
                    continue
            elif "write" in (kind, past.kind) and (bytes_of & mask).any():
                first = int(np.argmax(bytes_of & mask))
                raise self._race(buffer, first, past.kind, past.access, kind, access, past.operation, operation)
            kept.append((past, bytes_of))
        shadow.copies = [*kept, (Past(kind, operation, access), mask)]

    def host(self, kind: str, buffer: Buffer, part: np.ndarray) -> None:
        """The host itself reads, or writes, a part of memory that kernels access as well."""
        access, mask = Access(-1, 0, Site.of(sys._getframe(1))), DeviceArray(buffer, part).coverage()
        self._check_launches(kind, buffer, mask, access, is_waited_for)
        for past, bytes_of in buffer.shadow.copies:
            if past.conflicts(kind) and not is_waited_for(past.operation) and (bytes_of & mask).any():
                first = int(np.argmax(bytes_of & mask))
                raise self._race(buffer, first, past.kind, past.access, kind, access, past.operation)

    def _check_launches(
        self, kind: str, buffer: Buffer, mask: np.ndarray, access: Access, after: Callable[[Operation], bool],
        operation: Operation | None = None,
    ) -> None:  # fmt: skip
        """Check an access by the host against those by launches; `after` tells which of them it is ordered after."""
        shadow = buffer.shadow
        if not shadow.cells:
            return
        touched = np.logical_or.reduceat(mask, np.arange(0, len(mask), shadow.width))
        for start in (np.flatnonzero(touched) * shadow.width).tolist():
            cell = shadow.cells.get(start)
            for past in [*cell.older, *cell.past()] if cell is not None else ():
                if past.conflicts(kind) and not after(past.operation):
                    raise self._race(buffer, start, past.kind, past.access, kind, access, past.operation, operation)

    def _all_known(
        self, first: str, accesses: dict[int, Access], clock: ThreadClock, buffer: Buffer, offset: int, kind: str,
        frame: FrameType,
    ) -> bool:  # fmt: skip
        """Whether the thread's view has all of these; one that is neither there nor its own is a race."""
        view, all_there = clock.view, True
        for one in accesses.values():
            vector = view.get(one[0] >> KEY_BITS)
            if vector is None or vector.item(one[0] & _RANK) < one[1]:
                if one[0] != clock.key:
                    raise self._race(buffer, offset, first, one, kind, _access(clock, frame))
                all_there = False
        return all_there

    def _check_pending(
        self, kind: str, cell: Cell, clock: ThreadClock, buffer: Buffer, offset: int, frame: FrameType
    ) -> None:
        for past in cell.pending:
            if past.conflicts(kind):
                raise self._race(buffer, offset, past.kind, past.access, kind, _access(clock, frame), past.operation)

    def _check_copies(
        self, kind: str, shadow: Shadow, clock: ThreadClock, buffer: Buffer, offset: int, nbytes: int, frame: FrameType
    ) -> None:
        for past, mask in shadow.unordered:
            if (kind != "read" or past.kind != "read") and mask[offset : offset + nbytes].any():
                raise self._race(buffer, offset, past.kind, past.access, kind, _access(clock, frame), past.operation)

    def _check_initialized(self, buffer: Buffer, offset: int, nbytes: int) -> None:
        written = buffer.written
        if written is None or not self.rules.uninitialized or 0 not in written[offset : offset + nbytes]:
            return
        # If another thread writes it although it was not asked to wait, that is a race, found by the caller.
        current.launch.stall()
        if 0 in written[offset : offset + nbytes]:
            raise UninitializedRead(
                f"read of uninitialised {describe(buffer, offset)}", here(), array=buffer.label, offset=offset
            )

    def _race(
        self, buffer: Buffer, offset: int, first: str, one: Access, second: str, other: Access,
        operation: Operation | None = None, current: Operation | None = None,
    ) -> DataRace:  # fmt: skip
        """The error for two accesses, by two operations or by the one that runs."""
        ends = (one, operation), (other, current)
        places = [Access(key, epoch, Site(*site)).place(by or self.operation) for (key, epoch, site), by in ends]
        pair = f"  {first} in {places[0]}\n  not ordered with {second}"
        return DataRace(
            f"data race on {describe(buffer, offset)}\n{pair}",
            places[1],
            array=buffer.label,
            offset=offset,
            first=places[0],
            second=places[1],
        )


def _contains(view: View, access: Access) -> bool:
    """Whether a view has an access."""
    vector = view.get(access[0] >> KEY_BITS)
    return vector is not None and vector.item(access[0] & _RANK) >= access[1]


def _knows_one(clock: ThreadClock, accesses: dict[int, Access]) -> bool:
    """Whether a thread did one of these, or knows one."""
    return clock.key in accesses or any(clock.knows(one[0], one[1]) for one in accesses.values())


def _access(clock: ThreadClock, frame: FrameType) -> Access:
    """The access that the running thread does, at a frame of the executor or outside."""
    code = frame.f_code
    # Plain tuples, which take a third of the time; `_race` makes of them what they are.
    site: Any = (code, frame.f_lasti, None, 0) if code is current.kernel_code else Site.of(frame)
    access: Any = (clock.key, clock.epoch, site)
    return access
