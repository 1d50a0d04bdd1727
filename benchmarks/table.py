"""The report as text, at most 100 columns wide."""

from collections.abc import Iterable, Sequence
from typing import Any

from refopt.catalog import LARS_MOMENTUM

# What is shown of the sections of the other routines' report.
COLUMNS = {
    "steps": ("workload", "config", "routine", "implementation", "how", "launches", "ms", "ratio_to_floor"),
    "clipped": ("workload", "config", "implementation", "how", "launches", "ms", "ratio_to_floor"),
    "agreement": ("routine", "largest_difference", "tolerance", "ok"),
    "graph": ("routine", "replays", "differing_bytes"),
    "host": ("list", "implementation", "no_arguments_us", "unchanged_us", "lr_changed_us", "rebind_us"),
    "tensors": ("tensors", "merged_ms", "separate_ms", "separate_loop_ms", "fused_graph_ms", "fused_ms", "speed_up"),
    "elements": ("elements", "ms", "ps_per_element", "ratio_to_floor"),
    "compiled": ("workload", "config", "routine", "implementation", "how", "ms", "ratio_to_floor"),
}


def show(report: dict[str, Any]) -> None:
    """Print what a report holds; a section that failed is left out, and its error is at the end."""
    versions = ", ".join(f"{name} {version}" for name, version in report["versions"].items())
    print(f"\n{report['device']}, driver {report['driver']}\n{versions}")
    if report["copy_gb_s"]:
        print(f"device-to-device copy: {report['copy_gb_s']:.0f} GB/s")
    if report["what"] == "lars":
        for section in (_steps, _bits, _agreement, _graph, _host, _tensors, _elements):
            if report.get(section.__name__.strip("_")):
                section(report)
    for name, columns in COLUMNS.items() if report["what"] != "lars" else [("compiled", COLUMNS["compiled"])]:
        rows = report.get(name) or []
        _table(name.capitalize(), columns, [[_entry(row, column) for column in columns] for row in rows])
    for name, error in report["failures"].items():
        print(f"\nFAILED {name}: {error}"[:400])


def _steps(report: dict[str, Any]) -> None:
    counted = {_key(row): row["launches"] for row in report.get("timeline") or []}
    lines: list[tuple] = []
    for row in report["steps"]:
        lines.append((
            row["workload"], row["config"], row["implementation"], row["how"], counted.get(_key(row), "?"),
            f"{row['ms']:.4f}", f"{row['bytes'] / row['elements']:.0f}",
            f"{row['ratio_to_floor']:.2f}", f"{100 * row['share_of_copy']:.0f} %",
        ))
    head = ("workload", "types", "form or peer", "enqueued", "launches", "ms", "B/el", "/floor", "share")
    _table("One step of LARS", head, lines)


def _key(row: dict[str, Any]) -> tuple:
    return row["workload"], row["config"], row["implementation"], row["how"]


def _bits(report: dict[str, Any]) -> None:
    lines: list[tuple] = []
    for row in report["bits"]:
        lines.append((row["config"], row.get("form", ""), row.get("differing_bytes", row.get("skipped"))))
    _table("Differing bytes against NumPy, ResNet-50, 2 steps", ("types", "form", "bytes"), lines)


def _agreement(report: dict[str, Any]) -> None:
    lines: list[tuple] = []
    for row in report["agreement"]:
        worst = max(row["largest_differences"].items(), key=lambda pair: pair[1] / row["tolerances"][pair[0]])
        lines.append((row["workload"], row["config"], row["peer"], worst[0], f"{worst[1]:.1e}", _ok(row)))
    head = ("workload", "types", "peer", "worst slot", "difference", "in tolerance")
    _table("Peers against refopt after one step", head, lines)


def _graph(report: dict[str, Any]) -> None:
    lines = [(row["form"], row["replays"], row["differing_bytes"]) for row in report["graph"]]
    _table("Captured, replayed with another lr each time", ("form", "replays", "differing bytes"), lines)


def _host(report: dict[str, Any]) -> None:
    names = ("no_arguments_us", "unchanged_us", "lr_changed_us")
    lines: list[tuple] = []
    for row in report["host"]:
        times = [f"{row[name]:.2f}" if name in row else "" for name in names]
        lines.append((row["list"], row["implementation"], *times))
    head = ("list", "form or peer", "step()", "same lr", "new lr")
    _table("Host time of a step, microseconds", head, lines)


def _tensors(report: dict[str, Any]) -> None:
    implementations = ("separate_loop", *LARS_MOMENTUM.forms, "foreach", "foreach_graph")
    lines: list[tuple] = []
    for row in report["tensors"]:
        times = [f"{row[name + '_ms']:.4f}" for name in implementations]
        lines.append((row["tensors"], *times, f"{row['speed_up']:.1f}"))
    head = ("tensors", "separate loop", "graph", "coop.", "two", "carried", "foreach", "graph", "speed-up")
    _table("Tensors of 10,000 elements, ms per step", head, lines)


def _elements(report: dict[str, Any]) -> None:
    lines: list[tuple] = []
    for row in report["elements"]:
        if "skipped" in row:
            lines.append((f"{row['elements']:,}", row["skipped"], "", "", "", ""))
            continue
        share, error = f"{100 * row['share_of_copy']:.0f} %", f"{row['sampled_error']:.1e}"
        lines.append((f"{row['elements']:,}", row["form"], f"{row['ms']:.4f}", share, error, _ok(row)))
    _table("One tensor", ("elements", "form", "ms", "bandwidth", "error", "in tolerance"), lines)


def _entry(row: dict[str, Any], column: str) -> str:
    value = row.get(column, "skipped" if column == "ms" and "skipped" in row else "")
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _ok(row: dict[str, Any]) -> str:
    return "yes" if row["ok"] else "NO"


def _table(title: str, head: Sequence[str], lines: Iterable[Sequence[Any]]) -> None:
    rows = [tuple(head), *(tuple(str(entry) for entry in line) for line in lines)]
    widths = [max(len(row[k]) for row in rows) for k in range(len(head))]
    print(f"\n{title}")
    for row in rows:
        print("  ".join(entry.ljust(width) for entry, width in zip(row, widths, strict=True)).rstrip())
