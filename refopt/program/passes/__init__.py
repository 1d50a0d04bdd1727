"""Rewrites of a training step: functions from a program to a program, which run nothing.

    >>> from refopt.program import passes
    >>> from refopt.program import step_program
    >>> program = step_program([("fc.weight", (4, 3)), ("fc.bias", (4,))], "adam", lr=0.1, world_size=2)
    >>> made = passes.pipeline(program, passes.coalesce_gradients, passes.fuse_all_reduce, passes.fuse_optimizer)
    >>> made.program.counts()
    {'backward': 2, 'all_reduce': 1, 'scale': 1, 'adam': 1}

A pass leaves its input alone, does nothing the second time, changes no bit of what a step computes (numerics, N11)
unless `fold_averages` is told that it may, and gives back a `Result`, which says why something was declined.
"""

from refopt.program.passes import counts, grouping
from refopt.program.passes.all_reduce import fuse_all_reduce
from refopt.program.passes.averages import fold_averages
from refopt.program.passes.coalesce import coalesce_gradients
from refopt.program.passes.optimizer import fuse_optimizer
from refopt.program.passes.result import Report, Result, pipeline

__all__ = [
    "Report", "Result", "coalesce_gradients", "counts", "fold_averages", "fuse_all_reduce", "fuse_optimizer",
    "grouping", "pipeline",
]  # fmt: skip
