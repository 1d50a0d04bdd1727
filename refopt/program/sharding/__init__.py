"""Optimizer sharding, and the cast of parameters in the optimizer's stage (PR 35878).

A step in mixed precision that casts each fp32 parameter to fp16 in every micro-step becomes one that casts it once,
after its update; and a step that updates every parameter on every rank becomes one where each has an owner, which
alone has its state, its fp32 values and its cast, and sends the others fp16.

    >>> from refopt.program import sharding
    >>> from refopt.program.passes import pipeline
    >>> params = [("fc1.w", (64, 32)), ("fc1.b", (64,)), ("fc2.w", (32, 64)), ("fc2.b", (32,))]
    >>> program = sharding.amp_program(params, "adam", lr=0.1, world_size=4, accumulate=8)
    >>> sharding.counts.param_casts(program)
    32
    >>> sharding.counts.param_casts(sharding.optimize_cast(program).program)
    4
    >>> made = sharding.shard(program, 1, 4, rule="greedy").program
    >>> sharding.counts.param_casts(sharding.optimize_cast(made).program)
    1
    >>> sharding.counts.param_casts(sharding.fold_casts(sharding.optimize_cast(made).program).program)
    0

Passes are those of `refopt.program.passes`: functions from a program to a `refopt.program.passes.Result`.
"""

from refopt.program.sharding import bucket_counts, counts
from refopt.program.sharding.batches import batch_owners
from refopt.program.sharding.broadcasts import fuse_broadcasts
from refopt.program.sharding.build import amp_program, gradient_of
from refopt.program.sharding.cast import optimize_cast
from refopt.program.sharding.eligible import Eligible, copy_of, eligible, recomputed_copy_of
from refopt.program.sharding.fold import fold_casts
from refopt.program.sharding.partition import partition
from refopt.program.sharding.reduces import fuse_reduces
from refopt.program.sharding.shard import shard

__all__ = [
    "Eligible", "amp_program", "batch_owners", "bucket_counts", "copy_of", "counts", "eligible", "fold_casts",
    "fuse_broadcasts", "fuse_reduces", "gradient_of", "optimize_cast", "partition", "recomputed_copy_of", "shard",
]  # fmt: skip
