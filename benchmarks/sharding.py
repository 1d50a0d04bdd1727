"""The sharded optimizer step on real GPUs: in buckets on two streams, against its floors and PyTorch's sharded Adam.

    python -m refopt.comm.launch -n 2 -m benchmarks.sharding [--workloads bert-large gpt2-xl] [--out FILE]

Needs as many GPUs as ranks, PyTorch, and nccl4py. Rank 0 writes the report, after every section; a time is the median
of the slowest rank's. A step begins with every gradient of the rank in its array: it reduces them to owners, averages
and updates there, and broadcasts fp16 parameters. PyTorch's has fp32 parameters, as `ZeroRedundancyOptimizer` has no
others, and gradients averaged by an all-reduce in DDP's buckets.
"""

import argparse
import math
import os
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from benchmarks.communication import rank_ms
from benchmarks.measure import copy_gb_s, free
from benchmarks.peers_sharding import PEERS
from benchmarks.run import RESULTS, environment, save, short_name
from benchmarks.sharded_programs import (
    FORMS,
    SCAN,
    Params,
    about,
    brought,
    calls_of,
    halves,
    in_host,
    in_numpy,
    in_shards,
    link_of,
    params_of,
    plan_of,
    predicted,
    unsharded,
    update_bytes,
    whole,
)
from refopt import comm, gpu, placement, sharding
from refopt.comm import local
from refopt.gpu.coalesce import CHUNK
from refopt.placement import Schedule
from refopt.program import Program
from refopt.sharding import bucket_counts, counts

LIMITS = (8.0, 32.0, 128.0, math.inf)  # MiB of gradients in a bucket
SPANS = 32.0  # the one whose tasks are timed
WITHIN = 1.15  # of the floor
MESSAGES = tuple(1 << exponent for exponent in range(12, 29, 2))
IN_A_ROW = 8
SMALL: Params = [("a", (64, 33)), ("b", (129,)), ("c", (7, 5, 3)), ("d", (1,)), ("e", (90, 70)), ("f", (2048,))]
SMALL_LIMIT = 0.01


def filled(program: Program, rank: int) -> dict[str, torch.Tensor]:
    """Normally distributed parameters, on all ranks alike, and gradients, other ones on each."""
    random = {True: torch.Generator("cuda").manual_seed(rank + 1), False: torch.Generator("cuda").manual_seed(0)}
    return {
        name: torch.normal(0, 0.02, shape, generator=random["@GRAD" in name], device="cuda").to(getattr(torch, dtype))
        for name, shape, dtype in brought(program)
    }


# Sections.


def steps(world: Any, rate: float, spans: list[dict], name: str) -> list[dict]:
    """A model's sharded step, by form and size of a bucket; then PyTorch's."""
    params, rows = params_of(name), []
    for form in FORMS:
        program = whole(params, form, world.size)
        for limit in LIMITS:
            every = [in_shards(program, rank, world.size, limit) for rank in range(world.size)]
            rows.append(
                {"workload": name, "world": world.size, "way": f"refopt, {form}", "form": form, "limit_mib": limit}
                | step_row(world, every, params, form, limit, rate)
            )
            free()
            if limit == SPANS:
                spans += timed(world, every[world.rank], name, form)
                free()
    for way, make in PEERS.items():
        rows.append({"workload": name, "world": world.size, "way": way} | peer_row(world, params, make))
        free()
    best, theirs = (
        min((row["ms"] for row in rows if "ms" in row and ("form" in row) == ours), default=math.nan)
        for ours in (True, False)
    )
    rows.append({"workload": name, "world": world.size, "way": "the best of each", "refopt_ms": best,
                 "pytorch_ms": theirs, "gain": theirs / best, "ok": best < theirs})  # fmt: skip
    return rows


