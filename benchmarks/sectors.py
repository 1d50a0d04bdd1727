"""Sectors, requests and bank conflicts as the executor counts them, beside those of a GPU by Nsight Compute.

    python -m benchmarks.sectors [--out FILE]

The kernels are those of `benchmarks.access_patterns`. A child process launches each once under ncu. Of the child's
registers and shared memory, occupancy is worked out and compared as well. The exit status is 1 if a figure differs.
"""

import argparse
import csv
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.access_patterns import BLOCK, CASES, launch
from benchmarks.children import run
from benchmarks.record import RESULTS, ROOT, begin, save, short_name
from refopt import gpu, simt

LIMIT = 400.0  # seconds for all kernels under ncu
# An atomic operation whose result nobody wants is compiled to a reduction.
KINDS = {"load": "ld", "store": "st", "atomic": "atom", "reduction": "red"}
GLOBAL = {
    f"{what} {kind}": f"l1tex__t_{what}_pipe_lsu_mem_global_op_{short}.sum"
    for what in ("sectors", "requests")
    for kind, short in KINDS.items()
}
SHARED = {
    f"conflicts {kind}": f"l1tex__data_bank_conflicts_pipe_lsu_mem_shared_op_{short}.sum"
    for kind, short in KINDS.items()
    if kind != "reduction"
}
# Reported for what they tell, and not compared: wavefronts of other units pass through the same pipe.
WAVEFRONTS = {
    f"wavefronts {kind}": f"l1tex__data_pipe_lsu_wavefronts_mem_shared_op_{short}.sum"
    for kind, short in KINDS.items()
    if kind != "reduction"
}
LAUNCHED = {
    "registers": "launch__registers_per_thread",
    "static shared": "launch__shared_mem_per_block_static",
    "dynamic shared": "launch__shared_mem_per_block_dynamic",
    "occupancy": "sm__maximum_warps_per_active_cycle_pct",
}
METRICS = GLOBAL | SHARED | WAVEFRONTS | LAUNCHED
CERTAIN = {
    key: name
    for key, name in METRICS.items()
    if not key.endswith(("atomic", "reduction")) and key not in WAVEFRONTS
}


def on_executor(name: str) -> tuple[dict[str, int], list[np.ndarray]]:
    """What the executor counts for a kernel, and the arrays afterwards."""
    with simt.observe(profile=True) as log:
        arrays = launch(CASES[name], gpu.device("executor"))
    counts = dict.fromkeys([*GLOBAL, *SHARED, *WAVEFRONTS], 0)
    for row in log.profile.sectors:
        counts[f"sectors {row.kind}"] += row.sectors
        counts[f"requests {row.kind}"] += row.requests
    for row in log.profile.banks:
        counts[f"conflicts {row.kind}"] += row.conflicts
        counts[f"wavefronts {row.kind}"] += row.wavefronts
    return counts, arrays


def on_gpu() -> None:
    """The child: each kernel once. An AssertionError if a result is not the executor's."""
    machine = gpu.device("gpu")
    for name, case in CASES.items():
        expected, actual = (launch(case, each)[-1] for each in (gpu.device("executor"), machine))
        if case.kernel.name.startswith("histogram"):  # which thread comes first is open
            expected, actual = np.sort(expected), np.sort(actual)
        np.testing.assert_array_equal(actual, expected, name)
        print(f"{name}: equal", flush=True)


