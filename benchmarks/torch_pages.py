"""What docs/torch.md shows of the records of `benchmarks.torch_step`, `torch_training` and `fully_shard`.

    python -m benchmarks.torch_pages          draws the figures again

Without a record, a section says how to make it, and nothing is drawn.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from benchmarks.record import RESULTS, ROOT, read
from benchmarks.sections import figures, with_section

STEP, TRAINING = RESULTS / "torch-step-h200.json", RESULTS / "torch-training-h200.json"
SHARDED = RESULTS / "fully-shard-h200-x2.json"
STEP_FIGURE, TRAINING_FIGURE = ROOT / "docs" / "torch-step.svg", ROOT / "docs" / "torch-training.svg"
OURS, DRAWN = "refopt.torch", "resnet50"  # and the workload of the figure
WORKLOADS = {"resnet50": "ResNet-50", "bert-large": "BERT-large"}
LINES = (  # label, implementation, how it is run
    ("PyTorch, `foreach`", "foreach", "eager"), ("PyTorch, `capturable`", "capturable", "eager"),
    ("PyTorch, `fused`", "fused", "eager"), ("PyTorch, `torch.compile`", "torch.compile", "compiled"),
    ("**`refopt.torch`**", OURS, "eager"), ("**`refopt.torch`**, accelerated", f"{OURS}, accelerated", "eager"),
    ("an empty step of PyTorch", "an empty step", "eager"),
)
GRAPHS = (
    ("PyTorch, `capturable`", "capturable", "graph"), ("PyTorch, `fused`", "fused", "graph"),
    ("PyTorch, `torch.compile`", "torch.compile", "compiled graph"), ("**`refopt.torch`**", OURS, "graph"),
)
SHOWN = {"adamw": "AdamW", "momentum": "SGD with momentum"}
COLOURS = {OURS: "#0072B2", "fused": "#E69F00", "foreach": "#009E73"}


def with_records(page: str) -> str:
    """docs/torch.md with the figures of both records."""
    page = with_section(page, "torch-step", shown(STEP, step_text))
    page = with_section(page, "torch-training", shown(TRAINING, training_text))
    return with_section(page, "fully-shard", shown(SHARDED, sharded_text))


def shown(path: Path, text: Callable[[dict[str, Any]], str]) -> str:
    """What a section says of a record, or of there being none."""
    if path.is_file():
        return text(read(path.name))
    step, _, on = path.name.partition("-h200")
    argument, gpus = ("GPUS=2 ", "two GPUs") if "x2" in on else ("", "a GPU")
    return f"There is no record of this. `make gpu-records {argument}ONLY={step}` makes one, on a machine with {gpus}."


# Sharded models.


def sharded_text(record: dict[str, Any]) -> str:
    """The table of a sharded training, and what its steps agree to."""
    columns = {"iteration_ms": "iteration, ms", "step_host_ms": "step on the host, ms",
               "step_device_ms": "step on the GPU, ms"}
    body = [[f"`{row['implementation']}`, {row['way']}", *(f"{row[key]:.3f}" for key in columns),
             f"{row['peak_bytes'] / 1e9:.2f}"] for row in record["steps"]]
    table = figures(["", *columns.values(), "GB at the peak"], body)
    ours = [row for row in record["agreement"] if row["implementation"] == OURS]
    worst, (saved,), size = max(row["difference"] for row in ours), record["checkpoint"], record["size"]
    model = f"a transformer of {size['layers']} layers and width {size['width']}"
    batch = f"{size['samples']} sequences of {size['length']} on each rank"
    of_record = f"On {record['world']} {record['device']} ([record](../benchmarks/results/{SHARDED.name}))"
    others = [row["others_ms"] for row in record["timelines"]]
    host = [f"The host bounds an iteration: PyTorch's profiler finds kernels other than collectives running for "
            f"{min(others):.0f} to {max(others):.0f} ms of it."] if others else []
    return "\n\n".join([
        f"{of_record}, AdamW, {model}, {batch}:", table, *host,
        f"After {ours[0]['steps']} steps from the same gradients, parameters were within {worst:.1e} of those of "
        f"PyTorch's fused optimizer, relative to the largest of each tensor. After "
        f"`torch.distributed.checkpoint` had saved and loaded a run, {saved['differing_elements']} elements differed.",
    ])


# A step.


def step_text(record: dict[str, Any]) -> str:
    """The tables of a step: eager with new gradients, and as a CUDA graph."""
    rows, names = record["steps"] + record["compiled"], list(dict.fromkeys(row["workload"] for row in record["steps"]))
    of_record = f"On an {record['device']} ([record](../benchmarks/results/{STEP.name})), in fp32"
    parts = [f"{of_record}: host time in microseconds, GPU time in milliseconds."]
    for routine, called in SHOWN.items():
        own = [row for row in rows if row["routine"] == routine]
        tables = {f"{called}, eager, after a backward pass that has made new gradients:":
                  _times(own, names, LINES, "after backward")}
        if routine == "adamw":
            tables["As a CUDA graph, with gradients at fixed addresses:"] = _times(own, names, GRAPHS, "same addresses")
        parts += [part for pair in tables.items() if pair[1] for part in pair]
    if drawn := drawn_of(record):
        said = "A step of AdamW on ResNet-50, the host's launches above the GPU's kernels, on one axis of time: "
        parts.append(f"![{said}refopt.torch, PyTorch's fused and its foreach]({STEP_FIGURE.name})")
        said = ", ".join(f"{row['spans'][-1][3]:,.0f} µs by `{row['implementation']}`" for row in drawn)
        parts.append(f"The figure shows a run under PyTorch's profiler, which slows the host: a step took {said}.")
    return "\n\n".join(parts)


def step_in_short(record: dict[str, Any]) -> str:
    """README.md: an eager step of AdamW beside PyTorch's fused one, of models and the longest list."""
    rows = [row for row in record["steps"] if row["routine"] == "adamw"]
    kept = {*WORKLOADS, max(rows, key=lambda row: row["tensors"])["workload"]}
    names = list(dict.fromkeys(row["workload"] for row in rows if row["workload"] in kept))
    return _times(rows, names, [line for line in LINES if line[1] in ("fused", OURS)], "after backward")


