"""The profile of `observe(profile=True)`: sectors, bank conflicts and divergence, by line."""

from __future__ import annotations

import linecache
import math
import os
from collections.abc import Callable, Sequence
from types import FrameType
from typing import Any, NamedTuple

import numpy as np

from ..base.threads import WARP_SIZE
from ..machine.launch import Launch
from ..memory.buffers import Buffer
from .accesses import Accesses
from .paths import Tracer
from .traffic import groups, occurrences, sectors, wavefronts


class Sectors(NamedTuple):
    """The cost of a line's accesses to one array in global memory.

    Attributes:
        kernel, filename, line, array, kind: the place, and load, store or atomic.
        requests: accesses by warps; one whose lanes access several arrays counts for the first of them.
        lanes: accesses by threads.
        sectors: the sectors of 32 bytes that the requests move.
        least: the fewest sectors that would hold the bytes of each request.
    """

    kernel: str
    filename: str
    line: int
    array: str
    kind: str
    requests: int
    lanes: int
    sectors: int
    least: int

    @property
    def per_request(self) -> float:
        """Sectors per request: 4 for 32 adjacent lanes of 4 bytes each; NaN without requests."""
        return self.sectors / self.requests if self.requests else math.nan

    @property
    def efficiency(self) -> float:
        """The share of the sectors moved that is needed: 1 if the accesses are coalesced."""
        return self.least / self.sectors


class Banks(NamedTuple):
    """The cost of a line's accesses to one shared array.

    Attributes:
        kernel, filename, line, array, kind, requests, lanes: as in `Sectors`.
        wavefronts: passes over the banks.
        conflicts: the wavefronts in excess of those of accesses without conflicts.
    """

    kernel: str
    filename: str
    line: int
    array: str
    kind: str
    requests: int
    lanes: int
    wavefronts: int
    conflicts: int

    @property
    def ways(self) -> float:
        """Wavefronts for each that is needed: 1 without conflicts, 32 at worst."""
        return self.wavefronts / (self.wavefronts - self.conflicts)


class Line(NamedTuple):
    """How the warps execute a line.

    Attributes:
        kernel, filename, line: where.
        executions: by warps.
        lanes: by threads.
        divergent: executions by warps whose lanes continued at different lines.
    """

    kernel: str
    filename: str
    line: int
    executions: int
    lanes: int
    divergent: int

    @property
    def active(self) -> float:
        """The share of the 32 lanes of a warp that execute it."""
        return self.lanes / (WARP_SIZE * self.executions)


class Profile:
    """Rows by line, in source order: `sectors`, `banks` and `lines`. They print as tables.

    `refopt.simt.profile.paths` and `refopt.simt.profile.traffic` describe the model. Each access in the kernel's source
    counts; a compiler may merge loads of the same element.
    """

    def __init__(self) -> None:
        self.accesses: list[Accesses] = []  # by launches
        self._tracer = Tracer()
        self.access: Callable[[str, Buffer, int, int, FrameType], None]  # the running thread accesses memory
        self._lines: dict[tuple[str, str, int], np.ndarray] = {}
        self._rows: tuple[int, list[Sectors], list[Banks]] | None = None

    # How the executor reports

    def begin(self, launch: Launch) -> None:
        """A launch begins."""
        self.accesses.append(Accesses(launch.name, math.prod(launch.block), self._tracer))
        self.access = self.accesses[-1].add
        self._tracer.begin()

    def end(self) -> None:
        """The launch has ended."""
        self._tracer.end()
        accesses = self.accesses[-1]
        accesses.close()
        for (code, line, *_), execution in self._tracer.executions.items():
            key = accesses.kernel, self._tracer.code(code).co_filename, line
            _add(self._lines, key, (1, execution.lanes, len(execution.following) > 1))

    # What was observed

    @property
    def sectors(self) -> list[Sectors]:
        """The traffic of global memory, a row for each kernel, line, array and kind of access."""
        return self._costs()[0]

    @property
    def banks(self) -> list[Banks]:
        """The wavefronts of shared memory, likewise."""
        return self._costs()[1]

    @property
    def lines(self) -> list[Line]:
        """The lines that were executed."""
        return [Line(*key, *map(int, self._lines[key])) for key in sorted(self._lines)]

    def _costs(self) -> tuple[list[Sectors], list[Banks]]:
        rows = self._rows
        if rows is None or rows[0] != len(self.accesses):
            moved: dict[Any, np.ndarray] = {}
            passes: dict[Any, np.ndarray] = {}
            for accesses in self.accesses:
                _add_costs(accesses, moved, passes)
            rows = self._rows = (
                len(self.accesses),
                [Sectors(*key, *map(int, moved[key])) for key in sorted(moved)],
                [Banks(*key, *map(int, passes[key])) for key in sorted(passes)],
            )
        return rows[1], rows[2]

    def __str__(self) -> str:
        tables = (
            _table("global memory", self.sectors, {
                "requests": "requests", "sectors": "sectors", "per request": "per_request", "efficiency": "efficiency",
            }),
            _table("shared memory", self.banks, {
                "requests": "requests", "wavefronts": "wavefronts", "conflicts": "conflicts",
            }),
            _table("lines", self.lines, {"warps": "executions", "active": "active", "divergent": "divergent"}),
        )
        return "\n\n".join(table for table in tables if table)


