"""Draws the kernels of a step of LARS on ResNet-50 along one axis of time: `python -m benchmarks.launches`.

One launch for each tensor, beside two launches for all of them, as `benchmarks/results/lars-h200.json` has measured
them; the figure is docs/launches.svg.
"""

import json
from pathlib import Path

from benchmarks.record import RESULTS, ROOT

RECORD = RESULTS / "lars-h200.json"
FIGURE = ROOT / "docs" / "launches.svg"
LINES = {
    "separate": "one launch per tensor",
    "two_launches": "all tensors merged",
    "carried_norm": "and the norm carried over",
}
COLOURS = "#0072B2", "#E69F00"  # of neighbours, which could not be told apart otherwise


def draw(record: Path = RECORD, figure: Path = FIGURE) -> None:
    """Draw the figure from a record of LARS."""
    import matplotlib.pyplot as plt

    rows = {row["implementation"]: row["kernels"] for row in json.loads(record.read_text())["timeline"]
            if row["workload"] == "resnet50" and row["how"] == "plan" and "kernels" in row}
    styles = {"svg.hashsalt": "refopt", "svg.fonttype": "path"}
    with plt.style.context([ROOT / "notebooks" / "refopt_lecture" / "figures.mplstyle", styles]):
        drawn, axes = plt.subplots(figsize=(8, 2.1))
        for y, name in enumerate(LINES):
            spans = [(start, length) for _, start, length in rows[name]]
            axes.broken_barh(spans, (y - 0.32, 0.64), facecolors=[COLOURS[k % 2] for k in range(len(spans))])
            end = spans[-1][0] + spans[-1][1]
            axes.text(end + 8, y, f"{len(spans)} launches, {end:,.0f} µs", va="center")
        axes.set_yticks(range(len(LINES)), LINES.values())
        axes.invert_yaxis()
        axes.set(title="A step of LARS on the 161 tensors of ResNet-50, on an H200, in fp32", xlim=(0, 1600))
        axes.set_xlabel("time on the GPU (µs)")
        drawn.savefig(figure, metadata={"Date": None})


if __name__ == "__main__":
    draw()