def profiled(metrics: dict[str, str]) -> tuple[list[dict[str, Any]], str]:
    """A row for each kernel that the child launches, by the metrics' own keys, and what went wrong, if anything did."""
    with tempfile.TemporaryDirectory() as folder:
        table = Path(folder) / "ncu.csv"
        status, output = run(
            [
                "ncu", "--csv", "--page", "raw", "--print-units", "base", "--log-file", str(table),
                "--target-processes", "all", "--clock-control", "none", "--metrics", ",".join(metrics.values()),
                sys.executable, "-m", "benchmarks.sectors", "--launch",
            ],
            LIMIT, cwd=ROOT,
        )
        text = table.read_text() if table.exists() else ""
    rows = parsed(text, metrics)
    if status == 0 and len(rows) == len(CASES):
        return rows, ""
    said = [line for line in [*text.splitlines(), *output.splitlines()] if not line.startswith(('"', "==PROF=="))]
    return rows, "\n".join([f"ncu: exit status {status}, {len(rows)} of {len(CASES)} kernels", *said[-40:]])


def parsed(text: str, metrics: dict[str, str]) -> list[dict[str, Any]]:
    """ncu's table. Its second row has the units."""
    lines = [line for line in text.splitlines() if line.startswith('"')]
    rows = list(csv.DictReader(lines))[1:]
    return [
        {"kernel": row["Kernel Name"]} | {key: number(row.get(name, "")) for key, name in metrics.items()}
        for row in rows
    ]


def number(text: str) -> float | None:
    """A figure of ncu's; None for one that it could not take."""
    try:
        value = float(text.replace(",", ""))
    except ValueError:
        return None
    return int(value) if value.is_integer() else value


def compared(name: str, measured: dict[str, Any], capability: tuple[int, int]) -> dict[str, Any]:
    """The row of a kernel: both machines' figures, and the keys of those that differ."""
    counts, _ = on_executor(name)
    for what in ("sectors", "requests"):  # the executor does not tell the two apart
        if f"{what} reduction" in measured:
            measured[f"{what} atomic"] += measured.pop(f"{what} reduction")
    row: dict[str, Any] = {"name": name, "executor": counts, "gpu": measured}
    differ = [key for key in GLOBAL | SHARED if measured.get(key) is not None and counts[key] != measured[key]]
    if all(measured.get(key) is not None for key in LAUNCHED):
        shared = measured["static shared"] + measured["dynamic shared"]
        fits = simt.occupancy(BLOCK, measured["registers"], shared, capability)
        row["occupancy"] = fits._asdict()
        if abs(100 * fits.share - measured["occupancy"]) > 0.1:
            differ.append("occupancy")
    if CASES[name].kernel.function.__code__.co_name not in measured["kernel"]:  # a compiled kernel is named by its code
        differ.append("kernel")
    return row | {"differ": differ}


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="default: benchmarks/results/sectors-DEVICE.json")
    parser.add_argument("--launch", action="store_true", help="the child: launch the kernels, without ncu")
    args = parser.parse_args()
    if args.launch:
        on_gpu()
        return 0
    if shutil.which("ncu") is None:
        parser.error("expected ncu on the path, got none")
    report = begin("benchmarks.sectors") | {"what": "sectors", "metrics": METRICS, "failure": "", "rows": []}
    out = args.out or RESULTS / f"sectors-{short_name(report['device'])}.json"
    measured, report["failure"] = profiled(METRICS)
    if not measured:  # a version of ncu that lacks one of them measures none
        print(report["failure"], flush=True)
        report["metrics"] = CERTAIN
        measured, report["failure"] = profiled(CERTAIN)
    capability = capability_of() if measured else (0, 0)
    for name, row in zip(CASES, measured, strict=False):
        report["rows"].append(compared(name, row, capability))
        save(report, out)
        differ = report["rows"][-1]["differ"]
        figures = (f"{key} {report['rows'][-1]['executor'].get(key, '-')} / {row[key]}" for key in differ)
        print(f"{name}: {', '.join(figures) or 'equal'}", flush=True)
    save(report, out)
    if report["failure"]:
        print(report["failure"])
    return int(bool(report["failure"]) or any(row["differ"] for row in report["rows"]))


def capability_of() -> tuple[int, int]:
    """The compute capability of the GPU in hand."""
    from numba import cuda

    return tuple(cuda.get_current_device().compute_capability)


if __name__ == "__main__":
    sys.exit(main())
