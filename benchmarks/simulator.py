"""Times one shared-memory reduction on `refopt.simt` and on numba-cuda's own simulator.

    python -m benchmarks.simulator [--out benchmarks/results/simulator.json] [--repeats 15]

The stock simulator runs in a process of its own, because NUMBA_ENABLE_CUDASIM has to be set before numba is
imported. Both run the very same source: 4 blocks of 128 threads reduce 4096 elements.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.record import RESULTS, closure, digests, write

BLOCKS, THREADS, SIZE = 4, 128, 4096

cuda: Any = None


def reduce(x, out):
    """The kernel. Its `cuda` is a global, which is where the stock simulator looks for it."""
    part = cuda.shared.array(128, np.float32)
    t = cuda.threadIdx.x
    total = np.float32(0)
    for j in range(cuda.grid(1), x.size, cuda.gridsize(1)):
        total += x[j] * x[j]
    part[t] = total
    cuda.syncthreads()
    step = cuda.blockDim.x // 2
    while step > 0:
        if t < step:
            part[t] += part[t + step]
        cuda.syncthreads()
        step //= 2
    if t == 0:
        out[cuda.blockIdx.x] = part[0]


def measure(module: Any, repeats: int) -> dict[str, Any]:
    """Milliseconds of each launch after one to warm up, and the result's bits."""
    global cuda
    cuda = module
    kernel = cuda.jit(reduce)
    x = cuda.to_device(np.random.default_rng(0).random(SIZE, np.float32))
    out = cuda.to_device(np.zeros(BLOCKS, np.float32))
    times = []
    for _ in range(repeats + 1):
        start = time.perf_counter()
        kernel[BLOCKS, THREADS](x, out)
        times.append((time.perf_counter() - start) * 1e3)
    return {
        "median_ms": statistics.median(times[1:]),
        "times_ms": times[1:],
        "result": out.copy_to_host().tobytes().hex(),
    }


def measure_stock(repeats: int) -> dict[str, Any]:
    """`measure` on the stock simulator, in another process."""
    command = [sys.executable, "-m", "benchmarks.simulator", "--stock", "--repeats", str(repeats)]
    environment = {**os.environ, "NUMBA_ENABLE_CUDASIM": "1"}
    done = subprocess.run(command, env=environment, check=True, capture_output=True, text=True)
    return json.loads(done.stdout)


def main() -> None:
    """Measure both and write the result."""
    parser = argparse.ArgumentParser(description="time refopt.simt against numba-cuda's simulator")
    parser.add_argument("--out", type=Path, default=RESULTS / "simulator.json")
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--stock", action="store_true", help="measure the stock simulator here; print JSON")
    options = parser.parse_args()
    if options.stock:
        from numba import cuda as stock

        print(json.dumps(measure(stock, options.repeats)))
        return
    from refopt.simt import cuda as executor

    theirs, ours = measure_stock(options.repeats), measure(executor, options.repeats)
    if theirs["result"] != ours["result"]:
        raise SystemExit("the two simulators disagree")
    report = {
        "command": "python -m benchmarks.simulator",
        "sources": digests([*closure("benchmarks.simulator"), *closure("refopt.simt")]),
        "kernels": [],  # none of refopt's: the one above is part of the sources
        "kernel": f"shared-memory reduction, {BLOCKS} blocks of {THREADS} threads, {SIZE} float32 elements",
        "versions": {"python": platform.python_version()}
        | {name: importlib.metadata.version(name) for name in ("numpy", "greenlet", "numba", "numba-cuda")},
        "machine": {"system": platform.platform(), "processor": _processor(), "cpus": os.cpu_count()},
        "stock_simulator": theirs,
        "refopt_simt": ours,
        "ratio": theirs["median_ms"] / ours["median_ms"],
    }
    write(report, options.out)
    times = f"stock {theirs['median_ms']:.1f} ms, refopt.simt {ours['median_ms']:.2f} ms"
    print(f"{times}: {report['ratio']:.0f} times faster; written to {options.out}")


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), "unknown")


if __name__ == "__main__":
    main()
