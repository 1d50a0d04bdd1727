"""Every rung of every ladder: of optimizers beside what runs in production, of products beside cuBLAS.

    python -m benchmarks.ladder [--out FILE]     measures, on a CUDA GPU
    python -m benchmarks.ladder --write          puts the record into the files' docstrings

Optimizers have the parameters of ResNet-50. Products are of square matrices, one and 64 of them.
"""

import argparse
import importlib
import json
import re
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from benchmarks.record import RESULTS, ROOT, begin, save, short_name
from benchmarks.sections import aligned

NAMES = "adam", "lars", "lamb", "global_norm", "coalesce"
HEAD = "One step on the {elements:,} parameters of ResNet-50, in {tensors} tensors, on an {device}"
PRODUCTS, SIZE, COUNTS = "matmul", 1024, (1, 64)  # the ladder of products; rows and columns, and how many matrices
HEAD_OF_PRODUCTS = f"Products of {SIZE:,} x {SIZE:,} matrices on an {{device}}, a half that is mirrored counted in full"


def module_of(name: str) -> ModuleType:
    return importlib.import_module(f"refopt.gpu.ladder.{name}")


def plain(values: Any) -> Any:
    """Arrays of Numba on the memory of tensors, and of lists of tensors; whatever else there is stays."""
    import torch
    from numba import cuda

    if isinstance(values, list):
        return list(map(plain, values))
    return cuda.as_cuda_array(values) if isinstance(values, torch.Tensor) else values


def rows_of(name: str, sizes: list[int], copy_gb_s: float) -> list[dict[str, Any]]:
    """A row for each rung, and one for production."""
    from benchmarks.measure import row_of
    from refopt import gpu
    from refopt.gpu.ladder.bench import bench_of, each

    machine, bench, rows = gpu.device("gpu"), bench_of(name, sizes), []
    arrays = each(gpu.to_device, bench.host)
    assert bench.production is not None
    plan = bench.production(*arrays)
    held = 4 * bench.bytes  # the L2 cache may hold all of it from one step to the next
    for rung, launches_of in module_of(name).RUNGS.items():
        launches = launches_of(*arrays, bench.rest)
        prepared = [launch.prepared() for launch in launches]
        graph = machine.sequence(prepared)

        def one_by_one(prepared: list = prepared) -> None:
            for launch in prepared:
                launch(0)

        eager = row_of(one_by_one, bench.bytes, copy_gb_s, held=held)
        row = row_of(lambda graph=graph: graph(0), bench.bytes, copy_gb_s, held=held)
        about = {"rung": rung, "launches": len(launches), "registers": prepared[0].registers}
        rows.append(about | {"eager_ms": eager["ms"]} | row)
    own = row_of(plan, bench.bytes, copy_gb_s, held=held)
    rows.append({"rung": "production", "launches": plan.launches, "registers": None, "eager_ms": own["ms"]} | own)
    return rows


def product_rows() -> list[dict[str, Any]]:
    """Rungs, and PyTorch's product, which is cuBLAS's, of fp32 and then of bf16: times of one matrix and of many."""
    import torch

    from benchmarks.measure import captured
    from refopt import gpu

    machine, module, rows = gpu.device("gpu"), module_of(PRODUCTS), []
    random = torch.Generator("cuda").manual_seed(0)
    torch.backends.cuda.matmul.allow_tf32 = False  # PyTorch's products of fp32 are of fp32
    for name, dtype, bits in (("fp32", torch.float32, torch.float32), ("bf16", torch.bfloat16, torch.uint16)):
        xs = torch.randn((max(COUNTS), SIZE, SIZE), device="cuda", generator=random).to(dtype)
        outs = torch.zeros_like(xs)
        flat = [[x.view(bits).reshape(-1) for x in matrices] for matrices in (xs, outs)]
        for rung, launches_of in (module.RUNGS | module.HOPPER).items():
            if (rung in module.PLAIN) != (name == "fp32"):
                continue
            times, registers = [], 0
            for count in COUNTS:
                launches = launches_of(*(plain(x[:count]) for x in flat), ((SIZE, SIZE),) * count)
                prepared = [launch.prepared() for launch in launches]
                registers = prepared[0].registers
                times.append(timed(partial(machine.sequence(prepared), 0), count, len(launches)))
            rows.append({"rung": rung, "registers": registers, "times": times})
        times = []
        for count in COUNTS:
            product = partial(torch.matmul, xs[:count], xs[:count].mT, out=outs[:count])
            times.append(timed(captured(product), count, 1))
        rows.append({"rung": f"torch.matmul, {name}", "registers": None, "times": times})
    return rows


