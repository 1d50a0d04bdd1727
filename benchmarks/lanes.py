"""Times one step of ResNet-50 on the executor: by lanes, by threads on smaller tensors, and `refopt.cpu` beside it.

    python -m benchmarks.lanes [--out benchmarks/results/lanes.json]

Each figure is of a process of its own, on one core: seconds of the processor for the second of two steps, and the most
memory that the process has had. By lanes and in NumPy the step is that of all 25,557,032 elements, and the bits after
it are compared; by threads no tensor has more than 2,000 elements.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import resource
import subprocess
import sys
import time
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.record import RESULTS, begin, closure, write
from refopt import cpu, gpu, simt
from refopt.catalog import ROUTINES, workloads
from refopt.catalog.data import make_case, slot_dtype
from refopt.checks.dtypes import numpy_dtype
from refopt.oracle import ulp
from refopt.oracle.exact.cases import arguments

STEPS = [
    ("adamw", "merged", "fp32"), ("lars_momentum", "two_launches", "fp32"), ("lamb", "merged", "fp32"),
    ("novograd", "merged", "fp32"), ("adamw", "merged", "bf16-amp"), ("adamw", "merged", "bf16+16"),
    ("adamw", "merged", "bf16-sr"),
]
SMALLER = 2_000  # elements of a tensor, at most
WAYS = "cpu", "lanes", "threads"


def measure(way: str, name: str, form: str, dtype: str) -> dict[str, Any]:
    """Two steps in this process: seconds of each, megabytes at most, and a digest of all arrays after them."""
    workload = workloads.load("resnet50")
    if way == "threads":
        workload = workload.scaled(SMALLER)
    case = make_case(ROUTINES[name], workload, dtype, 1)
    slots: dict[str, Any] = dict(case.slots)
    numbers, choices = case.hypers[0], case.choices
    if way != "cpu":
        dtypes = {slot.name: numpy_dtype(slot_dtype(slot, dtype)) for slot in case.routine.slots}
        for key, values in slots.items():
            values, case.slots[key] = values or [], None
            slots[key] = [gpu.to_device(ulp.bits(values.pop(0))).view(dtypes[key]) for _ in range(len(values))] or None
    positional, named = arguments(case.routine, slots)
    if way == "cpu":
        step = partial(getattr(cpu, case.routine.merged_name), *positional, **named, **choices, **numbers)
    else:
        step = partial(gpu.plan(name, *positional, **named, form=form, **choices, **numbers).step, **numbers)
    seconds = []
    for _ in range(2):
        start = time.process_time()
        with simt.observe(count=False) if way == "threads" else nullcontext():  # observed launches run by threads
            step()
        seconds.append(time.process_time() - start)
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    digest = hashlib.sha256()
    for key in sorted(slots):
        for values in slots[key] or ():
            digest.update(ulp.bits(values if way == "cpu" else values.copy_to_host()).tobytes())
    return {"elements": workload.elements, "seconds": seconds, "megabytes": round(most), "digest": digest.hexdigest()}


def main() -> None:
    """Measure all and write the result."""
    parser = argparse.ArgumentParser(description="time steps of ResNet-50 on the executor, by lanes and by threads")
    parser.add_argument("--out", type=Path, default=RESULTS / "lanes.json")
    parser.add_argument("--step", nargs=4, help="measure one way of one step here; print JSON")
    options = parser.parse_args()
    if options.step:
        with gpu.use("executor"):
            print(json.dumps(measure(*options.step)))
        return
    also = [*closure("refopt.simt"), *closure("refopt.gpu")]
    report = begin("benchmarks.lanes", "python -m benchmarks.lanes", also=also)
    report["steps"] = []
    for step in STEPS:
        found = {way: _apart(way, *step) for way in WAYS}
        if found["lanes"].pop("digest") != found["cpu"].pop("digest"):
            raise SystemExit(f"{' '.join(step)}: by lanes and in NumPy the bits differ")
        del found["threads"]["digest"]
        report["steps"].append({"routine": step[0], "form": step[1], "dtype": step[2]} | found)
        seconds = ", ".join(f"{way} {found[way]['seconds'][1]:.2f} s" for way in WAYS)
        print(f"{' '.join(step)}: {seconds} ({found['threads']['elements']:,} elements by threads)", flush=True)
    report["kernels"] = []
    write(report, options.out)


def _apart(*step: str) -> dict[str, Any]:
    command = [sys.executable, "-m", "benchmarks.lanes", "--step", *step]
    return json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


if __name__ == "__main__":
    main()
