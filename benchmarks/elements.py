"""The step that is sharded by element on real GPUs, beside that by tensor and PyTorch's collectives on flat tensors.

    python -m refopt.comm.launch -n 2 -m benchmarks.elements [--workloads bert-large gpt2-xl] [--out FILE]

Needs as many GPUs as ranks, PyTorch, and nccl4py. As in `benchmarks.sharding`, a step begins with every gradient of the
rank in its array and ends with fp16 parameters on all ranks: here by a reduce-scatter, Adam on a rank's part of fp32
masters and moments, and an all-gather, for each bucket. PyTorch's has one flat tensor for each bucket, a fused Adam for
all of a rank's parts, and the copies to fp16 that it needs.
"""

import math
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from benchmarks.measure import free
from benchmarks.ranks import meeting, options_of, rank_ms, sections
from benchmarks.sharded_programs import (
    FOLD,
    HALF,
    NUMBERS,
    OPTIMIZER,
    PLAIN,
    Params,
    brought,
    halves,
    in_buckets,
    in_numpy,
    params_of,
    plan_of,
    share,
    unsharded,
    whole,
)
from benchmarks.sharding import CONFINED, FEWER, SMALL, TIMING, bare_calls, filled, host_ms, same_everywhere
from refopt import gpu
from refopt.comm import local
from refopt.program import Program, passes, placement

LIMITS = 32.0, 128.0  # MiB of gradients in a bucket
FORMS = PLAIN, HALF
KEPT = {PLAIN: 2 + 4, HALF: 2 + 2}  # bytes for each parameter that all ranks have: itself and its gradient
OWN = 12  # bytes for each parameter of a rank's part: master and two moments


def by_element(
    params: Params, form: str, rank: int, ranks: int, limit: float, optimizer: str = OPTIMIZER
) -> Program:
    """The program of a rank."""
    cut = partial(passes.shard_elements, rank=rank, degree=ranks, limit=limit)
    fuse = partial(passes.fuse_optimizer, form="merged", per_buffer=True)
    return passes.pipeline(whole(params, form, ranks, optimizer), FOLD, cut, fuse).program


def bound_of(world: Any, program: Program, arrays: dict[str, Any], value: Callable[[str, Any], Any]) -> Any:
    """The program on two streams, with gradients in their arrays once these lie in buffers."""
    run = placement.bind_schedule(plan_of(program), arrays, comm=world, multiprocessors=CONFINED)
    for op in program.main:
        for name in op.outputs.get("grads", ()) if op.type == "backward" else ():
            torch.as_tensor(run.bound.arrays[name]).copy_(value(name, program.vars[name]))
    torch.cuda.synchronize()
    return run


def steps(world: Any, name: str) -> list[dict]:
    """A model's step by element and by tensor, and PyTorch's."""
    params, rows = params_of(name), []
    count = sum(math.prod(shape) for _, shape in params)
    for form in FORMS:
        about = {"workload": name, "form": form, "world": world.size}
        for limit in LIMITS:
            program = by_element(params, form, world.rank, world.size, limit)
            run = bound_of(world, program, filled(program, world.rank), lambda _, var: torch.randn(var.shape) * 0.02)
            row = about | {"way": "refopt, by element", "limit_mib": limit, "ms": rank_ms(world, run.step)}
            row |= {"host_ms": host_ms(run), "ok": same_everywhere(world, run, params)}
            row["calls"] = program.counts()["reduce_scatter"] + program.counts()["all_gather"]
            own = sum(math.prod(var.shape) for var in program.vars.values() if "moment1" in var.name)
            row |= {"own_elements": own, "bytes_by_formula": KEPT[form] * count + OWN * own}
            del run
            free()
            rows.append(row | {"collectives_ms": rank_ms(world, collectives(world, program), FEWER)})
            free()
        mine = in_buckets(share(whole(params, form, world.size), world.rank, world.size), LIMITS[-1], True)
        run = placement.bind_schedule(plan_of(mine), filled(mine, world.rank), comm=world, multiprocessors=CONFINED)
        rows.append(about | {"way": "refopt, by tensor", "limit_mib": LIMITS[-1], "ms": rank_ms(world, run.step)})
        del run
        free()
        rows[-1]["collectives_ms"] = rank_ms(world, bare_calls(world, mine), FEWER)
        free()
        for limit in LIMITS:
            ms = rank_ms(world, flat(params, form, limit))
            rows.append(about | {"way": "PyTorch, flat", "limit_mib": limit, "ms": ms})
            free()
    return rows


