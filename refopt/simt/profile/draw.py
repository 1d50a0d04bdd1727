"""`draw`: pictures of which threads touch which elements of which array. Matplotlib is imported on the first call."""

from __future__ import annotations

import html
import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ..base.arguments import whole
from ..base.threads import WARP_SIZE
from ..memory.arrays import DeviceArray
from .accesses import Accesses, Array
from .traffic import BANKS, SECTOR, WORD

MOST = 200_000  # marks of a picture
_BANDS = 130  # of a panel, at most: more would merge into gray
_TICKS = 12  # of an axis, at most
# Okabe and Ito's colors, which are distinguishable with any common color blindness. The kinds also differ in shape, so
# that a load stays visible inside a store to the same element.
_KINDS = "load", "store", "atomic"
_MARKS = {"load": ("o", "#0072B2", 0.6), "store": ("s", "#D55E00", 1.0), "atomic": ("^", "#009E73", 1.4)}


class Picture(NamedTuple):
    """A Matplotlib figure with a description, which notebooks use as its alternative text.

    Attributes:
        figure: the figure.
        alt: a description of what it shows.
    """

    figure: Any
    alt: str

    def save(self, path: str | Path) -> None:
        """Write it to a file, such as a PNG or SVG, with the description as metadata."""
        key = "Subject" if str(path).lower().endswith(".pdf") else "Description"
        self.figure.savefig(path, metadata={key: self.alt})

    def _repr_html_(self) -> str:
        text = io.StringIO()
        self.figure.savefig(text, format="svg")
        svg = text.getvalue()
        label = f'<svg role="img" aria-label="{html.escape(self.alt)}"'
        return svg[svg.index("<svg") :].replace("<svg", label, 1)


class _Panel(NamedTuple):
    """The distinct accesses to one array: element, thread and number of the kind of each."""

    array: Array
    element: np.ndarray
    thread: np.ndarray
    kind: np.ndarray


def draw(log: Any, arrays: Sequence[DeviceArray] | None = None, launch: int = 0) -> Picture:
    """Draw which threads of a launch touch which elements: a panel for each array, in the order of first access.

    Elements are columns and threads are rows; thread numbers continue from block to block. Gray and white bands are
    sectors of 32 bytes, or in shared memory rows of all banks (128 bytes). Lines separate warps. So the marks of a warp
    fill few bands if its accesses are coalesced.

    Args:
        log: a log of ``observe(profile=True)``.
        arrays: the arrays to draw; by default all, including shared ones.
        launch: the number of the launch in the log, from 0.

    Raises:
        ValueError: a log without a profile, a launch that is not in it, nothing to draw, or more than 200,000 accesses.
        ImportError: Matplotlib is not installed.
    """
    profile = getattr(log, "profile", None)
    if profile is None:
        raise ValueError("draw: log: expected the log of observe(profile=True), got one without a profile")
    launches = profile.accesses
    if whole("draw: launch", launch) >= len(launches):
        raise ValueError(f"draw: launch: expected a number below {len(launches)}, got {launch}")
    accesses = launches[launch]
    panels = _panels(accesses, arrays)
    marks = sum(len(panel.element) for panel in panels)
    if not 0 < marks <= MOST:
        raise ValueError(f"draw: expected 1 to {MOST} accesses in a launch, got {marks}")
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

    first = min(int(panel.thread.min()) for panel in panels)
    last = max(int(panel.thread.max()) for panel in panels)
    height = min(max(0.09 * (last - first), 2.4), 9.0)
    figure = Figure(figsize=(min(1.2 + 4.4 * len(panels), 14.0), height + 1.4), layout="constrained", dpi=120)
    figure.suptitle(f"Which threads of {accesses.kernel} touch which elements")
    axes = figure.subplots(1, len(panels), sharey=True, squeeze=False)[0]
    size = min(max(46 * height / (last - first + 1), 1.6), 7.0)  # of a mark, in points; rows do not overlap
    for axis, panel in zip(axes, panels, strict=True):
        _draw_panel(axis, panel, size)
        for warp in _starts_of_warps(accesses, first, last):
            axis.axhline(warp - 0.5, color="#555555", linewidth=0.8, zorder=1)
        axis.set_ylim(last + 0.8, first - 0.8)
    axes[0].set_yticks(_ticks(first, last + 1))
    axes[0].set_ylabel("thread (a line between warps)")
    used = [kind for n, kind in enumerate(_KINDS) if any((panel.kind == n).any() for panel in panels)]
    handles = [Line2D([], [], linestyle="", label=kind, **_style(kind, 6.0)) for kind in used]
    figure.legend(handles=handles, loc="outside lower center", ncols=len(used), frameon=False)
    return Picture(figure, _words(accesses.kernel, panels))