def called_of(workload: str) -> str:
    """A workload in words."""
    return WORKLOADS.get(workload, workload)


def _times(rows: list[dict], names: Sequence[str], lines: Sequence[tuple[str, str, str]], condition: str) -> str:
    """Host and GPU by workload; a dash where nothing was measured, and nothing where nothing was at all."""
    found = {(row["workload"], row["implementation"], row["how"]): row for row in rows
             if row.get("condition") == condition}
    head = ["", *(f"{called_of(name)}, {unit}" for name in names for unit in ("host, µs", "GPU, ms"))]
    body = []
    for label, *way in lines:
        each = [found.get((name, *way), {}) for name in names]
        if any(each):
            pairs = [(row.get(key), form) for row in each for key, form in (("host_us", ",.0f"), ("ms", ".3f"))]
            body.append([label, *("–" if x is None else format(x, form) for x, form in pairs)])
    if not body:
        return ""
    floors = [next((row["floor_ms"] for row in found.values() if row["workload"] == name), None) for name in names]
    body.append(["floor", *(x for floor in floors for x in ("", "–" if floor is None else f"{floor:.3f}"))])
    return figures(head, body)


def drawn_of(record: dict[str, Any]) -> list[dict]:
    """The steps of the figure."""
    return [row for row in record["timelines"] if row["workload"] == DRAWN]


def draw_step(record: dict[str, Any], figure: Path) -> None:
    """Draw the calls of the host and the kernels of the GPU in a step, one optimizer below the other."""
    import matplotlib.pyplot as plt

    rows = drawn_of(record)
    with plt.style.context([ROOT / "notebooks" / "refopt_lecture" / "figures.mplstyle", {"svg.hashsalt": "refopt"}]):
        drawn, axes = plt.subplots(len(rows), sharex=True, squeeze=False, figsize=(8, 1.0 + 1.1 * len(rows)))
        for ax, row in zip(axes[:, 0], rows, strict=True):
            timeline(ax, row["spans"], row["implementation"])
        title = f"A step of AdamW on {called_of(DRAWN)}, with new gradients, on an {record['device']}"
        drawn.suptitle(title, x=0.01, ha="left", fontsize=12)
        axes[-1, 0].set_xlabel("time since the call (µs)")
        drawn.savefig(figure, metadata={"Date": None} if figure.suffix == ".svg" else None)
        plt.close(drawn)


def timeline(ax: Any, spans: Sequence[Sequence[Any]], name: str) -> None:
    """One step on axes of its own: the call and what it launches above, what the GPU does below."""
    colour = COLOURS.get(name, "0.4")
    lanes = "step", "host", "gpu"
    of_lane = {lane: [(at, length) for kind, _, at, length in spans if kind == lane] for lane in lanes}
    ax.broken_barh(of_lane["step"], (-0.3, 0.6), facecolors="0.9")
    ax.broken_barh(of_lane["host"], (-0.3, 0.6), facecolors="0.45")
    ax.broken_barh(of_lane["gpu"], (0.7, 0.6), facecolors=colour)
    ax.set_yticks([0, 1], ["host", "GPU"])
    ax.invert_yaxis()
    ax.text(1.0, 1.02, name, transform=ax.transAxes, ha="right", va="bottom", fontsize=10)


