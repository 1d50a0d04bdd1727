"""Small steps in mixed precision, run as they are and in shards, and the laws that hold between the two."""

import math
from functools import partial

import numpy as np
from hypothesis import strategies as st
from program_cases import PARAMS, numbers_of, on_ranks, put, ranks_of, shapes, values

from refopt.checks.dtypes import numpy_dtype
from refopt.program import UNKNOWN, amp_program, bind, passes
from refopt.program.mixed_precision import copy_of

FULL = dict(accumulate=2, recompute=True, fp32=["c"], max_norm=0.5)
RULES = st.sampled_from(["paddle", "greedy"])
LIMITS = st.sampled_from([1e-4, 3e-4, 32.0])  # megabytes
SCALING = {"decr_every_n_nan_or_inf": 1, "incr_every_n_steps": 2}


def step(params=PARAMS, optimizer="adam", **options):
    """A step in mixed precision. The loss scale moves soon, and nothing is at its default."""
    options = {"loss_scale": 8.0, "scaling": SCALING, **numbers_of(optimizer), **options}
    return amp_program(params, optimizer, **options)


def updates(program):
    return [op for op in program.main if op.role == "optimize" and op.outputs.get("params")]


def owners_of(program, rule="paddle"):
    """By parameter, in the order of the updates."""
    names = [op.outputs["params"][0] for op in updates(program)]
    sizes = [math.prod(program.vars[name].shape) for name in names]
    return dict(zip(names, passes.partition(sizes, ranks_of(program), rule), strict=True))


def shards(program, rule="paddle", cast=True, fuse=None):
    """The program of each rank."""
    ranks, programs = ranks_of(program), []
    for rank in range(ranks):
        each = passes.shard(program, rank, ranks, rule).program
        each = passes.optimize_cast(each).program if cast else each
        programs.append(each if fuse is None else passes.fuse_broadcasts(each, fuse).program)
    return programs


def in_buckets(program, rule="paddle", limit=32.0, batched=False):
    """The program of each rank with collectives and updates in buckets, and the casts done by the updates.

    If so asked, the collectives of several owners are made at once.
    """
    ranks, programs = ranks_of(program), []
    for rank in range(ranks):
        each = program
        for apply in (lambda p, rank=rank: passes.shard(p, rank, ranks, rule, order="reduced"), passes.optimize_cast,
                      passes.fold_casts, lambda p: passes.fuse_reduces(p, limit),
                      lambda p: passes.fuse_optimizer(p, form="merged", per_buffer=True),
                      lambda p: passes.fuse_broadcasts(p, limit / 2), *([passes.batch_owners] if batched else [])):
            each = apply(each).program
        programs.append(each)
    return programs


FORMS = {  # programs of all ranks, as functions of a program and of the rule by which it is shared out
    "shards": shards, "casts on every rank": partial(shards, cast=False),
    "fused broadcasts": partial(shards, fuse=32.0), "small broadcasts": partial(shards, fuse=1e-4),
    "buckets": in_buckets, "small buckets": partial(in_buckets, limit=3e-4),
    "batches": partial(in_buckets, batched=True), "small batches": partial(in_buckets, limit=3e-4, batched=True)}


def gradients_on(bounds, program, rank, odd=()):
    """Gradients that depend on what the backward pass reads, times the loss scale.

    Args:
        bounds: a list to which the bound program is added later.
        program: whose backward ops say what is read.
        rank: other gradients on each.
        odd: pairs of step and rank at which there is an inf, in the last element of the first gradient asked for.
    """
    reads = {grad: param for op in program.main if op.type == "backward"
             for param, grad in zip(op.inputs["params"], op.outputs["grads"], strict=True)}
    first = next(iter(reads), None)

    def gradient(name, step):
        (bound,) = bounds
        var, seed = program.vars[name], (step, rank, *map(ord, name))
        if var.sparse:
            rows = np.random.default_rng(list(seed)).integers(0, var.shape[0], (step + rank) % 4)
            return rows, values(var.dtype, (len(rows), *var.shape[1:]), *seed)
        w, noise = bound.read(reads[name]).astype(np.float32), values("float32", (2, *var.shape), *seed)
        scale = bound.read("loss_scaling")[0] if "loss_scaling" in program.vars else 1
        with np.errstate(all="ignore"):
            g = np.asarray(scale * (w * noise[0] + noise[1]), numpy_dtype(var.dtype))
        if (step, rank) in odd and name == first:  # of no elements, maybe
            g.reshape(-1)[-1:] = np.inf
        return g

    return gradient


