"""All records of a machine with GPUs, the most important first, each by a command of its own.

    python -m benchmarks.gpu_records [--gpus N] [--only STEP ...] [--seconds TOTAL] [--to FOLDER]

A step that fails, or takes longer than it may, ends nothing; what it has saved by then stays. The exit status is 1 if a
step failed.
"""

import argparse
import sys
import time
from pathlib import Path
from typing import NamedTuple

from benchmarks.children import run
from benchmarks.record import RESULTS, ROOT, machine, short_name

RANKS = ["-m", "refopt.comm.launch", "-n", "{gpus}", "-m"]
TORCHRUN = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "{gpus}", "-m"]


class Step(NamedTuple):
    """What Python is given, seconds that it may take, the record's name, and how it is told where that goes."""

    arguments: list[str]
    seconds: float
    file: str
    out: str = "--out"


ONE = {
    "laws": Step(["-m", "benchmarks.laws"], 480, "laws"),
    "sanitizer": Step(["-m", "benchmarks.sanitizer"], 420, "sanitizer"),
    "verify": Step(["-m", "benchmarks.verify"], 300, "verify"),
    "optimizers": Step(["-m", "benchmarks.run", "optimizers"], 450, "optimizers"),
    "lars": Step(["-m", "benchmarks.run", "lars"], 300, "lars"),
    "first-step": Step(["-m", "benchmarks.first_step"], 120, "first-step"),
    "torch-step": Step(["-m", "benchmarks.torch_step"], 200, "torch-step"),
    "torch-training": Step(["-m", "benchmarks.torch_training"], 240, "torch-training"),
    "overlap": Step(["-m", "benchmarks.overlap"], 200, "overlap"),
    "ladder": Step(["-m", "benchmarks.ladder"], 150, "ladder"),
    "oracle": Step(["-m", "benchmarks.oracle"], 480, "oracle"),
    "sectors": Step(["-m", "benchmarks.sectors"], 450, "sectors"),
    "detectors": Step(["-m", "benchmarks.detectors", "--on", "gpu"], 300, "detectors"),
    "left_open": Step(["-m", "benchmarks.left_open"], 400, "left_open"),
    "products": Step(["-m", "benchmarks.products"], 200, "products"),
    "muon": Step(["-m", "benchmarks.muon"], 560, "muon"),
    "coded": Step(["-m", "benchmarks.coded"], 120, "coded"),
    "rows": Step(["-m", "benchmarks.rows"], 120, "rows"),
}
SEVERAL = {
    "nccl": Step(["-m", "benchmarks.laws", "--two"], 300, "laws"),
    "communication": Step([*RANKS, "benchmarks.communication"], 200, "communication"),
    "sharding": Step([*RANKS, "benchmarks.sharding"], 300, "sharding"),
    "fully-shard": Step([*TORCHRUN, "benchmarks.fully_shard"], 240, "fully-shard"),
    "elements": Step([*RANKS, "benchmarks.elements"], 240, "elements"),
    "norm_shards": Step([*RANKS, "benchmarks.norm_shards"], 240, "norm_shards"),
}


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gpus", type=int, default=1, choices=(1, 2, 4, 8), help="default: 1")
    names = f"of {', '.join(ONE)}; of several: {', '.join(SEVERAL)}"
    parser.add_argument("--only", nargs="+", metavar="STEP", help=names)
    parser.add_argument("--seconds", type=float, default=3600.0, metavar="TOTAL", help="for all steps; default an hour")
    parser.add_argument("--to", type=Path, default=RESULTS, metavar="FOLDER", help="default: benchmarks/results")
    options = parser.parse_args()
    steps = ONE if options.gpus == 1 else SEVERAL
    for name in options.only or ():
        if name not in steps:
            parser.error(f"argument --only: expected of {', '.join(steps)}, got {name!r}")
    device = short_name(machine()["device"]) + (f"-x{options.gpus}" if options.gpus > 1 else "")
    options.to.mkdir(parents=True, exist_ok=True)
    lines, began = [], time.perf_counter()
    for name in options.only or steps:
        step, start = steps[name], time.perf_counter()
        left = options.seconds - (start - began)
        out = options.to / f"{step.file}-{device}.json"
        print(f"\n== {name}", flush=True)
        status: int | str = "no time left"
        if left > 0:
            seconds = min(step.seconds, left)
            arguments = [x.format(gpus=options.gpus) for x in step.arguments]
            status, _ = run([sys.executable, *arguments, step.out, str(out)], seconds, cwd=ROOT, quiet=False)
        lines.append((name, status, time.perf_counter() - start, out))
    print()
    for name, status, seconds, out in lines:
        verdict = "ok" if status == 0 else f"FAILED ({status})"
        print(f"{name:<14} {verdict:<20} {seconds:6.1f} s  {out if out.is_file() else 'no record'}")
    return int(any(status != 0 for _, status, *_ in lines))


if __name__ == "__main__":
    sys.exit(main())
