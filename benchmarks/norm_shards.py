"""Steps of LAMB, LARS and NovoGrad that are sharded by element, on several GPUs, beside the step on all ranks.

    python -m refopt.comm.launch -n 2 -m benchmarks.norm_shards [--workloads bert-large] [--out FILE]

Needs as many GPUs as ranks, PyTorch, and nccl4py. ``agreement`` counts fp16 parameters that differ from those of the
unsharded step in NumPy. ``shares`` has milliseconds of the updates alone, with the sums of tiles that they need: on one
rank, and on the first of several; and the bytes of the all-reduce of these sums. ``steps`` begin with every gradient of
the rank in its array and end with fp16 parameters on all ranks, as in `benchmarks.elements`. PyTorch's LAMB has
foreach operations on shards of each tensor along its first axis, as `fully_shard` cuts them, in flat buckets.
"""

import math
import sys
from collections.abc import Callable, Iterator
from itertools import product
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from benchmarks.elements import agreement, bound_of, by_element
from benchmarks.measure import device_ms, free
from benchmarks.ranks import meeting, options_of, rank_ms, sections
from benchmarks.sharded_programs import FOLD, HALF, PLAIN, Params, params_of, whole
from benchmarks.sharding import TIMING, filled, same_everywhere
from refopt import gpu
from refopt.catalog import ROUTINES
from refopt.program import Program, ops, passes
from refopt.program.gpu.backend import Gpu

NORMED = tuple(name for name, routine in ROUTINES.items() if routine.norms)
LIMIT = 128.0  # MiB of gradients in a bucket
BETAS, EPSILON, DECAY, LR = (0.9, 0.999), 1e-6, 0.01, 1e-3


def on_all(params: Params, form: str, ranks: int, optimizer: str) -> Program:
    """The step in which each rank updates everything."""
    fuse = passes.fuse_all_reduce, lambda program: passes.fuse_optimizer(program, form="merged")
    grouped = lambda program: passes.coalesce_gradients(program, "fuse_size", limit=LIMIT)  # noqa: E731
    return passes.pipeline(whole(params, form, ranks, optimizer), FOLD, grouped, *fuse).program


def updates(program: Program) -> Callable[[], None]:
    """A program's updates, and the sums before them, on arrays filled with random numbers."""
    chosen = [op for op in program.main if "params" in op.outputs or op.type in ("norm_tiles", "join_tiles")]
    arrays = {}
    for name in {name for op in chosen for name in (*op.reads, *op.writes)}:
        var = program.vars[name]
        if name.endswith(("@TILES", "@SUMS")):
            arrays[name] = gpu.to_device(np.zeros(var.shape, np.float32))
        else:
            arrays[name] = torch.rand(var.shape, device="cuda").mul_(0.01).to(getattr(torch, var.dtype))
    context = ops.Context(program, arrays, Gpu(arrays.values(), 0), None, None)
    return ops.Runners([ops.bind(context, op) for op in chosen]).run


def shares(params: Params, name: str) -> Iterator[dict[str, Any]]:
    for optimizer in NORMED:
        alone = 0.0
        for ranks in (1, 2, 4):
            made = by_element(params, PLAIN, 0, ranks, LIMIT, optimizer)
            ms = device_ms(updates(made))
            alone = alone or ms
            tiles = {name for op in made.main if op.type == "norm_tiles" for name in op.outputs["tiles"]}
            yield {"workload": name, "optimizer": optimizer, "ranks": ranks, "ms": ms, "of_one_rank": ms / alone,
                   "bytes_of_sums": sum(4 * made.vars[name].shape[0] for name in tiles)}
            free()