def step_row(
    world: Any, every: list[Program], params: Params, form: str, limit: float, rate: float
) -> dict[str, Any]:  # fmt: skip
    """Times and floors of a step, and whether its calls and bytes are those of the formula."""
    program = every[world.rank]
    made = bound_to(world, plan_of(program))
    ms, host = rank_ms(world, made.step), host_ms(made)
    counted = calls_in(world, made.step)
    ok = counted == bucket_counts.collectives(
        **about(params, form, world.size, limit), chunk=CHUNK["bytes"], scan=form == SCAN
    )
    equal = same_everywhere(world, made, params)
    del made
    free()
    alone = bound_to(world, plan_of(program, 1))
    one_stream = rank_ms(world, alone.step)
    del alone
    free()
    bare = bare_calls(world, program)
    ok = ok and calls_in(world, bare) == counted
    floors = {"communication_floor_ms": rank_ms(world, bare),
              "update_floor_ms": max(update_bytes(each) for each in every) / rate / 1e6}  # fmt: skip
    ratio = ms / max(floors.values())
    return {
        "ms": ms, "one_stream_ms": one_stream, "host_ms": host, **floors, "of_floor": ratio,
        "within": ratio <= WITHIN, "ops": len(program.main), "param_casts": counts.param_casts(program),
        "calls": sum(each.calls for each in counted.values()),
        **{f"{kind}_bytes": counted[kind].bytes for kind in ("reduce", "broadcast")},
        "params_equal_on_all_ranks": equal, "ok": ok and equal and counts.param_casts(program) == 0,
    }  # fmt: skip


def bound_to(world: Any, plan: Schedule, **options: Any) -> Any:
    return placement.bind_schedule(plan, filled(plan.program, world.rank), comm=world, **options)