def collectives(world: Any, program: Program) -> Callable[[], None]:
    """The collectives of a step by element, back to back."""
    calls = []
    for kind in ("reduce_scatter", "all_gather"):
        for op in (op for op in program.main if op.type == kind):
            (name,) = op.inputs["x"] if kind == "reduce_scatter" else op.outputs["out"]
            tiles = sum(-(-math.prod(program.vars[view].shape) // 1024) for view in program.views[name])
            dtype = getattr(torch, program.vars[name].dtype)
            part = torch.zeros(-(-tiles // world.size) * 1024, dtype=dtype, device="cuda")
            every = part.repeat(world.size)
            calls.append(partial(getattr(world, kind), *((every, part) if kind == "reduce_scatter" else (part, every))))

    def run() -> None:
        for call in calls:
            call()

    return run


def flat(params: Params, form: str, limit: float) -> Callable[[], None]:
    """PyTorch's step, in flat buckets of about as many bytes."""
    ranks, kind = dist.get_world_size(), torch.float32 if form == PLAIN else torch.float16
    count = sum(math.prod(shape) for _, shape in params)
    sizes = [int(limit * 2**20) // kind.itemsize] * (count * kind.itemsize // int(limit * 2**20))
    sizes.append(count - sum(sizes))
    parts = [-(-size // ranks // 4) * 4 for size in sizes if size]
    grads = [torch.randn(part * ranks, dtype=kind, device="cuda") for part in parts]
    sums = [torch.empty(part, dtype=kind, device="cuda") for part in parts]
    masters = [torch.nn.Parameter(torch.randn(part, device="cuda")) for part in parts]
    for master, total in zip(masters, sums, strict=True):
        master.grad = total if kind == torch.float32 else torch.empty_like(master)
    halves_ = [torch.empty(part, dtype=torch.float16, device="cuda") for part in parts]
    whole_ = [torch.empty(part * ranks, dtype=torch.float16, device="cuda") for part in parts]
    optimizer = torch.optim.Adam(masters, fused=True, **NUMBERS)

    def step() -> None:
        works = [
            dist.reduce_scatter_tensor(total, grad, dist.ReduceOp.AVG, async_op=True)
            for total, grad in zip(sums, grads, strict=True)
        ]
        for work in works:
            work.wait()
        if kind != torch.float32:
            torch._foreach_copy_([master.grad for master in masters], sums)
        optimizer.step()
        torch._foreach_copy_(halves_, [master.detach() for master in masters])
        works = [
            dist.all_gather_into_tensor(every, half, async_op=True) for every, half in zip(whole_, halves_, strict=True)
        ]
        for work in works:
            work.wait()

    return step


def agreement(world: Any, optimizer: str = OPTIMIZER) -> list[dict]:
    """fp16 parameters after a step: by element on GPUs against the whole one in NumPy, bit for bit."""
    rows, params = [], [*SMALL, ("g", (90, 71)), ("h", (4100,))]
    for form in FORMS:
        whole_step = unsharded(params, form, world.size, optimizer)
        expected = local.run(partial(in_numpy, whole_step, params, False), world.size)[world.rank]

        def value(name: str, var: Any) -> torch.Tensor:
            seed = [world.rank + 1, *map(ord, name)]
            return torch.from_numpy(np.random.default_rng(seed).normal(size=var.shape).astype(var.dtype))

        for limit in (0.01, 0.05, 32.0):
            program = by_element(params, form, world.rank, world.size, limit, optimizer)
            host = {name: np.random.default_rng([0, *map(ord, name)]).normal(size=shape).astype(dtype)
                    for name, shape, dtype in brought(program)}
            run = bound_of(world, program, {name: gpu.to_device(x) for name, x in host.items()}, value)
            run.step()
            run.synchronize()
            names = halves(program, params)
            wrong = sum(int((run.bound.read(n).view(np.uint16) != expected[n].view(np.uint16)).sum()) for n in names)
            differing = torch.tensor([wrong], device="cuda")
            world.all_reduce(differing)
            world.synchronize()
            rows.append({
                "optimizer": optimizer, "form": form, "limit_mib": limit, "world": world.size,
                "differing": differing.item(),
                "elements": world.size * sum(math.prod(shape) for _, shape in params),
                "ok": differing.item() == 0 or world.size > 2,  # NCCL then adds in another order
            })
    return rows


def main() -> int:
    """The command, in every rank."""
    options = options_of(__doc__, "elements", ["bert-large", "gpt2-xl"])
    with meeting("elements", TIMING, options.out) as (world, report, out):
        section = sections(world, report, out)
        section("agreement", agreement(world))
        for name in options.workloads:
            section("steps", steps(world, name))
    return int(not all(row.get("ok", True) for name in ("agreement", "steps") for row in report[name]))


if __name__ == "__main__":
    sys.exit(main())
