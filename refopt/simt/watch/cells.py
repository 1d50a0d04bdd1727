"""The race detector's record of each byte: the accesses that later ones must be ordered after.

Every accessed byte has a cell in the shadow of its buffer. Cells are as wide as the accesses allow, usually one
element. For the running launch, a cell keeps the last write and, since then, one read and one atomic per thread.
Earlier launches and copies are ordered as a whole, so one access of each kind represents them all.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np

from ..base.errors import Place
from ..base.places import Site
from ..base.streams import Operation
from .clocks import KEY_BITS, ThreadClock, View


class Access(NamedTuple):
    """One access by a thread of a launch, or by the host (whose key is negative)."""

    key: int  # block << KEY_BITS | rank
    epoch: int
    site: Site

    def place(self, operation: Operation) -> Place:
        """Where the access happened."""
        if self.key < 0:
            return self.site.place(None)
        grid, block = operation.extents
        return self.site.place(
            operation.name, _index(self.key >> KEY_BITS, grid), _index(self.key & (1 << KEY_BITS) - 1, block)
        )


class EqualValues(NamedTuple):
    """Two unordered threads wrote the same value to the same place, which the rule `same-value` would report."""

    array: str
    first: Place
    second: Place

    def __str__(self) -> str:
        return f"equal values written to {self.array}, unordered (rule same-value): {self.first} and {self.second}"


class Past(NamedTuple):
    """An access that represents all of its kind by one operation."""

    kind: str  # read, write or atomic
    operation: Operation
    access: Access

    def conflicts(self, kind: str) -> bool:
        """Whether an access of a kind must be ordered after it."""
        return "write" in (kind, self.kind) or kind != self.kind


def unordered(clock: ThreadClock, accesses: Iterable[Access]) -> list[Access]:
    """Accesses by other threads that are not ordered before this thread's next access, nearest thread first."""
    unknown = [one for one in accesses if not clock.knows(one[0], one[1])]
    if len(unknown) > 1:
        unknown.sort(key=lambda one: (one[0] >> KEY_BITS != clock.block, abs(one[0] - clock.key)))
    return unknown


def knows_one(clock: ThreadClock, accesses: dict[int, Access]) -> bool:
    """Whether a thread made one of these accesses, or is ordered after one."""
    return clock.key in accesses or any(clock.knows(one[0], one[1]) for one in accesses.values())


def _index(number: int, extents: tuple[int, int, int]) -> tuple[int, int, int]:
    x, y, _ = extents
    return number % x, number // x % y, number // (x * y)


class Cell:
    """The accesses to some bytes that later ones must be ordered after."""

    __slots__ = (
        "atomics", "atomics_known", "older", "operation", "pending", "reads", "reads_known", "same", "write",
        "write_known", "written",
    )

    def __init__(self, other: Cell | None = None) -> None:
        self.written = False  # whether all its bytes are known to be initialized
        self.operation: Operation | None = None  # the launch that the rest belongs to
        self.write: Access | None = None
        self.same: dict[int, Access] | None = None  # unordered writes of the same value
        self.reads: dict[int, Access] = {}  # by thread
        self.atomics: dict[int, Access] = {}
        # A view known to include the write, all reads, all atomics; threads that met share one view.
        self.write_known: View | None = None
        self.reads_known: View | None = None
        self.atomics_known: View | None = None
        self.older: list[Past] = []
        self.pending: list[Past] = []  # the older accesses that the launch is not ordered after
        if other is not None:
            self.written, self.operation, self.write = other.written, other.operation, other.write
            self.same = dict(other.same) if other.same is not None else None
            self.reads, self.atomics = dict(other.reads), dict(other.atomics)
            self.older, self.pending = list(other.older), list(other.pending)

    def enter(self, operation: Operation) -> None:
        """Another launch accesses the cell: the accesses of the previous launch become past ones."""
        if self.operation is not None:
            for past in self.past():
                self.older = [one for one in self.older if not _stands_for(past, one)] + [past]
            self.clear()
            self.pending = [past for past in self.older if not operation.after(past.operation)]
        self.operation = operation

    def clear(self) -> None:
        """Discard the accesses of the launch that the cell belongs to."""
        self.write, self.same, self.reads, self.atomics = None, None, {}, {}
        self.write_known = self.reads_known = self.atomics_known = None

    def past(self) -> list[Past]:
        """One access of each kind by the launch that the cell belongs to."""
        if self.operation is None:
            return []
        accessed = [Past("write", self.operation, self.write)] if self.write is not None else []
        for kind, accesses in (("read", self.reads), ("atomic", self.atomics)):
            if accesses:
                accessed.append(Past(kind, self.operation, next(iter(accesses.values()))))
        return accessed


def _stands_for(later: Past, earlier: Past) -> bool:
    """Whether everything ordered after `later` is ordered after `earlier`."""
    return later.kind in ("write", earlier.kind) and later.operation.after(earlier.operation)


class Shadow:
    """The cells of one buffer, the copies from and to it, and the views that atomics on it have released."""

    def __init__(self, owner: Any) -> None:
        self.owner = owner
        self.width = 0  # bytes of a cell
        self.cells = defaultdict[int, Cell](Cell)  # by the offset of their first byte
        self.copies: list[tuple[Past, np.ndarray]] = []  # with a mask of the bytes
        self.operation: Operation | None = None  # the launch that the rest belongs to
        self.unordered: list[tuple[Past, np.ndarray]] = []  # copies that this launch is not ordered after
        self.released: dict[int, dict[int | None, View]] = {}  # offset -> scope -> view

    def enter(self, operation: Operation) -> None:
        """Another launch accesses the buffer."""
        self.operation = operation
        self.unordered = [copy for copy in self.copies if not operation.after(copy[0].operation)]
        self.released.clear()

    def forget(self, operation: Operation) -> None:
        """Discard the accesses of a launch."""
        self.released.clear()
        for cell in self.cells.values():
            if cell.operation is operation:
                cell.clear()
                cell.written = False

    def at(self, offset: int, nbytes: int) -> list[Cell]:
        """The cells of a range; wider cells are split to fit it."""
        width = math.gcd(self.width, offset, nbytes)
        if width != self.width:
            split = {
                at: Cell(cell) if at > start else cell
                for start, cell in self.cells.items()
                for at in range(start, start + self.width, width)
            }
            self.cells = defaultdict(Cell, split)
            self.width = width
        return [self.cells[at] for at in range(offset, offset + nbytes, width)]