def host_ms(made: Any, repeats: int = 10) -> float:
    """What enqueueing a step takes on the host, the device idle before."""
    found = []
    for _ in range(repeats):
        made.synchronize()
        start = time.perf_counter()
        made.step()
        found.append((time.perf_counter() - start) * 1e3)
    made.synchronize()
    return sorted(found)[repeats // 2]


def calls_in(world: Any, call: Callable[[], Any]) -> dict[str, Any]:
    """Calls and bytes of the communicator."""
    world.reset_counts()
    call()
    return world.counts


def bare_calls(world: Any, program: Program) -> Callable[[], None]:
    """The collectives of a step back to back, on arrays of the same dtypes and sizes."""
    calls = list(calls_of(program))
    most = {dtype: max(count for *_, kind, count in calls if kind == dtype) for *_, dtype, _ in calls}
    buffers = {dtype: torch.zeros(count, dtype=getattr(torch, dtype), device="cuda") for dtype, count in most.items()}
    bound = [
        partial(getattr(world, kind), buffers[dtype][:count], *([] if root is None else [root]))
        for kind, root, dtype, count in calls
    ]

    def run() -> None:
        for call in bound:
            call()

    return run


def same_everywhere(world: Any, made: Any, params: Params) -> bool:
    """Whether all ranks have the fp16 parameters of rank 0, bit for bit."""
    made.synchronize()
    differing = torch.zeros(1, dtype=torch.int64, device="cuda")
    for name in halves(made.plan.program, params):
        mine = torch.as_tensor(made.bound.arrays[name])
        theirs = mine.clone()
        world.broadcast(theirs, 0)
        differing += (mine.view(torch.int16) != theirs.view(torch.int16)).sum()
    world.all_reduce(differing)
    world.synchronize()
    return differing.item() == 0


def timed(world: Any, program: Program, name: str, form: str) -> list[dict]:
    """When the tasks of a step ran, on rank 0."""
    plan = plan_of(program)
    made = bound_to(world, plan, timing=True)
    for _ in range(5):
        world.barrier()
        made.step()
    found = made.spans()
    hidden = placement.overlap(found)
    about = {"workload": name, "form": form, "limit_mib": SPANS}
    tasks = [[span.task.stream, plan.label(span.task), span.start * 1e3, span.stop * 1e3] for span in found]
    return [about | {f"{key}_ms": value * 1e3 for key, value in hidden._asdict().items()} | {"tasks": tasks}]


def peer_row(world: Any, params: Params, make: Callable[[Params], Callable[[], None]]) -> dict[str, Any]:
    try:
        return {"ms": rank_ms(world, make(params))}
    except (RuntimeError, TypeError, ValueError) as error:
        return {"skipped": f"{type(error).__name__}: {error}"}


def broadcasts(world: Any, name: str) -> list[dict]:
    """All parameters of a model, in fp16, from owners, and all from rank 0."""
    sizes = [math.prod(shape) for _, shape in params_of(name)]
    arrays = [torch.zeros(size, dtype=torch.float16, device="cuda") for size in sizes]
    flat = torch.zeros(sum(sizes), dtype=torch.float16, device="cuda")
    owners = sharding.partition(sizes, world.size, "greedy")
    parts = [flat[: sum(s for s, o in zip(sizes, owners, strict=True) if o == r)] for r in range(world.size)]

    def one_by_one(roots: list[int]) -> None:
        for array, root in zip(arrays, roots, strict=True):
            world.broadcast(array, root)

    def flats(roots: list[int]) -> None:
        for part, root in zip(parts, roots, strict=True):
            world.broadcast(part, root)

    def batched(call: Callable[[list[int]], None], roots: list[int]) -> None:
        with world.batch():
            call(roots)

    rows = []
    every, zeros = list(range(world.size)), [0] * world.size
    for way, call, roots in (
        ("one call a tensor", one_by_one, owners), ("one call an owner", flats, every),
        ("one call a tensor, as one batch", partial(batched, one_by_one), owners),
        ("one call an owner, as one batch", partial(batched, flats), every),
    ):  # fmt: skip
        from_0 = zeros if len(roots) == world.size and roots is every else [0] * len(sizes)
        spread, single = (rank_ms(world, partial(call, given)) for given in (roots, from_0))
        counted = calls_in(world, partial(call, roots))["broadcast"]
        rows.append({
            "workload": name, "world": world.size, "way": way, "calls": counted.calls, "bytes": counted.bytes,
            "from_owners_ms": spread, "from_rank_0_ms": single, "gain": single / spread,
            "ok": counted.bytes == 2 * sum(sizes),
        })  # fmt: skip
    return rows


def agreement(world: Any) -> list[dict]:
    """fp16 parameters after a step: the sharded one on GPUs against the whole one in NumPy, bit for bit."""
    rows = []
    for form in FORMS:
        for odd in (False, True) if form == SCAN else (False,):
            program = unsharded(SMALL, form, world.size)
            expected = local.run(partial(in_numpy, program, SMALL, odd), world.size)[world.rank]
            mine = in_shards(whole(SMALL, form, world.size), world.rank, world.size, SMALL_LIMIT)
            given = {name: gpu.to_device(x) for name, x in in_host(mine, world.rank, odd).items()}
            made = placement.bind_schedule(plan_of(mine), given, comm=world)
            made.step()
            made.synchronize()
            names = halves(mine, SMALL)
            wrong = sum(int((made.bound.read(n).view(np.uint16) != expected[n].view(np.uint16)).sum()) for n in names)
            differing = torch.tensor([wrong], device="cuda")
            world.all_reduce(differing)
            world.synchronize()
            rows.append({
                "form": form, "world": world.size, "inf_on_rank_0": odd, "differing": differing.item(),
                "elements": world.size * sum(expected[n].size for n in names),
                "ok": differing.item() == 0 or world.size > 2,  # NCCL then adds in another order
            })  # fmt: skip
    return rows


def curve(world: Any) -> list[dict]:
    """Reductions and broadcasts by size, some in a row, each from another rank than the one before."""
    buffer = torch.zeros(max(MESSAGES) // 4, device="cuda")
    rows = []
    for kind in ("reduce", "broadcast"):
        for size in MESSAGES:
            call = getattr(world, kind)

            def several(call: Any = call, part: Any = buffer[: size // 4]) -> None:
                for k in range(IN_A_ROW):
                    call(part, k % world.size)

            rows.append({"kind": kind, "world": world.size, "bytes": size, "ms": rank_ms(world, several) / IN_A_ROW})
    return rows


def main() -> None:
    """The command, in every rank."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workloads", nargs="+", default=["bert-large", "gpt2-xl"], metavar="NAME")
    parser.add_argument("--out", type=Path, help="default: benchmarks/results/sharding-DEVICE-xN.json")
    options = parser.parse_args()
    with comm.nccl.connect() as world:
        store = dist.FileStore(str(Path(os.environ["REFOPT_RENDEZVOUS"]) / "torch"), world.size)
        dist.init_process_group("nccl", store=store, rank=world.rank, world_size=world.size)
        rate = copy_gb_s()
        report: dict[str, Any] = environment() | {
            "command": f"python -m refopt.comm.launch -n {world.size} -m benchmarks.sharding",
            "what": "sharding", "world": world.size, "copy_gb_s": rate, "spans": [],
        }  # fmt: skip
        out = options.out or RESULTS / f"sharding-{short_name(report['device'])}-x{world.size}.json"

        def section(name: str, rows: list[dict]) -> None:
            report.setdefault(name, []).extend(rows)
            if world.rank == 0:
                save(report, out)
                for row in rows:
                    print(name, *(f"{key}={value}" for key, value in row.items()), flush=True)
            free()

        section("agreement", agreement(world))
        section("curve", curve(world))
        for name in options.workloads:
            section("broadcasts", broadcasts(world, name))
            section("steps", steps(world, rate, report["spans"], name))
        link = link_of(report["curve"])
        report["link"] = link._asdict()
        section("cost", predicted(world.rank, rate, link, report["steps"]))
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
