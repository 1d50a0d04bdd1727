"""Programs of thousands of parameters: what is done with them takes time that grows as their number does."""

import gc
import time
from contextlib import contextmanager
from functools import lru_cache, partial

import numpy as np
import pytest

from refopt.program import amp_program, bind, passes, placement, step_program
from refopt.program.ops.collectives import sequence
from refopt.program.passes import grouping

FEW, TIMES = 250, 8


def params_of(count):
    """Shapes that come again and shapes that do not; the tensors of a layer are far apart."""
    return [(f"l{k % (count // 2)}.w{k}", (2, k % 97 + 1)) for k in range(count)]


MAKE = {
    "plain": lambda count, ranks=2: step_program(params_of(count), "adam", lr=0.5, world_size=ranks),
    "sparse": lambda count: step_program(params_of(count), "sgd", lr=0.5, sparse=[x for x, _ in params_of(count)]),
    "coalesced": lambda count: passes.coalesce_gradients(made("plain", count)).program,
    "in pairs": lambda count: passes.coalesce_gradients(
        step_program(params_of(count), "adam", lr=0.5, world_size=2, early=True), "by_count", count=2).program,
    "merged": lambda count, ranks=1: passes.fuse_optimizer(made("plain", count, ranks), form="merged").program,
    "flat": lambda count: passes.fuse_optimizer(made("plain", count, 1), form="flat").program,
    "mixed": lambda count: amp_program(params_of(count), "adam", lr=0.5, world_size=2, recompute=True, max_norm=1.0),
    "sharded": lambda count: passes.optimize_cast(passes.shard(made("mixed", count), 0, 2).program).program,
    "batched": lambda count: passes.batch_owners(made("sharded", count)).program,
    "placed": lambda count: passes.on_device(passes.reduce_to_owners(made("plain", count, 1), 2).program, 0),
    "sent": lambda count: passes.send_to_owners(made("plain", count, 1), 2, min_block_size=2).program,
    "received": lambda count: passes.on_device(made("sent", count), 0),
    "scheduled": lambda count: placement.on_streams(made("placed", count))}


@lru_cache
def made(name, count, *ranks):
    return MAKE[name](count, *ranks)


def arrays_of(count):
    return {name: np.ones(shape, np.float32) for name, shape in params_of(count)}


def started(program, count):
    bound = bind(program, arrays_of(count))
    bound.startup()
    return bound


def of(name, apply, *ranks):
    """What is done with a program, which is made before, as a function of the number of parameters."""

    def prepared(count):
        program = made(name, count, *ranks)
        return lambda: apply(program.replace() if hasattr(program, "replace") else program)  # nothing is kept

    return prepared


def rebinding(count):
    bound = started(made("plain", count, 1), count)
    return lambda: bound.rebind(arrays_of(count))


def grouped(rule, **flags):
    return lambda count: lambda: rule(
        [name for name, _ in params_of(count)], [shape for _, shape in params_of(count)], ["float32"] * count, **flags)


WORK = {
    "step_program": lambda count: lambda: MAKE["plain"](count), "check": of("plain", lambda program: program.check()),
    "check merged": of("merged", lambda program: program.check()),
    "check flat": of("flat", lambda program: program.check()),
    "check batched": of("batched", lambda program: program.check()),
    "check sent": of("sent", lambda program: passes.on_device(program, 0).check()),
    "grouping.early": grouped(grouping.early, memory_size=10**6),
    "grouping.later": grouped(grouping.later, memory_size=1000.0),
    "grouping.fuse_size": grouped(grouping.fuse_size, limit=1000.0),
    "grouping.ddp": grouped(grouping.ddp, bucket_cap_mb=1000.0, first_bucket_mb=1000.0),
    "coalesce_gradients": of("plain", passes.coalesce_gradients),
    "fuse_all_reduce": of("coalesced", passes.fuse_all_reduce),
    "update_rows": of("sparse", passes.update_rows), "local_steps": of("plain", partial(passes.local_steps, every=2)),
    "narrow_sums": of("coalesced", passes.narrow_sums),
    "fuse_optimizer flat": of("plain", partial(passes.fuse_optimizer, form="flat")),
    "fuse_optimizer flat, in pairs": of("in pairs", partial(passes.fuse_optimizer, form="flat")),
    "fuse_optimizer merged": of("coalesced", partial(passes.fuse_optimizer, form="merged")),
    "fuse_optimizer merged, in pairs": of("in pairs", partial(passes.fuse_optimizer, form="merged", per_buffer=True)),
    "fold_averages": of("plain", passes.fold_averages), "fold_averages merged": of("merged", passes.fold_averages, 2),
    "amp_program": lambda count: lambda: MAKE["mixed"](count), "optimize_cast": of("mixed", passes.optimize_cast),
    "shard": of("mixed", lambda program: passes.shard(program, 0, 2, order="reduced")),
    "shard_elements": of("plain", lambda program: passes.shard_elements(program, 0, 2)),
    "state_dict": lambda count: started(made("plain", count, 1), count).state_dict,
    "shard greedy": of("mixed", lambda program: passes.shard(program, 0, 2, rule="greedy")),
    "optimize_cast sharded": of("sharded", passes.optimize_cast), "fold_casts": of("sharded", passes.fold_casts),
    "fuse_reduces": of("sharded", partial(passes.fuse_reduces, limit=0.001)),
    "fuse_broadcasts": of("sharded", partial(passes.fuse_broadcasts, limit=0.001)),
    "batch_owners": of("sharded", passes.batch_owners),
    "passes.reduce_to_owners": of("plain", lambda program: passes.reduce_to_owners(program, 2), 1),
    "send_to_owners": of("plain", partial(passes.send_to_owners, devices=2, min_block_size=2), 1),
    "on_device": of("sent", lambda program: passes.on_device(program, 0)),
    "on_streams": of("placed", placement.on_streams), "on_streams sent": of("received", placement.on_streams),
    "order": of("scheduled", lambda plan: plan.order(1)),
    "offload": of("merged", lambda program: passes.offload(program, nbytes=10**6)),
    "sequence": of("coalesced", lambda program: sequence(program, 4096)),
    "listing": of("plain", lambda program: program.listing(fold=True)),
    "bind": lambda count: partial(started, made("plain", count, 1), count),
    "bind flat": lambda count: partial(started, made("flat", count), count), "rebind": rebinding}


@contextmanager
def undisturbed():
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def seconds(work):
    """Of the processor."""
    with undisturbed():
        start = time.process_time()
        work()
        return time.process_time() - start


@pytest.mark.slow  # times
@pytest.mark.parametrize("name", WORK)
def test_growth(name):
    """Eight times the parameters take eight times as long, and not sixty-four."""
    for _ in range(3):  # a busy machine may be slow for a while
        few, many = (seconds(WORK[name](count)) for count in (FEW, TIMES * FEW))
        if many < 1.6 * TIMES * max(few, 1e-3):
            return
    raise AssertionError(f"{name}: {few:.4f} s for {FEW} parameters, {many:.4f} s for {TIMES * FEW}")
