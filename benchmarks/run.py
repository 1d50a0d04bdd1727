"""Measure, print a table, save the report.

    python -m benchmarks.run [lars | optimizers] [--workloads resnet50 bert-large] [--out FILE]

Needs a CUDA GPU with PyTorch and numba-cuda. The report is JSON: where and with what it was made, and for
each section its rows. The exit status is 1 if a section failed or a row is wrong; the others are kept.
"""

import argparse
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

from benchmarks import lars, optimizers, table
from benchmarks.measure import copy_gb_s
from benchmarks.record import RESULTS, begin, by_sections, short_name

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
    out = options.out or RESULTS / f"{options.what}-{short_name(torch.cuda.get_device_properties(0).name)}.json"
    report = measured(options.what, options.workloads, out)
    table.show(report)
    print(f"\nwritten to {out}")
    return 1 if report["failures"] else 0


def measured(what: str, names: list[str], out: Path) -> dict[str, Any]:
    """The whole report, saved after every section."""
    command = f"python -m benchmarks.run {what} --workloads {' '.join(names)}"
    report: dict[str, Any] = begin(f"benchmarks.{what}", command)
    report |= {"timing": TIMING, "what": what}

    def sections() -> Iterator[tuple[str, Callable[[], Any]]]:
        yield "copy_gb_s", copy_gb_s
        yield from SECTIONS[what](report["copy_gb_s"], names)

    by_sections(report, sections(), out)
    return report


if __name__ == "__main__":
    sys.exit(main())
