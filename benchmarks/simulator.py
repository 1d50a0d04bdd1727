"""Times kernels without defects on the executor, watched by it, and on Numba's simulator.

    python -m benchmarks.simulator [--out FILE] [--only NAME ...]

Each kernel of `benchmarks.detector_times` runs in a process of its own, in each of the three ways. All must leave the
same bits.
"""

import argparse
import json
import os
import sys
from pathlib import Path
from typing import Any

from benchmarks.children import run
from benchmarks.detector_times import KERNELS
from benchmarks.record import RESULTS, ROOT, begin, closure, save

DEADLINE = 300.0  # seconds of a process
EXECUTOR = [sys.executable, "-m", "refopt.simt"]
WAYS = {"unwatched": [*EXECUTOR, "-m"], "watched": [*EXECUTOR, "--watch", "-m"], "simulator": [sys.executable, "-m"]}


def measured(name: str) -> dict[str, Any]:
    """Seconds of a kernel in each way."""
    row: dict[str, Any] = {"kernel": name, "what": KERNELS[name]}
    for key, command in WAYS.items():
        environment = {**os.environ, "NUMBA_ENABLE_CUDASIM": str(int(key == "simulator"))}
        status, output = run([*command, "benchmarks.detector_times", name], DEADLINE, environment, ROOT)
        if status != 0:
            raise RuntimeError(f"times of {name}, {key}: {status}\n{output[-2000:]}")
        row[key] = json.loads(output.splitlines()[-1])
    if len({row[key]["result"] for key in WAYS}) != 1:
        raise RuntimeError(f"times of {name}: the results differ")
    print(name, *(f"{key} {row[key]['median_s']:.3f} s" for key in WAYS), flush=True)
    return row


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=RESULTS / "simulator.json")
    parser.add_argument("--only", nargs="+", metavar="NAME", choices=KERNELS, default=list(KERNELS))
    options = parser.parse_args()
    report = begin("benchmarks.simulator", also=closure("refopt.simt")) | {"what": "simulator", "rows": []}
    for name in options.only:
        report["rows"].append(measured(name))
        save(report, options.out)


if __name__ == "__main__":
    main()
