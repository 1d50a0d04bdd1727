"""The sharded optimizer step on real GPUs: in buckets on two streams, against its floors and PyTorch's sharded Adam.

    python -m refopt.comm.launch -n 2 -m benchmarks.sharding [--workloads bert-large gpt2-xl] [--out FILE]

Needs as many GPUs as ranks, PyTorch, and nccl4py. Rank 0 writes the report, after every section; a time is the median
of the slowest rank's. A step begins with every gradient of the rank in its array: it reduces them to owners, averages
and updates there, and broadcasts fp16 parameters; in batches, one bucket of each owner at once. Updates keep to some
of the multiprocessors, and for comparison to all.
PyTorch's has fp32 parameters, as `ZeroRedundancyOptimizer` has no others, and gradients averaged by an all-reduce in
DDP's buckets.
"""

import contextlib
import math
import statistics
import sys
import time
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch

from benchmarks.measure import free
from benchmarks.peers_sharding import PEERS
from benchmarks.ranks import meeting, options_of, rank_ms, sections
from benchmarks.sharded_programs import (
    CHECKED,
    FORMS,
    HALF,
    PLAIN,
    Params,
    brought,
    calls_of,
    halves,
    hidden,
    in_buckets,
    in_host,
    in_numpy,
    in_shards,
    params_of,
    plan_of,
    share,
    unsharded,
    update_bytes,
    whole,
)
from benchmarks.tensors import Tensors, shapes_of
from refopt import gpu
from refopt.catalog import ADAM
from refopt.comm import local
from refopt.gpu.coalesce import CHUNK
from refopt.program import Program, counts, passes, placement
from refopt.program.placement import Schedule

LIMITS = {False: (32.0, 128.0), True: (32.0, 128.0, math.inf)}  # MiB of gradients in a bucket; one by one, in batches
LARGE = 1 << 30  # parameters of a model of which fewer steps are measured
CONFINED = 56  # multiprocessors for updates: the best of 40 to 88 on an H200, which has 132
SPANS = 32.0  # the one whose tasks are timed
FEWER = 10  # repeats of what is compared with
TIMING = f"by CUDA events, after 5 to warm up: the slowest rank's, median of 20; of ways to compare with, of {FEWER}"
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
    """A model's sharded step, by form and size of a bucket, one by one and in batches; then PyTorch's.

    Args:
        world, rate, name: the communicator, GB/s of a device's memory, and the model.
        spans: what tasks took is added to it.
    """
    params, rows = params_of(name), []
    large = sum(math.prod(shape) for _, shape in params) >= LARGE
    for form in (PLAIN, HALF) if large else FORMS:
        program = whole(params, form, world.size)
        shares = [share(program, rank, world.size) for rank in range(world.size)]
        floor = max(map(update_bytes, shares)) / rate / 1e6
        limits = {True: LIMITS[True][1:]} if large else LIMITS
        for limit, batched in [(limit, batched) for batched, several in limits.items() for limit in several]:
            about = {"workload": name, "form": form, "limit_mib": limit, "batched": batched}
            mine = in_buckets(shares[world.rank], limit, batched)
            way = f"refopt, {form}{', in batches' if batched else ''}"
            rows.append({"world": world.size, "way": way} | step_row(world, mine, params, about, floor, spans))
            free()
    for way, make in PEERS.items():
        if way.endswith("True") or not large:
            rows.append({"workload": name, "world": world.size, "way": way} | peer_row(world, params, make))
            free()
    best, theirs = (
        min((row["ms"] for row in rows if "ms" in row and ("form" in row) == ours), default=math.nan)
        for ours in (True, False)
    )
    rows.append({"workload": name, "world": world.size, "way": "the best of each", "refopt_ms": best,
                 "pytorch_ms": theirs, "gain": theirs / best, "ok": best < theirs})
    return rows


