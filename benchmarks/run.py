"""Measure, print a table, save the report.

    python -m benchmarks.run [lars | optimizers] [--workloads resnet50 bert-large] [--out FILE]

Needs a CUDA GPU with PyTorch and numba-cuda. The report is JSON: where and with what it was made, and for
each section its rows. The exit status is 1 if a section failed or a row is wrong; the others are kept.
"""

import argparse
import contextlib
import datetime
import importlib.metadata
import json
import math
import platform
import re
import shlex
import subprocess
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from benchmarks import lars, optimizers, table
from benchmarks.measure import copy_gb_s, free

RESULTS = Path(__file__).parent / "results"
TIMING = "median of 30 after 5 to warm up, by CUDA events; host: median of 21 rounds"
SECTIONS = {"lars": lars.sections, "optimizers": optimizers.sections}


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.run", description="benchmarks on a CUDA GPU")
    parser.add_argument("what", nargs="?", default="lars", choices=list(SECTIONS))
    parser.add_argument("--workloads", nargs="+", default=["resnet50", "bert-large"], metavar="NAME")
    parser.add_argument("--out", type=Path, help="default: benchmarks/results/WHAT-DEVICE.json")
    options = parser.parse_args()
    if not torch.cuda.is_available():
        parser.error("PyTorch sees no CUDA device")
    device = short_name(torch.cuda.get_device_properties(0).name)
    out = options.out or RESULTS / f"{options.what}-{device}.json"
    report = measured(options.what, options.workloads, out)
    table.show(report)
    print(f"\nwritten to {out}")
    return 1 if report["failures"] else 0


def measured(what: str, names: list[str], out: Path) -> dict[str, Any]:
    """The whole report, saved after every section."""
    began = time.perf_counter()
    report: dict[str, Any] = environment() | {"timing": TIMING, "what": what, "failures": {}, "seconds": {}}

    def section(name: str, measure: Callable[[], Any]) -> None:
        print(f"{time.perf_counter() - began:6.1f} s  {name}", file=sys.stderr, flush=True)
        start = time.perf_counter()
        report[name] = attempt(name, measure, report["failures"])
        report["seconds"][name] = round(time.perf_counter() - start, 1)
        report["seconds"]["all"] = round(time.perf_counter() - began, 1)
        save(report, out)

    section("copy_gb_s", copy_gb_s)
    for name, measure in SECTIONS[what](report["copy_gb_s"], names):
        section(name, measure)
    return report


def attempt(name: str, measure: Callable[[], Any], failures: dict[str, str]) -> Any:
    """What a section returns, None if it raises; an error or a wrong row is noted and ends nothing."""
    answer = None
    try:
        answer = measure()
        wrong = [row for row in answer if not row.get("ok", True)] if isinstance(answer, list) else []
        if wrong:
            first = {key: value for key, value in wrong[0].items() if not isinstance(value, list)}
            failures[name] = f"{len(wrong)} of {len(answer)} rows are wrong, the first: {first}"
    except Exception as error:
        traceback.print_exc()
        failures[name] = f"{type(error).__name__}: {error}"
    with contextlib.suppress(Exception):  # after an error of the device this one would fail too
        free()
    return answer


def environment() -> dict[str, Any]:
    """Where, when and with what."""
    packages = ("numpy", "numba", "numba-cuda", "torch", "cuda-bindings")
    properties = torch.cuda.get_device_properties(0)
    return {
        "command": shlex.join(["python", "-m", "benchmarks.run", *sys.argv[1:]]),
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "device": properties.name,
        "memory_gib": round(properties.total_memory / 2**30, 1),
        "multiprocessors": properties.multi_processor_count,
        "driver": driver_version(),
        "versions": {"python": platform.python_version(), "cuda of torch": torch.version.cuda}
        | {name: version_of(name) for name in packages},
        "system": platform.platform(),
    }


def version_of(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def driver_version() -> str | None:
    command = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader", "--id=0"]
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=30, check=True).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return None


def short_name(device: str) -> str:
    """``NVIDIA H200`` becomes ``h200``."""
    return re.sub(r"[^a-z0-9]+", "-", device.lower().replace("nvidia", "").replace("geforce", "")).strip("-")


def save(report: dict[str, Any], out: Path) -> None:
    """As JSON with a line for each innermost list or object, and NaN and infinity as strings."""
    text = json.dumps(finite(report), indent=1)
    text = re.sub(r"[\[{][^\[\]{}]*[\]}]", lambda found: " ".join(found.group().split()), text)
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(text + "\n")


def finite(value: Any) -> Any:
    """The value with floats that JSON has no form for written out, and others to seven digits."""
    if isinstance(value, dict):
        return {key: finite(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [finite(entry) for entry in value]
    if isinstance(value, float):
        return float(f"{value:.7g}") if math.isfinite(value) else str(value)
    return value


if __name__ == "__main__":
    sys.exit(main())
