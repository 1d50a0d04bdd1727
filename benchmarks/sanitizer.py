"""Every kernel under compute-sanitizer: memcheck, racecheck, initcheck and synccheck.

    python -m benchmarks.sanitizer [--out benchmarks/results/sanitizer-h200.json]

The work is small lists of tensors with empty, odd, misaligned and many-chunk ones, for each form and each
combination of dtypes, two steps each, compared with the CPU reference bit for bit.
"""

import argparse
import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from refopt import gpu
from refopt.catalog import LARS_MOMENTUM
from refopt.conformance.cases import assert_same
from refopt.conformance.lars import STEP, make
from refopt.conformance.laws import reference
from refopt.conformance.placed import kernels

TOOLS = ("memcheck", "racecheck", "initcheck", "synccheck")
SIZES = [1, 0, 255, 1025, 70_000, 8192, 1_100_000, 3]
# dtypes of parameter, gradient, velocity and, if there is one, master
DTYPES = (
    ("float32", "float32", "float32"),
    ("float16", "float16", "float32", "float32"),
    ("float16", "float32", "float16"),
    ("bfloat16", "bfloat16", "float32", "float32"),
    ("float64", "float16", "float64"),
)


def work() -> None:
    """Run everything once; an AssertionError if it is not what the CPU reference gives."""
    machine = gpu.device("gpu")
    for dtypes in DTYPES:
        case = make(SIZES, dtypes, steps=[STEP, STEP])
        expected = reference(case)
        for form in LARS_MOMENTUM.forms:
            for shift in (0, 1):
                assert_same(expected, kernels(form, machine, (shift,))(case), f"{form}, {shift} off")
                print(*dtypes, form, f"{shift} off: equal", flush=True)


def under(tool: str) -> dict[str, Any]:
    command = ["compute-sanitizer", "--tool", tool, "--error-exitcode", "9", "--print-limit", "20"]
    command += [sys.executable, "-m", "benchmarks.sanitizer", "--work"]
    done = subprocess.run(command, capture_output=True, text=True)
    lines = done.stdout.splitlines()
    summary = next((line for line in reversed(lines) if "SUMMARY" in line), "no summary").strip("= ")
    print(f"{tool}: exit status {done.returncode}, {summary}", flush=True)
    if done.returncode:
        print("\n".join(lines[-60:]), done.stderr[-3000:], sep="\n")
    return {"tool": tool, "command": command, "exit_status": done.returncode, "summary": summary}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/sanitizer.json"))
    parser.add_argument("--work", action="store_true", help="the work itself, without a tool")
    args = parser.parse_args()
    if args.work:
        work()
        return 0
    from benchmarks.run import environment  # here, so that the work goes without PyTorch

    with ThreadPoolExecutor() as pool:
        reports = list(pool.map(under, TOOLS))
    report = environment() | {"command": "python -m benchmarks.sanitizer", "tools": reports}
    args.out.write_text(json.dumps(report, indent=1) + "\n")
    return int(any(tool["exit_status"] for tool in report["tools"]))


if __name__ == "__main__":
    sys.exit(main())
