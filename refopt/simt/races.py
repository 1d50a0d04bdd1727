"""Finds data races, and reads of shared memory that nobody wrote.

Every byte that is accessed has a cell in the shadow of its buffer: the last write, and the reads and
atomics since. An access is checked against those that conflict with it: the order of two accesses is taken
from clocks, never from which happened to run first. Cells cover as many bytes as the accesses allow,
usually one element.
"""

from __future__ import annotations

import math
import sys
from typing import Any, NamedTuple

import numpy as np

from .arrays import DeviceArray
from .clocks import ThreadClock, View, join
from .errors import DataRace, Place, Site, UninitializedRead, here
from .memory import Buffer, describe
from .state import current
from .streams import Operation
from .threads import Thread


class Access(NamedTuple):
    """One access by a thread of a launch, or by a copy (which has no thread and no clock)."""

    kind: str  # read, write or atomic
    operation: Operation
    block: int
    rank: int
    epoch: int
    site: Site
    block_index: tuple[int, int, int] | None
    thread_index: tuple[int, int, int] | None

    def place(self) -> Place:
        """Where it was."""
        kernel = None if self.thread_index is None else self.operation.name
        return self.site.place(kernel, self.block_index, self.thread_index)


class Cell:
    """The accesses to some bytes that later ones must be ordered after."""

    __slots__ = ("atomics", "reads", "write")

    def __init__(self, other: Cell | None = None) -> None:
        self.write: Access | None = other.write if other else None
        self.reads: dict[Any, Access] = dict(other.reads) if other else {}  # by thread
        self.atomics: dict[Any, Access] = dict(other.atomics) if other else {}

    def conflicts(self, kind: str) -> list[Access]:
        """The accesses that one of this kind must be ordered after."""
        found = [self.write] if self.write else []
        if kind != "read":
            found += self.reads.values()
        if kind != "atomic":
            found += self.atomics.values()
        return found

    def record(self, access: Access) -> None:
        """Remember an access that is ordered after all it conflicts with: a write stands for all of them."""
        if access.kind == "write":
            self.write = access
            self.reads.clear()
            self.atomics.clear()
            return
        past = self.reads if access.kind == "read" else self.atomics
        # Operations run one after another: if the last entry is of this one, the others have been gone through.
        if past and next(reversed(past.values())).operation is not access.operation:
            for other, earlier in list(past.items()):
                if access.operation.after(earlier.operation):
                    del past[other]
        past[access.operation, access.block, access.rank] = access