def _add(rows: dict[Any, np.ndarray], key: Any, values: Any) -> None:
    rows[key] = rows[key] + values if key in rows else np.array(values)


def _add_costs(accesses: Accesses, moved: dict[Any, np.ndarray], passes: dict[Any, np.ndarray]) -> None:
    """Add the costs of the accesses of a launch."""
    instruction, context, array, start = accesses.instruction, accesses.context, accesses.array, accesses.start
    again = occurrences(instruction, context, accesses.thread)  # such as the elements of a slice
    request, first_of = groups(instruction, context, accesses.warp, again)
    nbytes, shared = accesses.of_instruction("nbytes"), accesses.of_instruction("shared").astype(bool)
    atomic = accesses.of_instruction("kind") == "atomic"

    def key(row: int) -> tuple[str, str, int, str, str]:
        at = accesses.instructions[instruction[row]]
        return accesses.kernel, at.filename, at.line, accesses.arrays[array[row]].label, at.kind

    rows = np.flatnonzero(~shared)
    costs = sectors(request[rows], array[rows], start[rows], nbytes[rows], atomic[rows])
    # A request whose lanes access several arrays counts for the one that came first.
    counted = set(first_of.tolist())
    for row, lanes, cost, least in zip(rows[costs.first].tolist(), *costs[1:], strict=True):
        _add(moved, key(row), (row in counted, lanes, cost, least))
    rows = np.flatnonzero(shared)
    costs = wavefronts(request[rows], accesses.rank[rows] % WARP_SIZE, start[rows], nbytes[rows], atomic[rows])
    for row, lanes, cost, least in zip(rows[costs.first].tolist(), *costs[1:], strict=True):
        _add(passes, key(row), (1, lanes, cost, cost - least))


def _table(title: str, rows: Sequence[Any], columns: dict[str, str]) -> str:
    """Rows as text, with the source of their lines."""
    lines = []
    for row in rows:
        values = [getattr(row, field) for field in columns.values()]
        numbers = [f"{value:.2f}" if isinstance(value, float) else str(value) for value in values]
        what = [row.kind, row.array] if hasattr(row, "array") else []
        source = linecache.getline(row.filename, row.line).strip()
        lines.append([f"{os.path.basename(row.filename)}:{row.line}", *what, *numbers, source])
    if not lines:
        return ""
    heads = [title, *(["", "array"] if hasattr(rows[0], "array") else []), *columns, "source"]
    widths = [max(len(line[k]) for line in [heads, *lines]) for k in range(len(heads) - 1)]
    left = len(heads) - 1 - len(columns)  # columns that are aligned to the left
    forms = [f"{'<' if k < left else '>'}{width}" for k, width in enumerate(widths)]
    return "\n".join("  ".join([*map(format, line, forms), line[-1]]).rstrip() for line in [heads, *lines])
