"""Steps of LAMB, LARS, NovoGrad and Muon in shards, and steps that send fewer bytes, on several GPUs.

    python -m refopt.comm.launch -n 2 -m benchmarks.norm_shards [--workloads bert-large] [--out FILE]

Needs as many GPUs as ranks, PyTorch, and nccl4py. ``agreement`` counts fp16 parameters that differ from those of the
unsharded step in NumPy. ``steps`` begin with every gradient of the rank in its array and end with fp16 parameters on
all ranks, as in `benchmarks.elements`; ``bytes_of_sums`` are those of the all-reduce of sums of tiles. PyTorch's LAMB
has foreach operations on shards of each tensor along its first axis, as `fully_shard` cuts them, in flat buckets. Muon
updates the layers' matrices, each on its owner, and AdamW the rest by element. ``sums`` are Adam's steps on all ranks
that sum gradients in fp32 or 16 bits, or average parameters in one step of `EVERY`: the mean of that many.
"""

import math
import sys
from collections.abc import Callable, Iterator
from functools import partial
from itertools import product
from typing import Any

import torch
import torch.distributed as dist

from benchmarks.elements import agreement, bound_of, by_element
from benchmarks.measure import free
from benchmarks.ranks import meeting, options_of, rank_ms, sections
from benchmarks.sharded_programs import FOLD, HALF, OPTIMIZER, PLAIN, Params, in_buckets, params_of, whole
from benchmarks.sharding import TIMING, filled, same_everywhere
from refopt.catalog import ROUTINES
from refopt.program import Program, passes

NORMED = tuple(name for name, routine in ROUTINES.items() if routine.norms)
LIMIT = 128.0  # MiB of gradients in a bucket
MUON = "muon beside adamw"
EVERY = 8
GROUPED = partial(passes.coalesce_gradients, grouping="fuse_size", limit=LIMIT), passes.fuse_all_reduce
SUMS: dict[str, tuple[Any, ...]] = {
    "float32": (FOLD, *GROUPED),
    **{dtype: (*GROUPED, partial(passes.narrow_sums, dtype=dtype)) for dtype in ("float16", "bfloat16")},
    "of parameters": (partial(passes.local_steps, every=EVERY),),
}
BETAS, EPSILON, DECAY, LR = (0.9, 0.999), 1e-6, 0.01, 1e-3


def on_all(params: Params, form: str, ranks: int, optimizer: Any, sums: str = "float32") -> Program:
    """The step in which each rank updates everything."""
    merge = partial(passes.fuse_optimizer, form="merged")
    return passes.pipeline(whole(params, form, ranks, optimizer), *SUMS[sums], merge).program


def in_shards(params: Params, form: str, rank: int, ranks: int, optimizer: Any) -> Program:
    """The step in which each rank updates a part; Muon's matrices are whole on their owners."""
    if isinstance(optimizer, str):
        return by_element(params, form, rank, ranks, LIMIT, optimizer)
    cut = partial(passes.shard_elements, rank=rank, degree=ranks, limit=LIMIT)
    return in_buckets(passes.pipeline(whole(params, form, ranks, optimizer), FOLD, cut).program, LIMIT, True)


def steps(world: Any, params: Params, name: str) -> Iterator[dict[str, Any]]:
    rules = {x: "muon" if len(shape) == 2 and "embed" not in x else "adamw" for x, shape in params}
    for optimizer, form in product((*NORMED[::-1], MUON), (PLAIN, HALF)):
        about = {"workload": name, "optimizer": optimizer, "form": form, "world": world.size}
        rule = rules if optimizer == MUON else optimizer
        programs = {
            "refopt, on all ranks": on_all(params, form, world.size, rule),
            "refopt, by element": in_shards(params, form, world.rank, world.size, rule),
        }
        for way, program in programs.items():
            run = bound(world, program)
            row = about | {"way": way, "ms": rank_ms(world, run.step), "ok": same_everywhere(world, run, params)}
            tiles = {name for op in program.main if op.type == "norm_tiles" for name in op.outputs["tiles"]}
            row["bytes_of_sums"] = sum(4 * program.vars[name].shape[0] for name in tiles)
            yield row | {kind: program.counts().get(kind, 0) for kind in CALLS}
            del run
            free()
        if optimizer == "lamb":
            yield about | {"way": "PyTorch, foreach, by rows", "ms": rank_ms(world, foreach_lamb(params, form))}
            free()


CALLS = "all_reduce", "reduce_scatter", "all_gather", "reduce", "broadcast"


def bound(world: Any, program: Program) -> Any:
    """The program with random gradients."""
    return bound_of(world, program, filled(program, world.rank), lambda _, var: torch.randn(var.shape) * 0.02)


def several(run: Any) -> None:
    for _ in range(EVERY):
        run.step()


def sums(world: Any, params: Params, name: str) -> Iterator[dict[str, Any]]:
    for kind in SUMS:
        run = bound(world, on_all(params, PLAIN, world.size, OPTIMIZER, kind))
        ms = rank_ms(world, partial(several, run)) / EVERY
        yield {"workload": name, "sums": kind, "world": world.size, "ms": ms, "ok": same_everywhere(world, run, params)}
        del run
        free()


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
        for name in options.workloads:
            for what, rows in (("steps", steps), ("sums", sums)):
                for row in rows(world, params_of(name), name):
                    section(what, [row])
        for optimizer in NORMED:
            section("agreement", agreement(world, optimizer))
    return int(not all(row.get("ok", True) for name in ("agreement", "steps", "sums") for row in report[name]))


if __name__ == "__main__":
    sys.exit(main())
