"""Pictures of how kernels share out memory: tables, rows of elements, arrows. A notebook says what is in them."""

from collections.abc import Callable, Sequence
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

COLORS = "#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#F0E442"  # Okabe and Ito's
LIGHT = "#BBD9EA", "#F8E1B0", "#B3DFD2", "#EFD3E2", "#D9EEFA", "#F3C5A8", "#FBF6C0"  # the same, for text on them
LINE = "0.25"


def canvas(title: str, width: float, height: float, size: tuple[float, float] = (9, 4)) -> tuple[Figure, Axes]:
    """Empty axes with a title, whose y axis points downwards, as one reads."""
    fig, ax = plt.subplots(figsize=size)
    ax.set(xlim=(0, width), ylim=(height, 0), title=title)
    ax.axis("off")
    return fig, ax


def box(
    ax: Axes, x: float, y: float, width: float, height: float = 1.0, text: object = "", color: str = "white",
    size: float = 9, **style: Any,
) -> None:
    """A box with a text in it."""
    ax.add_patch(Rectangle((x, y), width, height, facecolor=color, **{"edgecolor": LINE, "lw": 0.8} | style))
    ax.text(x + width / 2, y + height / 2, str(text), ha="center", va="center", fontsize=size)


def label(ax: Axes, x: float, y: float, text: str, ha: str = "left", size: float = 9, **style: Any) -> None:
    """A line of text."""
    ax.text(x, y, text, ha=ha, va="center", fontsize=size, **style)


def arrow(
    ax: Axes, start: tuple[float, float], stop: tuple[float, float], bend: float = 0.0, color: str = LINE
) -> None:
    """An arrow, straight or bent."""
    style = {"arrowstyle": "-|>", "color": color, "lw": 1.2, "connectionstyle": f"arc3,rad={bend}", "shrinkB": 0}
    ax.annotate("", stop, start, arrowprops=style)


def route(ax: Axes, *points: tuple[float, float]) -> None:
    """An arrow with corners."""
    ax.plot(*zip(*points[:-1], strict=True), color=LINE, lw=1.2, solid_capstyle="butt")
    style = {"arrowstyle": "-|>", "color": LINE, "lw": 1.2, "shrinkA": 0, "shrinkB": 0}
    ax.annotate("", points[-1], points[-2], arrowprops=style)


def table(
    ax: Axes, x: float, y: float, values: np.ndarray, title: str, columns: Sequence[str] = (),
    rows: Sequence[str] = (), width: float = 1.0, color: Callable[[int, int], str] = lambda row, column: "white",
    size: float = 8,
) -> Callable[[int, int], tuple[float, float]]:
    """A table as it lies in memory, with names of its rows and columns.

    Returns:
        Where the middle of the right edge of a cell is, by row and column; column -1 is the left edge of the first.
    """
    label(ax, x, y - (1.55 if len(columns) else 0.6), title, size=size + 1, weight="bold")
    for column, name in enumerate(columns):
        label(ax, x + (column + 0.5) * width, y - 0.5, name, "center", size, style="italic")
    for row, line in enumerate(values):
        if len(rows):
            label(ax, x - 0.15, y + row + 0.5, rows[row], "right", size, style="italic")
        for column, value in enumerate(line):
            box(ax, x + column * width, y + row, width, 1, value, color(row, column), size)
    return lambda row, column: (x + (column + 1) * width, y + row + 0.5)


def tree(ax: Axes, leaves: int, x: float = 0.0, unit: float = 1.0, lone: str = "+ 0") -> None:
    """Draw how neighbours are joined, level by level; a node without a neighbour is joined with 0."""
    level, y = [(x + unit * k, f"{k}") for k in range(leaves)], 0
    while True:
        for at, text in level:
            frame = {"fc": LIGHT[0] if y == 0 else "white", "ec": LINE, "boxstyle": "round,pad=0.25", "lw": 0.8}
            ax.text(at, y, text, ha="center", va="center", bbox=frame, fontsize=9)
        if len(level) == 1:
            return
        above = []
        for k in range(0, len(level), 2):
            pair = [at for at, _ in level[k : k + 2]]
            above.append((float(np.mean(pair)), "+" if len(pair) == 2 else lone))
            for at in pair:
                ax.plot([at, above[-1][0]], [y, y + 1], color=LINE, lw=1, zorder=0)
        level, y = above, y + 1


def rungs(rows: Sequence[dict[str, Any]], title: str, notes: dict[str, str]) -> Figure:
    """The time of a step by each version of a ladder, from a record's rows, and that of a copy of as many bytes."""
    fig, ax = plt.subplots(figsize=(9, 0.42 * len(rows) + 1.3))
    for y, row in enumerate(rows):
        kind = row["rung"] == "production"
        ax.barh(y, row["ms"], 0.7, color=COLORS[2] if kind else COLORS[0])
        text = f"{row['ms']:#.3g} ms, {row['launches']} launch{'es' * (row['launches'] > 1)}"
        ax.text(row["ms"] * 1.06, y, text, va="center", fontsize=9)
    floor = rows[0]["floor_ms"]
    ax.axvline(floor, color="black", lw=1.2, ls="--", label=f"copy of as many bytes: {floor:#.3g} ms")
    ax.set_yticks(range(len(rows)), [f"{row['rung']}: {notes[row['rung']]}" for row in rows])
    ax.set(xscale="log", xlabel="milliseconds per step, as a CUDA graph (logarithmic)", title=title)
    ax.set_xlim(floor / 2, max(row["ms"] for row in rows) * 6)
    ax.xaxis.set_major_formatter("{x:g}")
    ax.invert_yaxis()
    ax.legend(loc="lower right")
    return fig