def step_row(
    world: Any, program: Program, params: Params, about: dict[str, Any], floor: float, spans: list[dict]
) -> dict[str, Any]:
    """Times and floors of a step, and whether its calls and bytes are those of the formula.

    The arrays are bound once; with updates on all multiprocessors, on one stream, and with tasks that are timed, steps
    go on from there.

    Args:
        world, program, params: the communicator, the rank's step, and the model's parameters.
        about: workload, form, limit and whether in batches.
        floor: milliseconds of the updates.
        spans: what tasks took is added to it.
    """
    start = time.perf_counter()
    arrays = filled(program, world.rank)
    scheduled = placement.bind_schedule(plan_of(program), arrays, comm=world, multiprocessors=CONFINED)
    bind_s = time.perf_counter() - start
    ms, host = rank_ms(world, scheduled.step), host_ms(scheduled)
    counted = calls_in(world, scheduled.step)
    ok = counted == counts.communicated(program, CHUNK["bytes"])
    equal = same_everywhere(world, scheduled, params)
    on_all = rank_ms(world, again(world, scheduled, scheduled.plan).step, FEWER)
    one_stream = rank_ms(world, again(world, scheduled, plan_of(program, 1)).step, FEWER)
    if about["limit_mib"] == SPANS:
        spans += timed(world, scheduled, about)
    del scheduled
    bare = bare_calls(world, program)
    ok = ok and calls_in(world, bare) == counted
    floors = {"communication_floor_ms": rank_ms(world, bare, FEWER), "update_floor_ms": floor}
    ratio = ms / max(floors.values())
    return about | {
        "ms": ms, "on_all_ms": on_all, "one_stream_ms": one_stream, "host_ms": host, **floors, "of_floor": ratio,
        "within": ratio <= WITHIN, "ops": len(program.main), "param_casts": counts.param_casts(program),
        "calls": sum(each.calls for each in counted.values()),
        **{f"{kind}_bytes": counted[kind].bytes for kind in ("reduce", "broadcast")},
        "params_equal_on_all_ranks": equal, "ok": ok and equal and counts.param_casts(program) == 0,
        "bind_s": bind_s, "row_s": time.perf_counter() - start,
    }


def again(world: Any, scheduled: Any, plan: Schedule, **options: Any) -> Any:
    """Another schedule of the same arrays."""
    scheduled.synchronize()
    other = placement.BoundSchedule(plan, scheduled.bound, {}, **options)
    world.barrier()
    return other


def host_ms(scheduled: Any, repeats: int = 10) -> float:
    """What enqueueing a step takes on the host, the device idle before."""
    times = []
    for _ in range(repeats):
        scheduled.synchronize()
        start = time.perf_counter()
        scheduled.step()
        times.append((time.perf_counter() - start) * 1e3)
    scheduled.synchronize()
    return sorted(times)[repeats // 2]


def calls_in(world: Any, call: Callable[[], Any]) -> dict[str, Any]:
    """Calls and bytes of the communicator."""
    world.reset_counts()
    call()
    return world.counts


def bare_calls(world: Any, program: Program) -> Callable[[], None]:
    """The collectives of a step back to back, on arrays of the same dtypes and sizes."""
    together = list(calls_of(program))
    most: Counter[tuple[str, int | None]] = Counter()  # of each root, since roots of a batch work at once
    for call in (call for calls in together for call in calls):
        most[call.dtype, call.root] = max(most[call.dtype, call.root], call.count)
    buffers = {key: torch.zeros(count, dtype=getattr(torch, key[0]), device="cuda") for key, count in most.items()}
    bound = [
        [
            partial(getattr(world, kind), buffers[dtype, root][:count], *([] if root is None else [root]))
            for kind, root, dtype, count in calls
        ]
        for calls in together
    ]

    def run() -> None:
        for calls in bound:
            with world.batch() if len(calls) > 1 else contextlib.nullcontext():
                for call in calls:
                    call()

    return run


def same_everywhere(world: Any, scheduled: Any, params: Params) -> bool:
    """Whether all ranks have the fp16 parameters of rank 0, bit for bit."""
    scheduled.synchronize()
    differing = torch.zeros(1, dtype=torch.int64, device="cuda")
    for name in halves(scheduled.plan.program, params):
        mine = torch.as_tensor(scheduled.bound.arrays[name])
        theirs = mine.clone()
        world.broadcast(theirs, 0)
        differing += (mine.view(torch.int16) != theirs.view(torch.int16)).sum()
    world.all_reduce(differing)
    world.synchronize()
    return differing.item() == 0


def timed(world: Any, scheduled: Any, about: dict[str, Any]) -> list[dict]:
    """When the tasks of a step ran, on rank 0."""
    plan = scheduled.plan
    other = again(world, scheduled, plan, timing=True, multiprocessors=CONFINED)
    for _ in range(5):
        world.barrier()
        other.step()
    timeline = other.spans()
    tasks = [[span.task.stream, plan.label(span.task), span.start * 1e3, span.stop * 1e3] for span in timeline]
    times = {
        "total": sum(span.stop - span.start for span in timeline), "elapsed": max(span.stop for span in timeline),
        "hidden": hidden(timeline),
    }
    return [about | {f"{key}_ms": value * 1e3 for key, value in times.items()} | {"tasks": tasks}]


def confined_gb_s() -> float:
    """What Adam moves a second on as many multiprocessors, in mixed precision."""
    values = Tensors.make(ADAM, shapes_of("bert-large"), "amp")
    machine = gpu.device("gpu")
    stream, start, stop = machine.new_stream(CONFINED), machine.new_event(True), machine.new_event(True)
    plan = values.plan(stream=stream)
    times = []
    for _ in range(FEWER):
        start.record(stream.handle)
        plan()
        stop.record(stream.handle)
        machine.synchronize()
        times.append(start.elapsed_time(stop))
    return plan.bytes / statistics.median(times) / 1e6


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
    owners = passes.partition(sizes, world.size, "greedy")
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
    ):
        from_0 = zeros if len(roots) == world.size and roots is every else [0] * len(sizes)
        spread, single = (rank_ms(world, partial(call, given)) for given in (roots, from_0))
        counted = calls_in(world, partial(call, roots))["broadcast"]
        rows.append({
            "workload": name, "world": world.size, "way": way, "calls": counted.calls, "bytes": counted.bytes,
            "from_owners_ms": spread, "from_rank_0_ms": single, "gain": single / spread,
            "ok": counted.bytes == 2 * sum(sizes),
        })
    return rows