def brought(program, rank):
    """What a rank brings: other parameters on each where those of rank 0 count, which it broadcasts."""
    sent = {name for op in program.startup if op.type == "broadcast" for name in op.writes}
    names = {name for op in program.startup if op.type == "initialize" for name in op.writes}
    names |= {name for name, var in program.vars.items() if var.persistable and var.initial is None}
    return {
        name: np.asarray(values(var.dtype, var.shape, rank if name in sent else 0, *map(ord, name)))
        for name, var in ((name, program.vars[name]) for name in sorted(names)) if var.shape != UNKNOWN
    }


def bound_on(program, world, backend="cpu", odd=(), mesh=None):
    """The program bound on a rank, which may be one of a mesh, started."""
    rank = world.rank if world else 0
    arrays, bounds = put(backend, brought(program, rank)), []
    gradients = gradients_on(bounds, program, rank, odd)
    bounds.append(bind(program, arrays, backend=backend, comm=mesh or world, gradients=gradients))
    bounds[0].startup()
    return bounds[0]


def read(bound):
    """What lives from step to step, and the norm."""
    vars = bound.program.vars.values()
    names = [var.name for var in vars if (var.persistable or var.name == "grad_norm") and var.shape != UNKNOWN]
    return {name: bound.read(name) for name in names if name in bound.arrays}


def history(programs, steps=2, backend="cpu", odd=(), **options):
    """For each rank: what it has after startup, and after each step."""

    def rank(world):
        bound = bound_on(programs[world.rank if world else 0], world, backend, odd)
        states = [read(bound)]
        for _ in range(steps):
            bound.step()
            states.append(read(bound))
        return states

    return on_ranks(len(programs), rank, **options)


def bits(state):
    return {name: x.tobytes() for name, x in state.items()}


# The laws.


def same_bits(program, programs, rule="paddle", steps=2, backend="cpu", odd=(), base=None):
    """Every rank has, after startup and each step, what it has without shards, of what it is to have (N11).

    That is: parameters or copies of all, and what only the owner of a parameter has.
    """
    for each in programs:
        each.check()
    base = base or history([program] * len(programs), steps, odd=odd)
    assert all(bits(one) == bits(base[0][k]) for other in base[1:] for k, one in enumerate(other)), "ranks differ"
    got = history(programs, steps, backend, odd)
    owners = owners_of(program, rule)
    halves = halves_of(programs[0])
    for rank, states in enumerate(got):
        for k, state in enumerate(states):
            expected = {}
            for name, x in base[0][k].items():
                expected |= rank_has(name, x, rank, owners, halves)
            assert state.keys() == expected.keys(), f"rank {rank} has {sorted(state.keys() ^ expected.keys())}, or not"
            here, there = bits(state), bits(expected)
            different = [name for name in there if here[name] != there[name]]
            assert not different, f"N11: rank {rank}, step {k}: {different} differ"


def halves_of(program):
    """Parameters of which copies are kept."""
    kept = {name for name, var in program.vars.items() if var.persistable}
    return {name for name in program.vars if copy_of(name) in kept}


def rank_has(name, x, rank, owners, halves):
    """What a rank has of a variable: all, a copy, both or nothing."""
    about = next((p for p in sorted(owners, key=len, reverse=True) if name == p or name.startswith(f"{p}_")), None)
    if about is None:
        return {name: x}
    arrays = {copy_of(name): x.astype(np.float16)} if name in halves else {}
    if owners[about] == rank or (name == about and name not in halves):
        arrays[name] = x
    return arrays


def skipped(programs, step, **options):
    """A step with an inf on one rank alone changes nothing on any, but the loss scale."""
    for states in history(programs, step + 1, **options):
        before, after = (bits(states[k]) for k in (step, step + 1))
        changed = {name for name in before if before[name] != after[name]} - {"grad_norm"}
        assert changed <= {"loss_scaling", "good_steps", "bad_steps"}, f"skipped, and yet {sorted(changed)} change"
        if step:
            assert bits(states[0]) != before, "nothing changes in the steps before either"
        assert states[step + 1]["loss_scaling"] == states[step]["loss_scaling"] / 2, "the loss scale stays"


# Hypothesis.


@st.composite
def steps(draw, ranks=8, max_tensors=5, optimizers=("adam", "momentum", "sgd", "lamb", "lars_momentum")):
    """Steps of a few tensors, some of which stay fp32 or have no elements."""
    names = draw(st.lists(st.sampled_from(["a.w", "a.b", "b.w", "c", "d", "e.f"]), min_size=1, max_size=max_tensors,
                          unique=True))
    return step(
        [(name, draw(shapes())) for name in names], draw(st.sampled_from(optimizers)),
        world_size=draw(st.integers(2, ranks)), accumulate=draw(st.integers(1, 3)), recompute=draw(st.booleans()),
        fp32=[name for name in names if draw(st.integers(0, 3)) == 0],
        max_norm=draw(st.sampled_from([None, 0.5, 100.0])))
