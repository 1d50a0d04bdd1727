"""The race detector's checks of host accesses, by copies and directly, and the report of a race."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import numpy as np

from ..base.errors import DataRace, SimtError, UninitializedRead
from ..base.places import Site, here
from ..base.streams import Operation, is_before_all, is_waited_for
from ..memory.arrays import DeviceArray
from ..memory.buffers import Buffer, describe
from ..memory.initialized import written
from ..rules import Rules
from .cells import Access, Past, Shadow


class Reports:
    """Checks accesses by the host against those by launches and copies."""

    def __init__(self, rules: Rules, report: Callable[[SimtError], None]) -> None:
        self.rules, self.report = rules, report
        self.operation: Any = None  # the launch that runs

    def copy(self, kind: str, operation: Operation, array: DeviceArray) -> None:
        """The host copies from or to an array."""
        buffer, mask = array.buffer, array.coverage()
        shadow = buffer.shadow
        if shadow is None or shadow.owner is not self:
            shadow = buffer.shadow = Shadow(self)
        access = Access(-1, 0, Site.of(sys._getframe(1)))
        self._check_launches(kind, buffer, mask, access, operation.after, operation)
        if kind == "write":  # the copied bytes may be uninitialized
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
                self._race(buffer, first, past.kind, past.access, kind, access, past.operation, operation)
            kept.append((past, bytes_of))
        shadow.copies = [*kept, (Past(kind, operation, access), mask)]

    def copied_out(self, source: DeviceArray) -> None:
        """The host copies an array: report bytes that were never written."""
        known = written(source)
        if known is None or known.all():
            return
        rule = "partly-written-copy" if known.any() else "unwritten-copy"
        if self.rules.partly_written_copy or (self.rules.unwritten_copy and not known.any()):
            how = "some bytes of which were never written" if known.any() else "which was never written"
            what = f"a copy to the host of {describe(source.buffer)}, {how} (rule {rule})"
            self.report(UninitializedRead(what, here(), array=source.buffer.label))

    def host(self, kind: str, buffer: Buffer, part: np.ndarray) -> None:
        """The host itself reads, or writes, a part of memory that kernels also access."""
        access, mask = Access(-1, 0, Site.of(sys._getframe(1))), DeviceArray(buffer, part).coverage()
        self._check_launches(kind, buffer, mask, access, is_waited_for)
        for past, bytes_of in buffer.shadow.copies:
            if past.conflicts(kind) and not is_waited_for(past.operation) and (bytes_of & mask).any():
                first = int(np.argmax(bytes_of & mask))
                self._race(buffer, first, past.kind, past.access, kind, access, past.operation)

    def _check_launches(
        self, kind: str, buffer: Buffer, mask: np.ndarray, access: Access, after: Callable[[Operation], bool],
        operation: Operation | None = None,
    ) -> None:
        """Check a host access against those by launches; `after` says which launches it is ordered after."""
        shadow = buffer.shadow
        if not shadow.cells:
            return
        touched = np.logical_or.reduceat(mask, np.arange(0, len(mask), shadow.width))
        for start in (np.flatnonzero(touched) * shadow.width).tolist():
            cell = shadow.cells.get(start)
            for past in [*cell.older, *cell.past()] if cell is not None else ():
                if past.conflicts(kind) and not after(past.operation):
                    self._race(buffer, start, past.kind, past.access, kind, access, past.operation, operation)

    def _race(
        self, buffer: Buffer, offset: int, first: str, one: Access, second: str, other: Access,
        operation: Operation | None = None, current: Operation | None = None,
    ) -> None:
        """Report a race between two accesses, by two operations or by the running one."""
        ends = (one, operation), (other, current)
        places = [Access(key, epoch, Site(*site)).place(by or self.operation) for (key, epoch, site), by in ends]
        pair = f"  {first} in {places[0]}{places[0].source}\n  not ordered with {second}"
        what = f"data race on {describe(buffer, offset)}\n{pair}"
        self.report(DataRace(what, places[1], array=buffer.label, offset=offset, first=places[0], second=places[1]))
