"""Every kernel under compute-sanitizer: memcheck, racecheck, initcheck and synccheck.

    python -m benchmarks.sanitizer [--out benchmarks/results/sanitizer-h200.json]

The work is small lists of tensors with empty, odd, misaligned and many-chunk ones, for each form and each
combination of dtypes, two steps each, compared with the CPU reference bit for bit.
"""

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np

from refopt import cpu, gpu
from refopt.catalog import LARS_MOMENTUM
from refopt.ulp import same_bits

TOOLS = ("memcheck", "racecheck", "initcheck", "synccheck")
SIZES = (1, 0, 255, 1025, 70_000, 8192, 1_100_000, 3)
HYPER = {"lr": 0.5, "mu": 0.9, "lars_coeff": 0.1, "lars_weight_decay": 0.01, "epsilon": 1e-3, "rescale_grad": 0.5}
# dtypes of parameter, gradient and velocity, and whether there is a master
DTYPES = (
    ("float32", "float32", "float32", False),
    ("float16", "float16", "float32", True),
    ("float16", "float32", "float16", False),
    ("float64", "float16", "float64", False),
)


def arrays(rng: np.random.Generator, dtype: str) -> list[np.ndarray]:
    return [rng.standard_normal(size).astype(dtype) for size in SIZES]


def on_device(values: list[np.ndarray], shift: int) -> list:
    """Copies of arrays on the device, as views ``shift`` elements into arrays of their own."""
    whole = [gpu.to_device(np.concatenate([np.ones(shift, x.dtype), x]) if x.size else x) for x in values]
    return [x[shift:] if x.size else x for x in whole]


def work() -> int:
    """Run everything once; the number of arrays that differ from the reference."""
    bad = 0
    rng = np.random.default_rng(0)
    for param, grad, velocity, has_master in DTYPES:
        for form in LARS_MOMENTUM.forms:
            for shift in (0, 1):
                p, g, v = arrays(rng, param), arrays(rng, grad), arrays(rng, velocity)
                m = [x.astype(np.float32) for x in p] if has_master else None
                views = [on_device(slot, shift) for slot in (p, g, v, m or [])]
                masters = views[3] if has_master else None
                plan = gpu.plan("lars_momentum", *views[:3], master_params=masters, form=form, **HYPER)
                for _ in range(2):
                    plan()
                    cpu.merged_lars_momentum(p, g, v, master_params=m, **HYPER)
                plan.device.synchronize()
                pairs = [*zip(views[0], p, strict=True), *zip(views[2], v, strict=True)]
                pairs += zip(views[3], m or [], strict=True)
                wrong = sum(not same_bits(x.copy_to_host(), y).all() for x, y in pairs if y.size)
                print(f"{param} {grad} {velocity} {form} shift {shift}: {wrong} arrays differ", flush=True)
                bad += wrong
    return bad


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
        return int(work() > 0)
    from benchmarks.run import environment  # here, so that the work goes without PyTorch

    report = environment() | {"command": "python -m benchmarks.sanitizer", "tools": [under(tool) for tool in TOOLS]}
    args.out.write_text(json.dumps(report, indent=1) + "\n")
    return int(any(tool["exit_status"] for tool in report["tools"]))


if __name__ == "__main__":
    sys.exit(main())
