"""What a warp does at a time: its requests to one array, one below the other."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from refopt import simt
from refopt.simt.profile.traffic import BANKS, SECTOR, WORD, groups, occurrences

from .verdict import wrong
from .witness import Run

MOST = 6  # requests of a picture, of each kind
COLORS = {"load": "#0072B2", "store": "#D55E00", "atomic": "#009E73"}  # Okabe and Ito's
FEW = 130  # bands of sectors that can be told apart


class Request(NamedTuple):
    """What the lanes of a warp access at once: the kind, and the elements of all lanes."""

    kind: str
    elements: np.ndarray


def requests(seen: Run, name: str, launch: int) -> Any:
    """A picture of the first warp's requests to an array; words if there are none.

    Args:
        seen: the run.
        name: of the array, or ``shared``, for the first shared one.
        launch: its number.
    """
    launches = seen.log.profile.accesses
    for accesses in launches[launch:][:1]:
        for number, array in enumerate(accesses.arrays):
            if (name == "shared" and not array.base) or array.label == name:
                return _drawn(array, _of_first_warp(accesses, number), accesses.kernel)
    return wrong(f"No thread has touched {name} yet, so there is nothing to draw.")


def _of_first_warp(accesses: Any, array: int) -> list[Request]:
    """The requests of the first warp that accesses an array, in the order in which they begin; of each kind a few."""
    again = occurrences(accesses.instruction, accesses.context, accesses.thread)
    request, first = groups(accesses.instruction, accesses.context, accesses.warp, again)
    mine = accesses.array == array
    mine &= accesses.warp == accesses.warp[mine].min()
    size = accesses.arrays[array].dtype.itemsize
    start, width = accesses.start // size, np.maximum(accesses.of_instruction("nbytes") // size, 1)
    result: list[Request] = []
    for number in sorted(set(request[mine].tolist()), key=lambda k: first[k]):
        rows = np.flatnonzero(mine & (request == number))
        elements = np.concatenate([np.arange(start[row], start[row] + width[row]) for row in rows])
        kind = accesses.instructions[accesses.instruction[rows[0]]].kind
        if sum(other.kind == kind for other in result) < MOST:
            result.append(Request(kind, elements))
    return result


def _drawn(array: Any, found: list[Request], kernel: str) -> simt.Picture:
    from matplotlib.figure import Figure

    size, shared = array.dtype.itemsize, not array.base
    figure = Figure(figsize=(9, 1.3 + 0.28 * len(found)), layout="constrained", dpi=120)
    axis, words = figure.subplots(), []
    for k, (kind, elements) in enumerate(found):
        if shared:
            at = np.unique(elements * size // WORD)
            turns = int(np.bincount(at % BANKS).max())
            places, cost = at % BANKS, _count(turns, "turn")
        else:
            moved = len(np.unique(elements * size // SECTOR))
            places, cost = elements, _count(moved, "sector")
        axis.plot(places, np.full(len(places), k), "s", markersize=4, color=COLORS[kind], markeredgewidth=0)
        axis.annotate(f"{kind}: {cost}", (1.01, k), xycoords=("axes fraction", "data"), va="center", fontsize=9)
        words.append(f"{kind} {k}: {_count(len(set(places.tolist())), 'bank' if shared else 'element')}, {cost}")
    low, high = (0, BANKS) if shared else _bands(axis, array, found)
    axis.set_xlim(low - 0.5, high - 0.5)
    axis.set_ylim(len(found) - 0.4, -0.6)
    axis.set_yticks(range(len(found)))
    axis.set_ylabel("request")
    if shared:
        axis.set_xlabel("bank")
    title = f"What one warp of {kernel} accesses at a time in {array.label}"
    axis.set_title(title, loc="left")
    return simt.Picture(figure, f"{title}, request by request. {'; '.join(words)}.")


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'s' * (number > 1)}"


def _bands(axis: Any, array: Any, found: list[Request]) -> tuple[int, int]:
    """Grey and white bands for sectors; the first element shown, and the one behind the last."""
    width = SECTOR // array.dtype.itemsize
    every = np.concatenate([request.elements for request in found])
    low, high = int(every.min() // width), int(every.max() // width) + 1
    axis.set_xlabel("element (bands: sectors of 32 bytes)" if high - low <= FEW else "element")
    if high - low <= FEW:
        for band in range(low + low % 2, high, 2):
            axis.axvspan(width * band - 0.5, width * (band + 1) - 0.5, color="#E4E4E4", linewidth=0, zorder=0)
    return low * width, high * width
