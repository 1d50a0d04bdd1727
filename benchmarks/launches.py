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
        axes.set_yticks([])
        axes.spines.left.set_visible(False)
        axes.set(ylim=(2.45, -0.55), title="A step of LARS on ResNet-50, H200, fp32", xlabel="time on the GPU (µs)")
        drawn.savefig(figure, metadata={"Date": None})


def draw_tiles(figure: Path = TILES) -> None:
    """Draw which tensor, chunk, row and lane an element belongs to, from the whole to its parts."""
    import matplotlib.pyplot as plt

    with plt.style.context(STYLE):
        drawn, axes = plt.subplots(figsize=(4.8, 5.0))
        axes.set(xlim=(0, 100), ylim=(100, 0))
        axes.axis("off")

        def boxes(y: float, widths: list[float], texts: list[str], colours: list[str], gap: float = 1) -> None:
            x = 0.0
            for width, text, colour in zip(widths, texts, colours, strict=True):
                axes.add_patch(plt.Rectangle((x, y), width, 9, facecolor=colour, edgecolor="0.25", lw=0.8))
                axes.text(x + width / 2, y + 4.7, text, ha="center", va="center", fontsize=10)
                x += width + gap

        def opened(y: float, left: float, right: float) -> None:
            for x, end in ((left, 0), (right, 100)):
                axes.plot([x, end], [y, y + 19], color="0.5", lw=0.8, linestyle=":")

        def says(y: float, text: str) -> None:
            axes.text(0, y, text, va="bottom", fontsize=10)

        chunks = [of for of, size in enumerate(SIZES) for _ in range(-(-size // CHUNK))]
        wide = (100 - len(chunks) + 1) / len(chunks)
        says(6, f"Tensors of {', '.join(map(str, SIZES))} elements")
        boxes(7, [chunks.count(k) * (wide + 1) - 1 for k in range(len(SIZES))], ["a", "b", "c"], list(LIGHT))
        says(26, f"Chunks: up to {CHUNK:,} elements, one per block")
        boxes(27, [wide] * len(chunks), [f"block {k}" if k == 0 else str(k) for k in range(len(chunks))],
              [LIGHT[of] for of in chunks])
        opened(36, 0, wide)
        says(54, f"Rows: {ROW} elements; two warps take turns\n(norms: one warp sums four rows, a tile)")
        boxes(55, [24.25] * 4, [f"warp {k % 2}" for k in range(4)], [LIGHT[0]] * 4)
        opened(64, 0, 24.25)
        says(83, "Lanes: 32 threads, 4 + 4 elements each")
        for y, text in ((84, "0 to 127"), (92, "128 to 255")):
            for lane in range(32):
                shade = COLOURS[1] if lane == 26 else LIGHT[0]
                axes.add_patch(plt.Rectangle((lane * 2.3, y), 2.3, 6, facecolor=shade, edgecolor="white", lw=0.8))
            axes.text(76, y + 3.2, text, va="center", fontsize=10)
        drawn.savefig(figure, metadata={"Date": None})


if __name__ == "__main__":
    draw()
    draw_tiles()