def _panels(accesses: Accesses, arrays: Sequence[DeviceArray] | None) -> list[_Panel]:
    only = None if arrays is None else {array.buffer.base for array in arrays}
    number, start, thread = accesses.array, accesses.start, accesses.thread
    kind, nbytes = accesses.of_instruction("kind"), accesses.of_instruction("nbytes")
    panels = []
    for n, array in enumerate(accesses.arrays):
        rows = np.flatnonzero(number == n)
        if not len(rows) or (only is not None and array.base not in only):
            continue
        first = start[rows] // array.dtype.itemsize
        count = (start[rows] + nbytes[rows] - 1) // array.dtype.itemsize - first + 1  # a vector is several elements
        row = np.repeat(rows, count)
        element = np.repeat(first - np.cumsum(count) + count, count) + np.arange(len(row))
        numbers = np.select([kind[row] == name for name in _KINDS], range(len(_KINDS)))
        panels.append(_Panel(array, *np.unique([element, thread[row], numbers], axis=1)))
    return panels


def _starts_of_warps(accesses: Accesses, first: int, last: int) -> list[int]:
    """The first threads of warps; each block begins a new warp."""
    return [t for t in range(first, last + 2) if t % accesses.threads % WARP_SIZE == 0]


def _draw_panel(axis: Any, panel: _Panel, mark: float) -> None:
    array = panel.array
    width = (SECTOR if array.base else BANKS * WORD) / array.dtype.itemsize  # elements of a band
    low, high = int(panel.element.min() // width), int(panel.element.max() // width) + 1
    bands = ""
    if high - low <= _BANDS:
        bands = " (bands: sectors of 32 bytes)" if array.base else " (bands: 128 bytes, all banks)"
        for band in range(low + low % 2, high, 2):
            axis.axvspan(width * band - 0.5, width * (band + 1) - 0.5, color="#E4E4E4", linewidth=0, zorder=0)
    for n, kind in enumerate(_KINDS):
        here = panel.kind == n
        style = _style(kind, mark)
        axis.plot(panel.element[here], panel.thread[here], linestyle="", zorder=2 + n, **style)
    left, right = width * low, max(width * high, int(panel.element.max()) + 1)
    axis.set_xlim(left - 0.5, right - 0.5)
    axis.set_xticks(_ticks(left, right))
    axis.set_title(array.label)
    rows = f", rows of {array.shape[-1]}" if len(array.shape) > 1 else ""
    axis.set_xlabel(f"element{rows}{bands}")


def _ticks(first: float, last: float) -> range:
    """Ticks below the last number, at multiples of a power of two, as warps and sectors are."""
    step = 1
    while (last - first) / step > _TICKS:
        step *= 2
    return range(-(-int(np.ceil(first)) // step) * step, int(last), step)


def _style(kind: str, size: float) -> dict[str, Any]:
    """The marker of a kind of access: loads are filled, and writes are outlines around them."""
    marker, color, scale = _MARKS[kind]
    filled = kind == "load"
    return {
        "marker": marker, "markersize": size * scale, "markeredgecolor": color,
        "markerfacecolor": color if filled else "none", "markeredgewidth": 0 if filled else 0.8,
    }


def _words(kernel: str, panels: Sequence[_Panel]) -> str:
    """A description of the picture."""
    sentences = [f"Which threads of the kernel {kernel} touch which elements."]
    for panel in panels:
        for n, kind in enumerate(_KINDS):
            threads, elements = panel.thread[panel.kind == n], panel.element[panel.kind == n]
            if not len(threads):
                continue
            what = {"load": "loads of", "store": "stores to", "atomic": "atomic operations on"}[kind]
            order = np.argsort(threads, kind="stable")
            steps = np.unique(np.diff(elements[order])[np.diff(threads[order]) == 1])
            once = len(np.unique(threads)) == len(threads)
            apart = f"; neighbouring threads are {steps[0]} apart" if once and len(steps) == 1 else ""
            sentences.append(
                f"{panel.array.label}: {what} {_count(np.unique(elements), 'element')}, "
                f"by {_count(np.unique(threads), 'thread')}{apart}."
            )
    return " ".join(sentences)


def _count(values: np.ndarray, what: str) -> str:
    """The number of values, and the first and the last."""
    if len(values) == 1:
        return f"{what} {values[0]}"
    return f"{len(values)} {what}s from {values[0]} to {values[-1]}"