def plan_tables(group: Any, block: int) -> Figure:
    """The tables of a plan whose step needs norms, as they lie in memory, and what a block finds in them.

    Args:
        group: the plan's tensors of one combination of dtypes, no more than a few small ones.
        block: the number of a chunk.
    """
    chunks, nodes = group.chunks.copy_to_host(), group.nodes.copy_to_host()
    addresses, hyper = group.addresses.copy_to_host(), group.hypers.values.copy_to_host()
    tensor, _, _, slot, node, _ = chunks[block]
    tiles = -(-(chunks[block, 2] - chunks[block, 1]) // 1024)
    names, wide = [f"tensor {t}" for t in range(addresses.shape[1])], 2.2
    height = max(len(chunks), len(addresses) + len(hyper) + 3.4) + 12.4
    fig, ax = canvas(f"The tables of a plan, and what block {block} finds in them", 32, height, (9, 0.3 * height))

    def mark(hit: bool) -> str:
        return LIGHT[0] if hit else "white"

    at = table(ax, 2.6, 2.2, chunks, "chunks", ["tensor", "start", "stop", "slot", "node", "aligned"],
               [f"block {c}" for c in range(len(chunks))], 1.75, lambda r, c: mark(r == block))
    table(ax, 20.5, 2.2, addresses % 10**4, "addresses (last four digits)", names, group.routine.slot_names, wide,
          lambda r, c: mark(c == tensor))
    low = 5.2 + len(addresses)
    table(ax, 20.5, low, np.array([[f"{x:g}" for x in row] for row in hyper]), "hyper", names,
          [row.name for row in group.routine.hypers], wide, lambda r, c: mark(c == tensor))
    y = height - 8.6
    table(ax, 2.6, y, np.full((2, group.slots), ""), "sums: an element per tile, then per node",
          [str(k) for k in range(group.slots)], ["p²", "g²"], 28 / group.slots,
          lambda r, c: LIGHT[1] if c == nodes[node, 2] else mark(slot <= c < slot + tiles), 8)
    under = table(ax, 2.6, y + 5.2, nodes, "nodes", ["first", "count", "out", "arrivals", "parent"],
                  [f"node {k}" for k in range(len(nodes))], 1.75, lambda r, c: mark(r == node))
    table(ax, 13.2, y + 5.2, np.zeros((len(nodes), 1), int), "counters", (), (), wide, lambda r, c: mark(r == node))
    table(ax, 20.5, y + 5.2, np.full((1, len(names)), "rate"), "numbers", names, (), wide,
          lambda r, c: mark(c == tensor))
    (right, line), (edge, low) = at(block, 5), under(node, 4)
    first, out = (2.6 + 28 / group.slots * place for place in (slot + tiles / 2, nodes[node, 2] + 0.5))
    arrow(ax, (right, line), (18.3, 2.7), -0.1)
    label(ax, 16.4, line - 1.6, "tensor", "center", 8, style="italic")
    route(ax, (right, line), (first, line), (first, y))
    label(ax, first + 0.2, y - 2.4, "slot", size=8, style="italic")
    route(ax, (0.9, line), (0.4, line), (0.4, low), (0.9, low))
    label(ax, 0.6, y - 2.4, "node", size=8, style="italic")
    route(ax, (edge, low), (12.2, low), (12.2, y + 2.9), (out, y + 2.9), (out, y + 2))
    label(ax, 12.4, y + 3.4, "out", size=8, style="italic")
    route(ax, (edge, low), (12.2, low), (13.2, low))
    return fig


def zoom(group: Any, block: int, warps: int, tile: int = 3, row: int = 1, lane: int = 5) -> Figure:
    """A tensor, its chunks, the tiles of one, the rows of one, and the elements of a lane, from a plan's table."""
    chunks = group.chunks.copy_to_host()
    tensor, start, stop = chunks[block, :3]
    fig, ax = canvas("From a tensor to the elements of one thread", 34.5, 12.2, (9, 4.2))
    size = group.sizes[tensor]
    spans = [(start * 30 / size, stop * 30 / size)]
    for c in np.flatnonzero(chunks[:, 0] == tensor):
        first, last = chunks[c, 1:3] * 30 / size
        box(ax, 4 + first, 0.6, last - first, 1.4, f"chunk {c}\n{chunks[c, 1]} to {chunks[c, 2] - 1}",
            LIGHT[0] if c == block else "white")
    tiles = -(-(stop - start) // 1024)
    for t in range(tiles):
        box(ax, 4 + 30 / tiles * t, 3.8, 30 / tiles, 1.4, f"tile {t}\nwarp {t % warps}", LIGHT[t % warps], 8)
    spans.append((30 / tiles * tile, 30 / tiles * (tile + 1)))
    first = start + 1024 * tile
    for r in range(4):
        box(ax, 4 + 7.5 * r, 7, 7.5, 1.4, f"row {r}: {first + 256 * r} to {first + 256 * r + 255}",
            LIGHT[tile % warps] if r == row else "white")
    spans.append((7.5 * row, 7.5 * (row + 1)))
    for k in range(64):
        color = COLORS[1] if k % 32 == lane else LIGHT[tile % warps]
        text = k % 32 if k % 4 == 0 or k % 32 == lane else ""  # as many numbers as can be read
        box(ax, 4 + 30 / 64 * k, 10.2, 30 / 64, 1.4, text, color, 7)
    for (left, right), y in zip(spans, (2, 5.2, 8.4), strict=True):
        for x, edge in ((left, 0), (right, 30)):
            ax.plot([4 + x, 4 + edge], [y, y + 1.8], color=LINE, lw=0.8, ls=":")
    for k, text in enumerate((f"tensor {tensor}", f"chunk {block}", f"tile {tile}", f"row {row}:\nlanes")):
        label(ax, 0, 1.3 + 3.2 * k, text)
    return fig
