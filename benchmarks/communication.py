"""All-reduce of a model's gradients: one call a tensor, coalesced, flat, and the buckets of PyTorch's DDP.

    python -m refopt.comm.launch -n 2 -m benchmarks.communication [--workloads resnet50 bert-large] [--out FILE]

Needs as many GPUs as ranks, PyTorch, and nccl4py. Rank 0 writes the report; a time is the median of the slowest
rank's. PyTorch's buckets are measured as its reducer treats gradients that do not live in them: copied into flat
buckets of 25 MB, the first of 1 MB, each all-reduced as soon as it is full, divided, and copied back.
"""

import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.distributed as dist

from benchmarks.measure import device_ms, free, row_of
from benchmarks.ranks import meeting, options_of, rank_ms
from benchmarks.record import save
from benchmarks.tensors import Tensors, shapes_of
from refopt import gpu
from refopt.catalog import ADAM, SGD

MEBIBYTE = 1 << 20
MESSAGES = tuple(1 << exponent for exponent in range(10, 31, 2))
BUCKETS = (1, 5, 25, 100, 400)  # MiB
TIMING = "by CUDA events, after 5 to warm up: the slowest rank's, median of 20; copies and fused, median of 30"
TOLERANCE = 1e-6  # of sums of other orders, relative to the largest


class Buckets:
    """Gradients in flat buckets of about so many bytes, the last gradients first, as PyTorch's DDP has them."""

    def __init__(self, grads: list[torch.Tensor], limits: list[int]) -> None:
        order = list(reversed(grads))
        found, _ = dist._compute_bucket_assignment_by_size(order, limits)
        self.groups = [[order[i] for i in group] for group in found]
        self.flat = [torch.empty(sum(x.numel() for x in group), device="cuda") for group in self.groups]
        pairs = zip(self.flat, self.groups, strict=True)
        self.views = [
            [v.view_as(x) for v, x in zip(flat.split([x.numel() for x in group]), group, strict=True)]
            for flat, group in pairs
        ]

    def all_reduce(self) -> None:
        works = []
        for flat, views, group in zip(self.flat, self.views, self.groups, strict=True):
            torch._foreach_copy_(views, group)
            flat.div_(dist.get_world_size())
            works.append(dist.all_reduce(flat, async_op=True))
        for work, views, group in zip(works, self.views, self.groups, strict=True):
            work.wait()
            torch._foreach_copy_(group, views)


def gradients(world: Any, name: str) -> list[dict]:
    """A model's fp32 gradients, by each way of reducing them."""
    grads = Tensors.make(SGD, shapes_of(name), "fp32").slots["grads"]
    for grad in grads:
        grad.mul_(world.rank + 1)
    coalesced = gpu.coalesce_tensor(grads, copy_data=True)
    average = 1 / world.size
    theirs = Buckets(grads, [MEBIBYTE, 25 * MEBIBYTE])

    def one_by_one() -> None:
        for grad in grads:
            world.all_reduce(grad)

    def batched() -> None:
        with world.batch():
            one_by_one()

    def through_buffer() -> None:
        coalesced.gather(grads)
        world.all_reduce(coalesced.buffer)
        coalesced.scatter(grads, scale=average)

    ways: dict[str, Callable[[], Any]] = {
        "one call a tensor": one_by_one,
        "one call a tensor, as one batch": batched,
        "gather, all-reduce, scatter": through_buffer,
        "all-reduce of the buffer": partial(world.all_reduce, coalesced.buffer),
        "PyTorch, one call a tensor": lambda: [dist.all_reduce(grad) for grad in grads],
        "PyTorch, DDP's buckets": theirs.all_reduce,
        "PyTorch, all-reduce of a flat tensor": partial(dist.all_reduce, torch.as_tensor(coalesced.buffer)),
    }
    rows: list[dict[str, Any]] = []
    about = {"workload": name, "world": world.size, "tensors": len(grads), "bytes": 4 * sum(g.numel() for g in grads)}
    for way, call in ways.items():
        rows.append(about | {"way": way, "ms": rank_ms(world, call)})
    before = [grad.normal_().clone() for grad in grads]
    through_buffer()
    ours = [grad.clone() for grad in grads]
    torch._foreach_copy_(grads, before)
    theirs.all_reduce()
    torch.cuda.synchronize()
    worst = max(((x - y).abs().max() / y.abs().max()).item() for x, y in zip(ours, grads, strict=True))
    rows.append(about | {"way": "agreement", "largest_difference": worst, "ok": worst <= TOLERANCE})
    return rows