def timed(call: Callable[[], Any], count: int, launches: int) -> dict[str, Any]:
    """The time of so many products, and the rate of their operations."""
    from benchmarks.measure import device_ms

    ms = device_ms(call, 10)
    return {"matrices": count, "launches": launches, "ms": ms, "tflop_per_s": 2e-9 * count * SIZE**3 / ms}


def product_lines(rows: list[dict[str, Any]]) -> list[tuple[str, ...]]:
    """The cells of the table of products."""
    heads = [f"{what} of {count}" for count in COUNTS for what in ("launches", "ms", "TFLOP/s")]
    lines = [("version", *heads, "registers")]
    for row in rows:
        cells = [(str(x["launches"]), f"{x['ms']:.3f}", f"{x['tflop_per_s']:.1f}") for x in row["times"]]
        lines.append((row["rung"], *(cell for three in cells for cell in three), str(row["registers"] or "")))
    return lines


def table(record: dict[str, Any], name: str) -> str:
    """The rows of a ladder as text."""
    if name == PRODUCTS:
        head = HEAD_OF_PRODUCTS.format(device=record["device"])
        return "\n".join([f"{head}::", "", *aligned(product_lines(record["ladders"][name]))])
    lines = [("version", "launches", "ms", "ms as a graph", "GB/s", "registers")]
    for row in record["ladders"][name]:
        registers = "" if row["registers"] is None else str(row["registers"])
        times = f"{row['eager_ms']:.3f}", f"{row['ms']:.3f}", f"{row['gb_s']:.0f}"
        lines.append((row["rung"], str(row["launches"]), *times, registers))
    head = HEAD.format(elements=record["elements"], tensors=record["tensors"], device=record["device"])
    copy = f"A copy reaches {record['copy_gb_s']:.0f} GB/s; a small model may gain from the L2 cache."
    return "\n".join([f"{head}::", "", *aligned(lines), "", copy])


def with_table(source: str, text: str) -> str:
    """The source of a ladder with a table at the end of its docstring; without one if the text is empty."""
    start, stop = source.index('"""') + 3, source.index('"""', 3)
    docstring = re.split(r"\n(?:One step on the|Products of [\d,]+ x) ", source[start:stop])[0].rstrip("\n")
    return source[:start] + "\n\n".join([docstring, *filter(None, [text])]) + "\n" + source[stop:]


def path_of(name: str) -> Path:
    return ROOT / "refopt" / "gpu" / "ladder" / f"{name}.py"


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="default: benchmarks/results/ladder-DEVICE.json")
    parser.add_argument("--write", action="store_true", help="put the record of an H200 into the docstrings")
    options = parser.parse_args()
    if options.write:
        record = json.loads((options.out or RESULTS / "ladder-h200.json").read_text())
        for name in record["ladders"]:
            path = path_of(name)
            path.write_text(with_table(path.read_text(), table(record, name)))
        return 0
    from benchmarks.measure import copy_gb_s
    from refopt.catalog import workloads

    tensors = workloads.load("resnet50").tensors
    sizes = [int(np.prod(tensor.shape)) for tensor in tensors]
    report = begin("benchmarks.ladder") | {"what": "ladder", "tensors": len(sizes), "elements": sum(sizes)}
    report |= {"copy_gb_s": copy_gb_s(), "ladders": {}}
    out = options.out or RESULTS / f"ladder-{short_name(report['device'])}.json"
    for name in (*NAMES, PRODUCTS):
        made = product_rows() if name == PRODUCTS else rows_of(name, sizes, report["copy_gb_s"])
        report["ladders"][name] = made
        save(report, out)
        print(table(report, name) + "\n", flush=True)
    return int(any(not row.get("ok", True) for rows in report["ladders"].values() for row in rows))


if __name__ == "__main__":
    sys.exit(main())