def steps(world: Any, params: Params, name: str) -> Iterator[dict[str, Any]]:
    for optimizer, form in product(NORMED, (PLAIN, HALF)):
        about = {"workload": name, "optimizer": optimizer, "form": form, "world": world.size}
        programs = {
            "refopt, on all ranks": on_all(params, form, world.size, optimizer),
            "refopt, by element": by_element(params, form, world.rank, world.size, LIMIT, optimizer),
        }
        for way, program in programs.items():
            run = bound_of(world, program, filled(program, world.rank), lambda _, var: torch.randn(var.shape) * 0.02)
            row = about | {"way": way, "ms": rank_ms(world, run.step), "ok": same_everywhere(world, run, params)}
            yield row | {"calls": {kind: count for kind, count in program.counts().items() if kind in CALLS}}
            del run
            free()
        if optimizer == "lamb":
            yield about | {"way": "PyTorch, foreach, by rows", "ms": rank_ms(world, foreach_lamb(params, form))}
            free()


CALLS = "all_reduce", "reduce_scatter", "all_gather"


def foreach_lamb(params: Params, form: str) -> Callable[[], None]:
    """A step of LAMB by foreach operations: reduce-scatter, update of shards, one all-reduce of norms, all-gather."""
    ranks, kind = dist.get_world_size(), torch.float32 if form == PLAIN else torch.float16
    sizes = [-(-(shape[0] if shape else 1) // ranks) * math.prod(shape[1:]) for _, shape in params]
    count = sum(sizes)
    grads = torch.randn(count * ranks, dtype=kind, device="cuda")
    summed = torch.empty(count, dtype=kind, device="cuda")
    flat = [torch.randn(count, device="cuda"), *(torch.zeros(count, device="cuda") for _ in range(3))]
    p, g, m, u = (list(x.split(sizes)) for x in flat)
    half = torch.empty(count, dtype=torch.float16, device="cuda")
    every = torch.empty(count * ranks, dtype=torch.float16, device="cuda")
    part = int(LIMIT * 2**20) // kind.itemsize // ranks
    parts = [slice(first, min(first + part, count)) for first in range(0, count, part)]
    (beta1, beta2), t = BETAS, 10

    def both(collective: Callable[..., Any], wide: torch.Tensor, own: torch.Tensor, scatter: bool) -> None:
        works = []
        for each in parts:
            mine, all_of = own[each], wide[each.start * ranks : each.stop * ranks]
            works.append(collective(*((mine, all_of) if scatter else (all_of, mine)), async_op=True))
        for work in works:
            work.wait()

    def step() -> None:
        both(dist.reduce_scatter_tensor, grads, summed, True)
        flat[1].copy_(summed).div_(ranks)
        torch._foreach_lerp_(m, g, 1 - beta1)
        torch._foreach_mul_(u, beta2)
        torch._foreach_addcmul_(u, g, g, 1 - beta2)
        r = torch._foreach_div(u, 1 - beta2**t)
        torch._foreach_sqrt_(r)
        torch._foreach_add_(r, EPSILON)
        r = torch._foreach_div(m, r)
        torch._foreach_div_(r, 1 - beta1**t)
        torch._foreach_add_(r, p, alpha=DECAY)
        norms = torch.stack([*torch._foreach_norm(p), *torch._foreach_norm(r)]).square_()
        dist.all_reduce(norms)
        of_p, of_r = norms.sqrt_().view(2, -1)
        rates = torch.where((of_p > 0) & (of_r > 0), of_p / of_r, 1.0) * -LR
        torch._foreach_mul_(r, list(rates.unbind()))
        torch._foreach_add_(p, r)
        half.copy_(flat[0])
        both(dist.all_gather_into_tensor, every, half, False)

    return step


def main() -> int:
    """The command, in every rank."""
    options = options_of(__doc__, "norm_shards", ["bert-large"])
    with meeting("norm_shards", TIMING, options.out) as (world, report, out):
        section = sections(world, report, out)
        section("agreement", [row for optimizer in NORMED for row in agreement(world, optimizer)])
        for name in options.workloads:
            params = params_of(name)
            for what, rows in (("shares", shares(params, name)), ("steps", steps(world, params, name))):
                section(what, list(rows))
    return int(not all(row.get("ok", True) for name in ("agreement", "steps") for row in report[name]))


if __name__ == "__main__":
    sys.exit(main())
