"""How many ops, casts, collectives and bytes a step has, as formulae, and what each rank keeps.

::

    steps     a step before and after `passes.fuse_all_reduce`, `passes.fuse_optimizer` and `passes.fold_averages`
    mixed     one in mixed precision, with the cast in the optimizer's stage, and sharded
    bucketed  a sharded one with fused collectives

They depend only on the numbers of tensors; tests, benchmarks and notebooks compare the passes with them.
"""

from refopt.program.counts.bucketed import batches, bucketed_collectives, bucketed_step, buckets
from refopt.program.counts.mixed import (
    casts,
    collectives,
    kept,
    memory,
    mixed_step,
    param_casts,
    saved,
    startup,
    total,
)
from refopt.program.counts.steps import coalesce_ops, fused_step, step

__all__ = [
    "batches", "bucketed_collectives", "bucketed_step", "buckets", "casts", "coalesce_ops", "collectives", "fused_step",
    "kept", "memory", "mixed_step", "param_casts", "saved", "startup", "step", "total",
]
