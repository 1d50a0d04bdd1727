"""A report of `benchmarks.run` as text: a table for each of its sections."""

from typing import Any

from benchmarks.sections import aligned

# What is shown of each section, as far as its rows have it.
COLUMNS = {
    "steps": (
        "workload", "config", "routine", "implementation", "how", "launches", "ms", "ratio_to_floor", "share_of_copy",
    ),
    "bits": ("config", "form", "differing_bytes"),
    "clipped": ("workload", "config", "implementation", "how", "launches", "ms", "ratio_to_floor"),
    "agreement": ("workload", "config", "peer", "routine", "largest_difference", "tolerance", "ok"),
    "graph": ("routine", "form", "replays", "differing_bytes"),
    "host": ("list", "implementation", "no_arguments_us", "unchanged_us", "lr_changed_us", "rebind_us"),
    "tensors": (
        "tensors", "merged_ms", "separate_loop_ms", "separate_ms", "cooperative_ms", "two_launches_ms",
        "carried_norm_ms", "foreach_ms", "foreach_graph_ms", "fused_graph_ms", "fused_ms", "speed_up",
    ),
    "elements": ("elements", "form", "ms", "ps_per_element", "ratio_to_floor", "share_of_copy", "sampled_error", "ok"),
    "compiled": ("workload", "config", "routine", "implementation", "how", "ms", "ratio_to_floor"),
}


def show(report: dict[str, Any]) -> None:
    """Print what a report holds; a section that failed is left out, and its error is at the end."""
    versions = ", ".join(f"{name} {version}" for name, version in report["versions"].items())
    print(f"\n{report['device']}, driver {report['driver']}\n{versions}")
    if report["copy_gb_s"]:
        print(f"device-to-device copy: {report['copy_gb_s']:.0f} GB/s")
    for name, columns in COLUMNS.items():
        if rows := report.get(name):
            shown = [column for column in columns if any(column in row for row in rows)]
            lines = [shown, *([_entry(row, column) for column in shown] for row in rows)]
            print("\n".join([f"\n{name.capitalize()}", *aligned(lines, "")]))
    for name, error in report["failures"].items():
        print(f"\nFAILED {name}: {error}"[:400])


def _entry(row: dict[str, Any], column: str) -> str:
    value = row.get(column, "skipped" if column == "ms" and "skipped" in row else "")
    return f"{value:.4g}" if isinstance(value, float) else str(value)
