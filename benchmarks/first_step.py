"""From nothing to the first step of AdamW on ResNet-50's tensors, in fresh processes: cold and warm.

    python -m benchmarks.first_step [--out FILE]

On a CUDA GPU. A cold process finds no kernels and compiles its own; a warm one finds those of a cold one. ``first`` is
what a process waits for that has imported refopt and has its arrays: the driver with its context, the plan, which loads
or compiles kernels, and the step, up to its end on the device. `benchmarks.fresh` is what each process does.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.record import RESULTS, ROOT, begin, closure, digests, save, short_name

COLD, WARM = 3, 4  # processes, and how many after each
FIRST = "device", "plan", "step"
TIMING = f"medians of {COLD} cold and {COLD * WARM} warm processes, in milliseconds by the clock of the host"
WORKLOAD = "resnet50"


def fresh(folder: str) -> dict[str, Any]:
    """What a process says whose kernels are kept in a folder, and what it has taken as a whole."""
    start = time.perf_counter()
    command = [sys.executable, "-m", "benchmarks.fresh", WORKLOAD]
    done = subprocess.run(
        command, cwd=ROOT, env=os.environ | {"REFOPT_CACHE": folder}, stdout=subprocess.PIPE, text=True, check=True
    )
    said = json.loads(done.stdout)
    times = {"first": sum(said["ms"][part] for part in FIRST)} | said["ms"]
    return said | {"ms": times | {"process": (time.perf_counter() - start) * 1e3}}


def row(how: str, runs: list[dict[str, Any]]) -> dict[str, Any]:
    """The medians of some processes, and the most that a first step has taken."""
    times = {part: statistics.median(run["ms"][part] for run in runs) for part in runs[0]["ms"]}
    imported = sorted({name for run in runs for name in run["imported"]})
    most = max(run["ms"]["first"] for run in runs)
    return {"how": how, "processes": len(runs), "imported": imported, "most": most, "ms": times}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="default: benchmarks/results/first-step-DEVICE.json")
    options = parser.parse_args()
    report = begin("benchmarks.first_step") | {"what": "first step", "workload": WORKLOAD, "timing": TIMING}
    report["sources"] |= digests(closure("benchmarks.fresh"))
    cold, warm = [], []
    for _ in range(COLD):
        with tempfile.TemporaryDirectory() as folder:
            cold.append(fresh(folder))
            warm += [fresh(folder) for _ in range(WARM)]
    report["rows"] = [row("cold", cold), row("warm", warm)]
    save(report, options.out or RESULTS / f"first-step-{short_name(report['device'])}.json")
    for each in report["rows"]:
        print(each, flush=True)


if __name__ == "__main__":
    main()
