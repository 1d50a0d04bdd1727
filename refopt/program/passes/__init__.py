"""Rewrites of a training step: functions from a program to a program, which run nothing.

    >>> from refopt.program import passes
    >>> from refopt.program import step_program
    >>> program = step_program([("fc.weight", (4, 3)), ("fc.bias", (4,))], "adam", lr=0.1, world_size=2)
    >>> report = passes.pipeline(program, passes.coalesce_gradients, passes.fuse_all_reduce, passes.fuse_optimizer)
    >>> report.program.counts()
    {'backward': 2, 'all_reduce': 1, 'scale': 1, 'adam': 1}

A pass does not modify its input, does nothing the second time, and changes no bit of what a step computes (numerics,
N11), except `narrow_sums`, `local_steps`, `update_rows`, and `fold_averages` if told that it may. It returns a
`Result`, with reasons for whatever it declined.

=======================  ===============================================================================================
fewer ops                `coalesce_gradients` by a rule of `grouping`, `fuse_all_reduce`, `fuse_optimizer`,
                         `fold_averages`
fewer bytes              `narrow_sums`: gradients are summed in 16 bits; `local_steps`: they are not summed, and the
                         parameters averaged every k steps; `update_rows`: of a table, only rows with a gradient
casts                    `optimize_cast`: once per step, after the update, of what `eligible` finds (PR 35878);
                         `fold_casts`: by the update itself
an owner each            `shard`: a rank's part of a step, by `partition`; then `fuse_reduces`, `fuse_broadcasts` and
                         `batch_owners`
parts of elements        `shard_elements`: a rank's part of each buffer
a mesh of ranks          `over_axes`: sums along one axis after the other; `check_over`: checks over ranks with other
                         parameters
several devices          `reduce_to_owners`, `all_reduce_gradients`, `send_to_owners`: from the step of one device to
                         that of several, by a `Balancer`; `on_device` gives a rank's part, which it binds
memory of the host       `offload`: states are copied to the device for their update
=======================  ===============================================================================================

Passes may be applied in any order; each leaves what it cannot change, and says why. `preset` has the orders that
optimize a step best:

    >>> report = passes.pipeline(program, *passes.preset("sharded", rank=0, ranks=2))
    >>> report.program.counts()
    {'backward': 2, 'batch': 2, 'scale': 1, 'adam': 1}

A step in mixed precision that casts each parameter to fp16 in every micro-step becomes one that casts it once, and with
sharding only its owner does:

    >>> from refopt.program import amp_program, counts
    >>> params = [("fc1.w", (64, 32)), ("fc1.b", (64,)), ("fc2.w", (32, 64)), ("fc2.b", (32,))]
    >>> program = amp_program(params, "adam", lr=0.1, world_size=4, accumulate=8)
    >>> one = passes.shard(program, 1, 4, rule="greedy").program
    >>> cast = passes.optimize_cast(one).program
    >>> [counts.param_casts(x) for x in (program, passes.optimize_cast(program).program, cast)]
    [32, 4, 1]
    >>> counts.param_casts(passes.fold_casts(cast).program)
    0
"""

from refopt.program.passes import grouping
from refopt.program.passes.averages import fold_averages
from refopt.program.passes.balance import Balancer, sizes_of
from refopt.program.passes.batches import batch_owners
from refopt.program.passes.cast import optimize_cast
from refopt.program.passes.coalesce import coalesce_gradients
from refopt.program.passes.collectives import fuse_all_reduce, fuse_broadcasts, fuse_reduces
from refopt.program.passes.elements import shard_elements
from refopt.program.passes.eligibility import Eligible, eligible
from refopt.program.passes.fold import fold_casts
from refopt.program.passes.local import local_steps
from refopt.program.passes.mesh import check_over, over_axes
from refopt.program.passes.narrow import narrow_sums
from refopt.program.passes.offloading import offload
from refopt.program.passes.optimizer import fuse_optimizer
from refopt.program.passes.place import all_reduce_gradients, on_device, owners, reduce_to_owners
from refopt.program.passes.presets import preset
from refopt.program.passes.result import Report, Result, pipeline
from refopt.program.passes.rows import update_rows
from refopt.program.passes.server import send_to_owners
from refopt.program.passes.sharding import shard
from refopt.program.passes.shares import partition

__all__ = [
    "Balancer", "Eligible", "Report", "Result", "all_reduce_gradients", "batch_owners", "check_over",
    "coalesce_gradients", "eligible", "fold_averages", "fold_casts", "fuse_all_reduce", "fuse_broadcasts",
    "fuse_optimizer", "fuse_reduces", "grouping", "local_steps", "narrow_sums", "offload", "on_device", "optimize_cast",
    "over_axes", "owners", "partition", "pipeline", "preset", "reduce_to_owners", "send_to_owners", "shard",
    "shard_elements", "sizes_of", "update_rows",
]
