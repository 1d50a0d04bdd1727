"""What an answer costs, counted by the executor, beside the reference solution."""

from __future__ import annotations

import linecache
from typing import Any, NamedTuple

import numpy as np


class Score(NamedTuple):
    """The cost of a run.

    Attributes:
        launches: of kernels.
        requests: accesses of warps to global memory.
        bytes: of global memory that threads load and store; an atomic operation does both.
        sectors: of 32 bytes, that the requests move.
        barriers: how often a warp comes to a barrier of its block.
        conflicts: turns of shared memory beyond those that accesses without bank conflicts take.
        copies: between host and device, and collectives of several ranks.
        copied: their bytes.
    """

    launches: int
    requests: int
    bytes: int
    sectors: int
    barriers: int
    conflicts: int
    copies: int
    copied: int


def score(log: Any) -> Score:
    """The cost of what was observed."""
    profile, nbytes = log.profile, 0
    for accesses in profile.accesses:
        times = np.where(accesses.of_instruction("kind") == "atomic", 2, 1)
        shared = accesses.of_instruction("shared").astype(bool)
        nbytes += int((accesses.of_instruction("nbytes") * times * ~shared).sum())
    return Score(
        len(log.launches),
        sum(row.requests for row in profile.sectors),
        nbytes,
        sum(row.sectors for row in profile.sectors),
        sum(row.executions for row in profile.lines if "syncthreads" in linecache.getline(row.filename, row.line)),
        sum(row.conflicts for row in profile.banks),
        len(log.copies),
        sum(copy.nbytes for copy in log.copies),
    )


def table(yours: Score, reference: Score) -> str:
    """Both scores; what neither of them has is left out."""
    names = [name for name in Score._fields if getattr(yours, name) or getattr(reference, name)]
    rows = [["", *names]]
    for who, costs in (("yours", yours), ("reference", reference)):
        rows.append([who, *(f"{getattr(costs, name):,}" for name in names)])
    widths = [max(len(row[k]) for row in rows) for k in range(len(names) + 1)]
    return "\n".join("  ".join([row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])]) for row in rows)


def repeated(log: Any) -> str:
    """An element of global memory that many threads of a launch store by one line of code, in words; empty if none."""
    for accesses in log.profile.accesses:
        stores = (accesses.of_instruction("kind") == "store") & ~accesses.of_instruction("shared").astype(bool)
        keys = np.stack([accesses.array, accesses.start, accesses.instruction, accesses.thread], 1)[stores]
        places, counts = np.unique(np.unique(keys, axis=0)[:, :3], axis=0, return_counts=True)  # each thread once
        if len(counts) and counts.max() > 1:
            number, start, _ = places[counts.argmax()]
            array = accesses.arrays[number]
            element = f"Element {start // array.dtype.itemsize} of {array.label}"
            return f"{element} is stored by {counts.max()} threads; one is enough."
    return ""


NAMES = {"copied": "copied bytes"}  # of columns whose names do not say enough
ADVICE = {
    "launches": "A launch costs microseconds, and loads again what the one before has just stored.",
    "requests": "Is something loaded or stored twice that a variable could hold, or one by one what could be a vector?",
    "bytes": "Is something loaded or stored twice that a variable could hold?",
    "sectors": "Neighbouring threads should access neighbouring elements.",
    "barriers": "A barrier is needed between a write and other threads' accesses to the element, and nowhere else.",
    "conflicts": "Lanes of a warp should access different banks, or one word.",
    "copies": "What stays on the device need not be waited for.",
    "copied": "Which part does a rank need, and which does somebody else compute as well?",
}


def dearest(log: Any, column: str) -> str:
    """Where an answer costs too much in a column of the score, and what to think of."""
    from .witness import own_line

    rows: list[tuple[int, Any, str]] = []
    if column == "sectors":
        rows = [(row.sectors - row.least, row, f"{row.per_request:.0f} sectors per request, where "
                 f"{row.least / max(row.requests, 1):.0f} would do") for row in log.profile.sectors]
    elif column == "conflicts":
        rows = [(row.conflicts, row, f"{row.ways:.0f} turns where one would do") for row in log.profile.banks]
    excess, row, words = max(rows, key=lambda entry: entry[0], default=(0, None, ""))
    if row is None or not excess:
        return ADVICE[column]
    where = "".join(f"\n  {line}" for line in [own_line(row.filename, row.line)] if line)
    return f"{row.kind} of {row.array}: {words}{where}\n{ADVICE[column]}"