# A training.


def training_text(record: dict[str, Any]) -> str:
    """Samples per second, how near the steps are to the bound, and whether a run that stops goes on the same."""
    names = {OURS: "`refopt.torch`", "fused": "`fused`", "foreach": "`foreach`"}
    speeds = {(row["model"], row["optimizer"], row["implementation"]): row
              for row in record["speeds"] if "skipped" not in row}
    cases = list(dict.fromkeys(key[:2] for key in speeds))
    head = ["", *(f"{model}, {optimizer}" for model, optimizer in cases)]
    body = [[f"{called}, samples per second", *(f"{speeds[*case, name]['samples_per_second']:,.1f}" for case in cases)]
            for name, called in names.items()]
    body += [[f"{called}, GB at the peak", *(f"{speeds[*case, name]['peak_bytes'] / 1e9:.2f}" for case in cases)]
             for name, called in names.items()]
    curves = [row for row in record["curves"] if "skipped" not in row or "losses" in row]
    worst = {name: max(row[f"largest_{name}"] for row in curves) for name in ("refopt", "fused")}
    parts = [
        f"On an {record['device']} ([record](../benchmarks/results/{TRAINING.name})), in mixed precision, with "
        "`GradScaler`, a cosine schedule and clipping; PyTorch's "
        "gradients are clipped by `clip_grad_norm_`, refopt's by `max_norm=`.",
        figures(head, body),
        f"{sum(row['steps'] for row in curves)} steps of both from the same parameters, states and gradients: in "
        f"{sum(row['elements'] for row in curves):,} elements, the largest error divided by [the oracle's bound]"
        f"(oracle.md#the-bound) is {worst['refopt']:.2f} with `refopt.torch` and {worst['fused']:.2f} with `fused`.",
    ]
    bad = [f"{row['model']} with {row['optimizer']}" for row in record["resumed"] if not row.get("ok", True)]
    if record["resumed"]:
        parts.append(
            "A run that was saved, loaded and continued gave the same bits as an uninterrupted one"
            + (f", except that of {', '.join(bad)}." if bad else ".")
        )
    if any("losses" in row for row in record["curves"]):
        said = "Losses by step of PyTorch's fused and foreach optimizers and of refopt.torch, and how far they are "
        parts.append(f"![{said}from the fused one's]({TRAINING_FIGURE.name})")
    return "\n\n".join(parts)


def draw_training(record: dict[str, Any], figure: Path) -> None:
    """Draw the losses, and below them how far they are from those of PyTorch's fused optimizer."""
    import matplotlib.pyplot as plt

    rows = [row for row in record["curves"] if "losses" in row]
    with plt.style.context([ROOT / "notebooks" / "refopt_lecture" / "figures.mplstyle", {"svg.hashsalt": "refopt"}]):
        drawn, axes = plt.subplots(2, len(rows), sharex=True, squeeze=False, figsize=(1.0 + 3.2 * len(rows), 4.4))
        for (above, below), row in zip(axes.T, rows, strict=True):
            for name, style in (("foreach", "--"), ("fused", "-"), (OURS, ":")):
                losses = row["losses"][name]
                above.plot(losses, style, color=COLOURS[name], label=name)
                if name != "fused":
                    apart = [abs(x - y) for x, y in zip(losses, row["losses"]["fused"], strict=True)]
                    below.plot(apart, style, color=COLOURS[name], label=name)
            above.set_title(f"{row['model']}, {row['optimizer']}")
            below.set_xlabel("step")
            below.set_yscale("symlog", linthresh=1e-6)
        axes[0, 0].set_ylabel("loss")
        axes[1, 0].set_ylabel("from the fused one's")
        axes[0, -1].legend()
        drawn.savefig(figure, metadata={"Date": None} if figure.suffix == ".svg" else None)
        plt.close(drawn)


def draw() -> None:
    """Draw what there is a record of."""
    for path, figure, drawing in ((STEP, STEP_FIGURE, draw_step), (TRAINING, TRAINING_FIGURE, draw_training)):
        if path.is_file():
            drawing(read(path.name), figure)


if __name__ == "__main__":
    draw()
