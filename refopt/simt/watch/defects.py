"""The defects of a run, each listed once by its lines."""

from __future__ import annotations

from ..base.errors import DataRace, SimtError

MOST = 100  # defects that are listed


class Defects:
    """The defects found so far.

    Attributes: goes_on, whether the search continues after a defect; listed, the errors; times, how often each
    occurred, in the same order; more, how many were found beyond the first `MOST`.
    """

    def __init__(self, goes_on: bool) -> None:
        self.goes_on = goes_on
        self.listed: list[SimtError] = []
        self.times: list[int] = []
        self._numbers: dict[tuple, int] = {}

    @property
    def more(self) -> int:
        """How many were not listed."""
        return len(self._numbers) - len(self.listed)

    def add(self, error: SimtError) -> None:
        """List a defect; of several races between the same lines, keep the one between the nearest threads."""
        number = self._numbers.setdefault(_lines(error), len(self._numbers))
        if number >= MOST:
            return
        if number == len(self.listed):
            self.listed.append(error)
            self.times.append(1)
            return
        self.times[number] += 1
        if _distance(error) < _distance(self.listed[number]):
            self.listed[number] = error


def _lines(error: SimtError) -> tuple:
    """The key that identifies a defect."""
    ends = [error.first, error.second] if error.first is not None else [error.place]
    where = sorted((end.filename or "", end.line or 0) for end in ends if end is not None)
    return (type(error), error.array, *(where or [error.args]))


def _distance(error: SimtError) -> tuple:
    """How far apart the threads of a race are."""
    one, other = error.first, error.second
    if not isinstance(error, DataRace) or one is None or other is None or one.thread is None or other.thread is None:
        return ()
    blocks, threads = zip(one.block or (), other.block or (), strict=False), zip(one.thread, other.thread, strict=True)
    return tuple(sum(abs(a - b) for a, b in pairs) for pairs in (blocks, threads))