def agreement(world: Any) -> list[dict]:
    """fp16 parameters after a step: the sharded one on GPUs against the whole one in NumPy, bit for bit."""
    rows = []
    for form in FORMS:
        for odd in (False, True) if form == CHECKED else (False,):
            program = unsharded(SMALL, form, world.size)
            expected = local.run(partial(in_numpy, program, SMALL, odd), world.size)[world.rank]
            for batched in (False, True):
                mine = in_shards(whole(SMALL, form, world.size), world.rank, world.size, SMALL_LIMIT, batched)
                differing = wrong_bits(world, mine, expected, odd)
                rows.append({
                    "form": form, "batched": batched, "world": world.size, "inf_on_rank_0": odd,
                    "differing": differing, "elements": world.size * sum(x.size for x in expected.values()),
                    "ok": differing == 0 or world.size > 2,  # NCCL then adds in another order
                })
    return rows


def wrong_bits(world: Any, program: Program, expected: dict[str, np.ndarray], odd: bool) -> int:
    """How many fp16 parameters, on all ranks, differ from those expected after a step."""
    arrays = {name: gpu.to_device(x) for name, x in in_host(program, world.rank, odd).items()}
    scheduled = placement.bind_schedule(plan_of(program), arrays, comm=world)
    scheduled.step()
    scheduled.synchronize()
    wrong = sum(int((scheduled.bound.read(n).view(np.uint16) != x.view(np.uint16)).sum()) for n, x in expected.items())
    differing = torch.tensor([wrong], device="cuda")
    world.all_reduce(differing)
    world.synchronize()
    return differing.item()


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


def main() -> int:
    """The command, in every rank."""
    options = options_of(__doc__, "sharding", ["bert-large", "gpt2-xl"])
    with meeting("sharding", TIMING, options.out) as (world, report, out):
        report |= {"confined": CONFINED, "confined_gb_s": confined_gb_s(), "spans": []}
        section = sections(world, report, out)
        section("agreement", agreement(world))
        section("curve", curve(world))
        for name in options.workloads:
            section("broadcasts", broadcasts(world, name))
            section("steps", steps(world, report["copy_gb_s"], report["spans"], name))
        section("agreement", agreement(world))  # again, after all that was timed
    rows = [row for name in ("agreement", "broadcasts", "steps") for row in report[name]]
    return int(not all(row.get("ok", True) for row in rows))


if __name__ == "__main__":
    sys.exit(main())
