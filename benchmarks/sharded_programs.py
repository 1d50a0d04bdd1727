"""The programs of `benchmarks.sharding`: steps from the gradients on, whole and in shards, and what they move."""

import math
from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from refopt.catalog import Spec, workloads
from refopt.checks.dtypes import ITEM_SIZES
from refopt.gpu.coalesce import CHUNK
from refopt.program import UNKNOWN, Config, Op, Program, amp_program, bind, passes, placement, step_program
from refopt.program.mixed_precision import copy_of
from refopt.program.ops import collectives, of_way
from refopt.program.ops.updates import routine_of
from refopt.program.placement import Schedule, Span

Params = list[tuple[str, tuple[int, ...]]]  # names and shapes

OPTIMIZER = "adam"
NUMBERS = {"lr": 1e-3}
MIXED = Config("float16", "float32", "float32", "float32")
CHECKED, PLAIN, HALF = "checked fp32 gradients", "fp32 gradients", "fp16 gradients"
FORMS = (PLAIN, CHECKED, HALF)
FOLD = partial(passes.fold_averages, exact=False)  # fp16 averages are not rounded then


def whole(params: Params, form: str, ranks: int, optimizer: str = OPTIMIZER) -> Program:
    """The step of a rank that sums every gradient and updates every parameter."""
    numbers = NUMBERS | ({"mu": 0.9} if optimizer == "lars_momentum" else {})
    if form == CHECKED:
        return amp_program(params, optimizer, world_size=ranks, **numbers)
    config = MIXED if form == PLAIN else "amp"
    return step_program(params, optimizer, config=config, world_size=ranks, **numbers)


def unsharded(params: Params, form: str, ranks: int, optimizer: str = OPTIMIZER) -> Program:
    """What every rank does from the gradients on if nothing is shared out, with fp16 copies of all parameters."""
    return after_backward(passes.pipeline(whole(params, form, ranks, optimizer), passes.optimize_cast, FOLD).program)


def in_shards(program: Program, rank: int, ranks: int, limit: float, batched: bool = False) -> Program:
    """What a rank does from the gradients on, with collectives and updates in buckets of so many MiB of gradients.

    Args:
        program: the step that `whole` gives.
        rank, ranks: this one, and how many there are.
        limit: of a bucket.
        batched: whether one bucket of each owner is reduced at a time, and broadcast.
    """
    return in_buckets(share(program, rank, ranks), limit, batched)


def share(program: Program, rank: int, ranks: int) -> Program:
    """What a rank does from the gradients on, tensor by tensor."""
    own = passes.pipeline(
        program,
        partial(passes.shard, rank=rank, degree=ranks, rule="greedy", order="reduced"),
        passes.optimize_cast,
        passes.fold_casts,
        FOLD,
    )
    return after_backward(own.program)


def in_buckets(program: Program, limit: float, batched: bool) -> Program:
    """A share in buckets."""
    reduced = next(op for op in program.main if op.type == "reduce")
    item = ITEM_SIZES[program.vars[reduced.inputs["x"][0]].dtype]
    return passes.pipeline(
        program,
        partial(passes.fuse_reduces, limit=limit),
        partial(passes.fuse_optimizer, form="merged", per_buffer=True),
        partial(passes.fuse_broadcasts, limit=limit * ITEM_SIZES["float16"] / item),
        *([passes.batch_owners] if batched else []),
    ).program


def after_backward(program: Program) -> Program:
    """The ops that come once the gradients are there, which the caller brings, and the variables that these take."""
    main = [op for op in program.main if op.role in ("communicate", "optimize")]
    used = {name for op in (*program.startup, *main) for name in (*op.reads, *op.writes)}
    brought: set[str] = set()
    written: set[str] = set()
    for op in main:
        brought |= set(op.reads) - written
        written |= {*op.writes}
    vars = {
        name: replace(var, persistable=var.persistable or name in brought)
        for name, var in program.vars.items() if name in used
    }
    return program.replace(vars=vars, main=main)


class Called(NamedTuple):
    """A collective: its type, its root if it has one, and dtype and elements, padding included, of its array."""

    kind: str
    root: int | None
    dtype: str
    count: int


def calls_of(program: Program) -> Iterator[list[Called]]:
    """The collectives of a step, those that are made at once together."""
    for op in program.main:
        if op.type in of_way("network"):
            yield [_called(program, each) for each in collectives.calls(op)]


def _called(program: Program, op: Op) -> Called:
    names, dtype = op.inputs["x"], program.vars[op.inputs["x"][0]].dtype
    unit = CHUNK["bytes"] // ITEM_SIZES[dtype] if len(names) > 1 else 1
    sizes = [math.prod(program.vars[name].shape) for name in names]
    return Called(op.type, op.attrs.get("root"), dtype, sum(-(-size // unit) * unit for size in sizes))


def update_bytes(program: Program) -> int:
    """What the updates of a rank read and write, by the catalogue."""
    total = 0
    for op in program.main:
        routine = routine_of(op)
        if routine is not None:
            slots = [op.inputs.get(name) for name in routine.slot_names]
            specs = [
                Spec(math.prod(program.vars[param].shape), tuple(x and program.vars[x[k]].dtype for x in slots))
                for k, param in enumerate(op.inputs["params"])
            ]
            total += routine.bytes(specs, routine.merged_form)
    return total


def brought(program: Program) -> list[tuple[str, tuple[int, ...], str]]:
    """Name, shape and dtype of what the caller brings."""
    names = {name for op in program.startup if op.type == "initialize" for name in op.writes}
    return [
        (var.name, var.shape, var.dtype)
        for var in program.vars.values()
        if var.shape != UNKNOWN and (var.name in names or (var.persistable and var.initial is None))
    ]


def params_of(name: str) -> Params:
    return [(tensor.name, tensor.shape) for tensor in workloads.load(name).tensors]


def plan_of(program: Program, streams: int = 2) -> Schedule:
    return placement.on_streams(program, {} if streams == 2 else {"communication": "compute"})


def hidden(spans: Iterable[Span]) -> float:
    """Seconds during which ``compute`` and any other stream are busy at once."""
    edges = sorted(
        (time, change, span.task.stream == "compute")
        for span in spans for time, change in ((span.start, 1), (span.stop, -1))
    )
    busy, both, before = {True: 0, False: 0}, 0.0, 0.0
    for time, change, computes in edges:
        both += time - before if all(busy.values()) else 0.0
        busy[computes] += change
        before = time
    return both


def halves(program: Program, params: Params) -> list[str]:
    """The fp16 variable of each parameter."""
    return [copy if (copy := copy_of(name)) in program.vars else name for name, _ in params]


def in_host(program: Program, rank: int, odd: bool) -> dict[str, np.ndarray]:
    """Parameters, alike on all ranks, and gradients, of which one of rank 0 may have an inf."""
    arrays = {}
    for name, shape, dtype in brought(program):
        seed = [rank + 1 if "@GRAD" in name else 0, *map(ord, name)]
        arrays[name] = np.random.default_rng(seed).normal(size=shape).astype(dtype)
        if odd and rank == 0 and name.startswith("e@GRAD"):
            arrays[name].reshape(-1)[-1] = np.inf
    return arrays


def in_numpy(program: Program, params: Params, odd: bool, world: Any) -> dict[str, np.ndarray]:
    """One step on a rank of the local engine."""
    bound = bind(program, in_host(program, world.rank, odd), comm=world)
    bound.startup()
    bound.step()
    return {name: bound.read(name) for name in halves(program, params)}
