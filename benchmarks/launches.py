"""Draws how a merged step is launched: `python -m benchmarks.launches`.

docs/launches.svg has the kernels of a step of LARS on ResNet-50 along one axis of time, one launch for each tensor
beside two for all, as `benchmarks/results/lars-h200.json` has measured them; docs/tiles.svg has who updates what. Both
are narrow enough for the screen of a phone.
"""

import json
from pathlib import Path

from benchmarks.record import RESULTS, ROOT

RECORD = RESULTS / "lars-h200.json"
FIGURE, TILES = ROOT / "docs" / "launches.svg", ROOT / "docs" / "tiles.svg"
LINES = {
    "separate": "one launch per tensor",
    "two_launches": "all tensors merged",
    "carried_norm": "and the norm carried over",
}
COLOURS = "#0072B2", "#E69F00"  # of neighbours, which could not be told apart otherwise
LIGHT = "#BBD9EA", "#F8E1B0", "#B3DFD2"
SIZES, CHUNK, ROW = (5000, 64, 300), 1024, 256  # of docs/merging.md, and in elements
STYLE = [ROOT / "notebooks" / "refopt_lecture" / "figures.mplstyle", {"svg.hashsalt": "refopt", "svg.fonttype": "path"}]


def draw(record: Path = RECORD, figure: Path = FIGURE) -> None:
    """Draw the figure from a record of LARS."""
    import matplotlib.pyplot as plt

    rows = {row["implementation"]: row["kernels"] for row in json.loads(record.read_text())["timeline"]
            if row["workload"] == "resnet50" and row["how"] == "plan" and "kernels" in row}
    with plt.style.context(STYLE):
        drawn, axes = plt.subplots(figsize=(4.8, 2.7))
        for y, (name, label) in enumerate(LINES.items()):
            spans = [(start, length) for _, start, length in rows[name]]
            axes.broken_barh(spans, (y - 0.1, 0.45), facecolors=[COLOURS[k % 2] for k in range(len(spans))])
            end = spans[-1][0] + spans[-1][1]
            axes.text(0, y - 0.16, f"{label}: {len(spans)} launches, {end:,.0f} µs", va="bottom")
        axes.spines.left.set_visible(False)
        axes.set(ylim=(2.45, -0.55), yticks=[], title="A step of LARS on ResNet-50, H200, fp32", xlabel="time (µs)")
        drawn.savefig(figure, metadata={"Date": None})


def draw_tiles(figure: Path = TILES) -> None:
    """Draw which tensor, chunk, row and lane an element belongs to, from the whole to its parts."""
    import matplotlib.pyplot as plt

    chunks = [tensor for tensor, size in enumerate(SIZES) for _ in range(-(-size // CHUNK))]
    wide, part = 100 / len(chunks), 100 * ROW / CHUNK
    lanes = [(2.3, "", COLOURS[1] if lane == 26 else LIGHT[0]) for lane in range(32)]
    rows = [  # from the top: the height, the title, and the boxes' widths, texts and colours
        (7, f"Tensors of {str(SIZES)[1:-1]}", [(wide * chunks.count(k), "abc"[k], LIGHT[k]) for k in range(3)]),
        (27, "Chunks: up to 1,024 elements, one per block", [(wide, f"{k}", LIGHT[of]) for k, of in enumerate(chunks)]),
        (55, f"Rows: {ROW} elements; two warps take turns\n(norms: one warp sums four rows, a tile)",
         [(part, f"warp {k % 2}", LIGHT[0]) for k in range(CHUNK // ROW)]),
        (84, "Lanes: 32 threads, 4 + 4 elements each", [*lanes, (20, "0 to 127", "none")]),
        (94, "", [*lanes, (23, "128 to 255", "none")])]
    with plt.style.context(STYLE):
        plain = {"xlim": (0, 100), "ylim": (104, 0), "frame_on": False, "xticks": [], "yticks": []}
        drawn, axes = plt.subplots(figsize=(4.8, 5.0), subplot_kw=plain)
        for y, title, boxes in rows:
            axes.text(0, y - 1, title, va="bottom", fontsize=10)
            x = 0.0
            for width, text, colour in boxes:
                axes.add_patch(plt.Rectangle((x, y), width, 8, facecolor=colour, edgecolor="white", lw=1.2))
                axes.text(x + width / 2, y + 4.2, text, ha="center", va="center", fontsize=10)
                x += width
        for y, x in ((35, wide), (63, part)):
            axes.plot([0, 0], [y, y + 20], ":", [x, 100], [y, y + 20], ":", color="0.5", lw=0.8)
        drawn.savefig(figure, metadata={"Date": None})


if __name__ == "__main__":
    draw()
    draw_tiles()
