"""What the oracle says of optimizers on a GPU: PyTorch's, optax's, timm's, one of CuPy's arrays, and refopt's kernels.

PyTorch's are checked on the CPU as well.

    python -m benchmarks.oracle [--only TEXT ...] [--processes N] [--out FILE]

Each row is a check of all laws in a process of its own; optimizers of libraries that are not installed are left out.
The exit status is 1 if a check of refopt's own kernels fails, or a check could not be made.
"""

import argparse
import importlib
import importlib.util
import os
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.record import RESULTS, begin, save, short_name
from refopt.catalog import ROUTINES

SUBJECTS = {  # of torch.optim, by routine
    "sgd": "SGD", "momentum": "SGD", "adam": "Adam", "adamw": "AdamW", "adagrad": "Adagrad", "rmsprop": "RMSprop",
    "adadelta": "Adadelta", "adamax": "Adamax", "nadam": "NAdam", "radam": "RAdam",
}
FUSED = "SGD", "Adam", "AdamW"
CAPTURABLE = "Adam", "AdamW", "RMSprop", "Adadelta", "Adamax", "NAdam", "RAdam"
OPTAX = ("sgd", "sgd"), ("momentum", "sgd"), ("adam", "adam"), ("adamw", "adamw"), ("lion", "lion"), ("lamb", "lamb")
TIMM = (
    ("lamb", "lamb", "Lamb", {"max_grad_norm": None}), ("lars_momentum", "lars", "Lars", {}),
    ("lion", "lion", "Lion", {}),
)


class Row(NamedTuple):
    """A check: the routine, where the subject is, its options, and how `refopt.oracle.check` is to take it."""

    routine: str
    module: str
    name: str
    options: dict[str, Any]
    how: dict[str, Any]

    def __str__(self) -> str:
        options = "".join(f", {name}={value!r}" for name, value in self.options.items())
        where = f" on {self.how['device']}" if "device" in self.how else ""
        return f"{self.module}.{self.name}{options} as {self.routine}{where}"


def rows() -> Iterator[Row]:
    """Every check, of what is installed."""
    cuda: dict[str, Any] = {"device": "cuda"}
    every = ["float32", "float64", "float16", "bfloat16"]
    for routine in ROUTINES:
        yield Row(routine, "refopt.gpu", f"merged_{routine}", {}, cuda | {"arrays": "torch", "exact": True})
    if importlib.util.find_spec("torch"):
        for routine, name in SUBJECTS.items():
            ways: list[dict[str, Any]] = [{"foreach": False}, {"foreach": True}]
            ways += [{"fused": True}] if name in FUSED else []
            ways += [{"capturable": True}] if name in CAPTURABLE else []
            for options in ways:
                limits = {"dtypes": every} if "fused" in options else {}
                yield Row(routine, "torch.optim", name, options, cuda | limits)
                if "capturable" not in options:
                    yield Row(routine, "torch.optim", name, options, {"device": "cpu"} | limits)
    if importlib.util.find_spec("timm"):
        for routine, module, name, options in TIMM:
            yield Row(routine, f"timm.optim.{module}", name, options, cuda)
    if importlib.util.find_spec("optax"):
        for routine, name in OPTAX:
            yield Row(routine, "optax", name, {}, {})
    if importlib.util.find_spec("cupy"):
        flushes = {"flush_to_zero": True}  # as all kernels that CuPy writes do
        yield Row(
            "adamw", "benchmarks.oracle", "adamw_of_cupy", {}, {"arrays": "cupy", "dtypes": every[:3], "set": flushes}
        )


def adamw_of_cupy(params, grads, moment1, moment2, *, lr, beta1, beta2, epsilon, coeff, step):
    """AdamW as one would write it for CuPy's arrays; fp16 ones are widened."""
    import cupy

    for p, g, m, v in zip(params, grads, moment1, moment2, strict=True):
        real = cupy.float64 if p.dtype == cupy.float64 else cupy.float32
        wide = g.astype(real)
        new_m = m.astype(real) * beta1 + wide * (1 - beta1)
        new_v = v.astype(real) * beta2 + wide * wide * (1 - beta2)
        root = cupy.sqrt(new_v) / real((1 - beta2**step) ** 0.5) + real(epsilon)
        p[...] = p.astype(real) * real(1 - lr * coeff) - real(lr / (1 - beta1**step)) * (new_m / root)
        m[...], v[...] = new_m, new_v


def checked(row: Row) -> dict[str, Any]:
    """What the oracle says of a row."""
    from refopt import oracle

    if "torch" in row.module or row.how.get("arrays") == "torch" or "timm" in row.module:
        importlib.import_module("torch")
    subject = getattr(importlib.import_module(row.module), row.name)
    report = oracle.check(row.routine, subject, diagnose=False, **row.how, **row.options)
    failed: dict[str, dict[str, Any]] = {}
    for item in report.of("failed"):
        law = failed.setdefault(item.law, {"dtypes": [], "text": item.text, "ratio": item.ratio, "cases": 0})
        law["cases"] += 1
        if item.dtype not in law["dtypes"]:
            law["dtypes"].append(item.dtype)
    return {
        "routine": row.routine, "subject": str(row), "ok": report.ok, "compared": report.compared,
        "cases": len(report.items), "skipped": len(report.of("skipped")), "largest_ratio": report.largest,
        "failed": failed, "seconds": round(report.seconds, 2),
    }


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", metavar="TEXT", help="rows whose name contains one of these")
    parser.add_argument("--processes", type=int, default=max(1, (os.cpu_count() or 2) - 1), metavar="N")
    parser.add_argument("--out", type=Path, help="default: benchmarks/results/oracle-DEVICE.json")
    options = parser.parse_args()
    start = time.perf_counter()
    report = begin("benchmarks.oracle") | {"what": "oracle", "seconds": 0.0, "errors": {}, "rows": []}
    out = options.out or RESULTS / f"oracle-{short_name(report['device'])}.json"
    wanted = [row for row in rows() if not options.only or any(text in str(row) for text in options.only)]
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # for each process would take most of the memory
    with ProcessPoolExecutor(options.processes, get_context("spawn"), max_tasks_per_child=1) as pool:
        waiting = {pool.submit(checked, row): row for row in wanted}
        for done in as_completed(waiting):
            row = waiting[done]
            if error := done.exception():
                report["errors"][str(row)] = f"{type(error).__name__}: {error}"
                print(f"{row}: {report['errors'][str(row)]}", flush=True)
                continue
            outcome = done.result()
            report["rows"].append(outcome)
            verdict = "right" if outcome["ok"] else f"WRONG, {', '.join(outcome['failed'])}"
            print(f"{outcome['seconds']:6.1f} s  {row}: {verdict}", flush=True)
            report["seconds"] = round(time.perf_counter() - start, 1)
            save(report, out)
    order = [str(row) for row in wanted]
    report["rows"].sort(key=lambda row: order.index(row["subject"]))
    save(report, out)
    ours = [x["subject"] for x in report["rows"] if not x["ok"] and "refopt.gpu" in x["subject"]]
    errors = len(report["errors"])
    print(f"{len(report['rows'])} checks, {errors} errors, {len(ours)} of refopt's kernels wrong, written to {out}")
    return int(bool(ours or report["errors"]))


if __name__ == "__main__":
    sys.exit(main())