class Shadow:
    """The cells of one buffer, the copies from and to it, and what atomics on it have released."""

    def __init__(self, owner: Detector) -> None:
        self.owner = owner
        self.width = 0  # bytes of a cell
        self.cells: dict[int, Cell] = {}
        self.copies: list[tuple[Access, np.ndarray]] = []  # with a mask of the bytes
        self.operation: Operation | None = None  # the launch that the rest belongs to
        self.unordered: list[tuple[Access, np.ndarray]] = []  # copies that it is not ordered after
        self.released: dict[int, dict[int | None, View]] = {}  # offset -> scope -> view

    def enter(self, operation: Operation) -> None:
        """Another launch accesses the buffer."""
        self.operation = operation
        self.unordered = [copy for copy in self.copies if not operation.after(copy[0].operation)]
        self.released.clear()

    def at(self, offset: int, nbytes: int) -> list[Cell]:
        """The cells of a range, split if they do not fit it."""
        width = math.gcd(self.width, offset, nbytes)
        if width != self.width:
            parts = self.width // width
            self.cells = {
                number * parts + part: Cell(cell)
                for number, cell in self.cells.items()
                for part in range(parts)
            }
            self.width = width
        found = []
        for number in range(offset // width, (offset + nbytes) // width):
            cell = self.cells.get(number)
            if cell is None:
                cell = self.cells[number] = Cell()
            found.append(cell)
        return found


class Detector:
    """Watches one observe block."""

    def __init__(self) -> None:
        self.operation: Any = None  # the launch that runs

    def start(self, threads: list[Thread]) -> None:
        """A block of the launch starts."""
        for thread in threads:
            thread.clock = ThreadClock(thread.block.number, thread.rank, len(threads))

    def join(self, threads: list[Thread]) -> None:
        """Threads met."""
        join([thread.clock for thread in threads])

    def shadow(self, buffer: Buffer) -> Shadow:
        """The buffer's shadow in this observe block."""
        shadow = buffer.shadow
        if shadow is None or shadow.owner is not self:
            shadow = buffer.shadow = Shadow(self)
        return shadow

    def access(self, kind: str, buffer: Buffer, offset: int, nbytes: int) -> None:
        """The running thread accesses memory."""
        thread, operation, shadow = current.thread, self.operation, self.shadow(buffer)
        clock = thread.clock
        if shadow.operation is not operation:
            shadow.enter(operation)
        access = Access(
            kind,
            operation,
            clock.block,
            clock.rank,
            clock.epoch,
            Site.of(sys._getframe(1)),
            thread.block.index,
            thread.index,
        )
        if buffer.written is not None:
            _track_initialization(kind, buffer, offset, nbytes)
        for other, mask in shadow.unordered:
            if (kind != "read" or other.kind != "read") and mask[offset : offset + nbytes].any():
                raise race(buffer, offset, other, access)
        for cell in shadow.at(offset, nbytes):
            for other in cell.conflicts(kind):
                ordered = (
                    clock.knows(other.block, other.rank, other.epoch)
                    if other.operation is operation
                    else operation.after(other.operation)
                )
                if not ordered:
                    raise race(buffer, offset, other, access)
            cell.record(access)
        if kind == "atomic":
            clock.atomic(shadow.released.setdefault(offset, {}))

    def copy(self, kind: str, operation: Operation, array: DeviceArray) -> None:
        """The host copies from or to an array."""
        buffer, shadow, mask = array.buffer, self.shadow(array.buffer), array.coverage()
        access = Access(kind, operation, 0, 0, 0, Site.of(sys._getframe(1)), None, None)
        for number, cell in shadow.cells.items():
            start = number * shadow.width
            for other in cell.conflicts(kind):
                if not operation.after(other.operation) and mask[start : start + shadow.width].any():
                    raise race(buffer, start, other, access)
        kept = []
        for other, bytes_of in shadow.copies:
            if operation.after(other.operation):
                superseded = (kind == "write" or other.kind == "read") and np.array_equal(bytes_of, mask)
                if superseded:
                    continue
            elif "write" in (kind, other.kind) and (bytes_of & mask).any():
                raise race(buffer, int(np.argmax(bytes_of & mask)), other, access)
            kept.append((other, bytes_of))
        shadow.copies = [*kept, (access, mask)]


def _track_initialization(kind: str, buffer: Buffer, offset: int, nbytes: int) -> None:
    assert buffer.written is not None
    if kind != "write" and not all(buffer.written[offset : offset + nbytes]):
        # If another thread writes it although it was not asked to wait, that is a race, found by the caller.
        current.launch.stall()
        if not all(buffer.written[offset : offset + nbytes]):
            raise UninitializedRead(
                f"read of uninitialised {describe(buffer, offset)}", here(), array=buffer.label, offset=offset
            )
    if kind == "write":
        buffer.written[offset : offset + nbytes] = b"\1" * nbytes


def race(buffer: Buffer, offset: int, first: Access, second: Access) -> DataRace:
    """The error for two accesses."""
    places = first.place(), second.place()
    pair = f"  {first.kind} in {places[0]}\n  not ordered with {second.kind}"
    return DataRace(
        f"data race on {describe(buffer, offset)}\n{pair}",
        places[1],
        array=buffer.label,
        offset=offset,
        first=places[0],
        second=places[1],
    )