def copies(copy_rate: float, name: str) -> list[dict]:
    """Gather and scatter, against a copy of as many bytes in one piece and against the bandwidth of a large one."""
    rows = []
    for dtype in (torch.float32, torch.float16):
        grads = [grad.to(dtype) for grad in Tensors.make(SGD, shapes_of(name), "fp32").slots["grads"]]
        coalesced = gpu.coalesce_tensor(grads, copy_data=True)
        source, target = torch.empty_like(torch.as_tensor(coalesced.buffer)), torch.as_tensor(coalesced.buffer)
        moved = 2 * sum(grad.nbytes for grad in grads)
        ways = {
            "gather": lambda: coalesced.gather(grads),  # noqa: B023
            "scatter": lambda: coalesced.scatter(grads),  # noqa: B023
            "one copy": lambda: source.copy_(target),  # noqa: B023
        }
        for way, call in ways.items():
            about = {"workload": name, "dtype": str(dtype), "way": way}
            rows.append(about | row_of(call, moved, copy_rate, held=moved))
        before = [grad.clone() for grad in grads]
        coalesced.gather(grads)
        for grad in grads:
            grad.zero_()
        coalesced.scatter(grads)
        torch.cuda.synchronize()
        wrong = sum(not torch.equal(x, y) for x, y in zip(grads, before, strict=True))
        rows.append({"workload": name, "dtype": str(dtype), "way": "there and back", "wrong": wrong, "ok": not wrong})
    return rows


def messages(world: Any) -> list[dict]:
    """All-reduce by the size of the message."""
    rows = []
    buffer = torch.ones(max(MESSAGES) // 4, device="cuda")
    for size in MESSAGES:
        part = buffer[: size // 4]
        rows.append({
            "world": world.size, "bytes": size, "ms": rank_ms(world, partial(world.all_reduce, part)),
            "torch_ms": rank_ms(world, partial(dist.all_reduce, part)),
        })
    return rows


def buckets(world: Any, name: str) -> list[dict]:
    """A model's gradients in a buffer, all-reduced in pieces: nothing overlaps here, so this is what pieces cost."""
    rows = []
    size = sum(grad.numel() for grad in Tensors.make(SGD, shapes_of(name), "fp32").slots["grads"])
    buffer = torch.ones(size, device="cuda")
    for mebibytes in BUCKETS:
        parts = buffer.split(mebibytes * MEBIBYTE // 4)

        def in_parts(parts: Any = parts) -> None:
            for part in parts:
                world.all_reduce(part)

        ms = rank_ms(world, in_parts)
        rows.append({"workload": name, "world": world.size, "bucket_mib": mebibytes, "calls": len(parts), "ms": ms})
    return rows


def fused(name: str) -> list[dict]:
    """Adam over the flat buffer of all tensors, against merged Adam over their table."""
    values = Tensors.make(ADAM, shapes_of(name), "fp32")
    merged = device_ms(values.plan())
    size = sum(param.numel() for param in values.slots["params"])
    del values
    flat = device_ms(Tensors.make(ADAM, [(size,)], "fp32").plan())
    return [{"workload": name, "merged_ms": merged, "flat_ms": flat}]


def main() -> int:
    """The command, in every rank."""
    options = options_of(__doc__, "communication", ["resnet50", "bert-large"])
    with meeting("communication", TIMING, options.out) as (world, report, out):
        sections: dict[str, Callable[[str], list[dict]]] = {
            "gradients": partial(gradients, world), "buckets": partial(buckets, world),
            "copies": partial(copies, report["copy_gb_s"]), "fused": fused,
        }
        for section, measure in sections.items():
            report[section] = []
            for name in options.workloads:
                report[section] += measure(name)
                free()
            if world.rank == 0:
                save(report, out)
        report["messages"] = messages(world)
        if world.rank == 0:
            save(report, out)
            for section in (*sections, "messages"):
                for row in report[section]:
                    print(section, *(f"{key}={value}" for key, value in row.items()))
    rows = [row for section in (*sections, "messages") for row in report[section]]
    return int(not all(row.get("ok", True) for row in rows))


if __name__ == "__main__":
    sys.exit(main())
