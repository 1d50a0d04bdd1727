"""What a step of AdamW takes of the host, beside what its launch alone takes, as a record.

    python -m benchmarks.host_time [--out FILE]

On a CUDA GPU, with tensors of PyTorch's. Each time is that of a call that enqueues. The device is waited for between
rounds alone: of many calls, where the driver may hold one up until others are done, and of one, on an idle device, as
in a loop that has other work between steps. ``addresses`` is what it takes to ask every gradient where it is, which a
caller of `Plan.move` does.
"""

import argparse
import itertools
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.record import RESULTS, begin, save, short_name
from refopt import cpu, gpu
from refopt.catalog import workloads
from refopt.gpu.launches import Alternating

ROUNDS = 21
TIMING = f"median, least and most of {ROUNDS} rounds, in microseconds of a call, by the clock of the host"
LR = 1e-3
LISTS = {
    "resnet50": [tensor.shape for tensor in workloads.load("resnet50").tensors],
    "10,000 tensors of 100": [(100,)] * 10_000,
}


def host_us(call: Callable[[], Any], calls: int, wait: Callable[[], Any]) -> dict[str, float]:
    """Time of one of so many calls: median, least and most of the rounds, each of which begins on an idle device."""
    times = []
    for k in range(ROUNDS + 2):
        wait()
        start = time.perf_counter()
        for _ in range(calls):
            call()
        if k > 1:
            times.append((time.perf_counter() - start) / calls * 1e6)
    wait()
    return {"us": statistics.median(times), "least": min(times), "most": max(times)}


class Step:
    """AdamW over tensors of some shapes, its plan, and as many gradients again."""

    def __init__(self, shapes: list[tuple[int, ...]], device: str) -> None:
        def made(value: float, some: list[tuple[int, ...]]) -> list[torch.Tensor]:
            return [torch.full(shape, value, device=device) for shape in some]

        ones: list[tuple[int, ...]] = [(1,)] * len(shapes)
        self.slots = [*(made(x, shapes) for x in (1.0, 0.5, 0.25, 0.125)), made(0.9, ones), made(0.999, ones)]
        self.grads = [self.slots[1], made(0.75, shapes)]
        self.plan = gpu.plan("adamw", *self.slots, lr=LR)
        self.count, self.sides = itertools.count(), itertools.cycle((0, 1))

    def new_lr(self) -> None:
        """A step with another number than the one before."""
        self.plan(lr=LR + next(self.count) % 1000 * 1e-8)

    def rebind(self) -> None:
        self.plan.rebind(grads=self.grads[next(self.sides)])

    def addresses(self) -> list[int]:
        """Where the gradients of this turn are."""
        return [grad.data_ptr() for grad in self.grads[next(self.sides)]]

    def move(self, known: list[list[int]] | None = None) -> None:
        """Gradients at other addresses, asked for or known, all of which have changed."""
        k = next(self.sides)
        grads = self.grads[k]
        self.plan.move("grads", known[k] if known else [grad.data_ptr() for grad in grads], grads)

    def whole(self) -> None:
        """A step as a training loop takes it: gradients elsewhere, and another number."""
        self.move()
        self.new_lr()

    def stay(self) -> None:
        """The gradients are asked where they are, and are where they were."""
        grads = self.grads[0]
        self.plan.move("grads", [grad.data_ptr() for grad in grads], grads)

    def differing_bytes(self, most: int = 200) -> int:
        """In which the first tensors differ from NumPy's, after one step more."""
        self.plan.move("grads", [grad.data_ptr() for grad in self.grads[0]], self.grads[0])
        host = [[x.cpu().numpy() for x in values[:most]] for values in self.slots]
        self.plan(lr=LR)
        cpu.merged_adamw(*host, lr=LR)
        ours = [x.cpu().numpy() for values in self.slots for x in values[:most]]
        theirs = [x for values in host for x in values]
        return sum(int((x.view(np.uint8) != y.view(np.uint8)).sum()) for x, y in zip(ours, theirs, strict=True))


def floors(plan: gpu.Plan) -> Iterator[tuple[str, Callable[[], Any]]]:
    """The driver's calls that a step comes down to, with nothing around them: its graph, and its kernel by itself."""
    from cuda.bindings import driver

    # A plan does not offer this; it is here to show what is left.
    run: Any = plan._steps[0]
    sequence = run._plain[0] if isinstance(run, Alternating) else run._steady
    launch, stream = sequence._launches[0], plan.stream
    yield "cuGraphLaunch", partial(driver.cuGraphLaunch, sequence._graph, stream)
    yield "cuLaunchKernelEx", partial(driver.cuLaunchKernelEx, launch._config, launch._function, launch._params, 0)


def rows(name: str, shapes: list[tuple[int, ...]], device: str, wait: Callable[[], Any]) -> Iterator[dict[str, Any]]:
    """A row for each way to call, the shortest last."""
    step = Step(shapes, device)
    step.plan()  # which makes its graph
    many = 20 if len(shapes) < 1000 else 2
    known = [[grad.data_ptr() for grad in grads] for grads in step.grads]
    calls: list[tuple[str, Callable[[], Any], int]] = [
        ("step with gradients elsewhere and a new lr", step.whole, many),
        ("rebind, all addresses new", step.rebind, many),
        ("move, all addresses new", step.move, many),
        ("move, all addresses new and known", partial(step.move, known), many),
        ("move, no address new", step.stay, many),
        ("addresses", step.addresses, many),
        ("step with a new lr", step.new_lr, 100),
        ("step with the same lr", partial(step.plan, lr=LR), 100),
        ("step", step.plan, 100),
    ]
    if device == "cuda":
        calls += [(name, call, 100) for name, call in floors(step.plan)]
    for what, call, many_of_it in calls:
        for often in (1, many_of_it):
            yield {"list": name, "tensors": len(shapes), "what": what, "calls": often, **host_us(call, often, wait)}
    differing = step.differing_bytes()
    yield {"list": name, "tensors": len(shapes), "what": "differing bytes after it all", "differing_bytes": differing}


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    default = "default: benchmarks/results/host_time-DEVICE.json"
    parser.add_argument("--out", "--to", type=Path, metavar="FILE", help=default)
    options = parser.parse_args()
    if not torch.cuda.is_available():
        parser.error("PyTorch sees no CUDA device")
    report: dict[str, Any] = begin("benchmarks.host_time") | {"what": "host_time", "timing": TIMING, "rows": []}
    out = options.out or RESULTS / f"host_time-{short_name(report['device'])}.json"
    for name, shapes in LISTS.items():
        for row in rows(name, shapes, "cuda", torch.cuda.synchronize):
            report["rows"].append(row)
            save(report, out)
            figure = f"{row['us']:10.1f} us" if "us" in row else f"{row['differing_bytes']:10}   "
            calls = f"  {row['calls']:>3} calls" if "calls" in row else ""
            print(f"{row['tensors']:>6} tensors  {figure}  {row['what']}{calls}", flush=True)
    print(f"written to {out}")
    return int(any(row.get("differing_bytes") for row in report["rows"]))


if __name__ == "__main__":
    sys.exit(main())
