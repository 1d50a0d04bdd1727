"""A training step as a list of ops, to inspect, to rewrite by `refopt.program.passes`, and to run.

    >>> from refopt.program import step_program
    >>> program = step_program([("fc.weight", (4, 3)), ("fc.bias", (4,))], "adam", lr=0.1, world_size=2)
    >>> program.counts()
    {'backward': 2, 'all_reduce': 2, 'scale': 2, 'adam': 2}

===============  =======================================================================================================
``model``        the parts of a program: `Var`, `Op`; ``graph`` and ``program`` combine them: `Program`
``step``         programs to start from: `step_program`; ``mixed_precision``: `amp_program`
``ops``          the types of ops, one file per family: slots, checks, runners; ``gpu`` has those for devices
``passes``       rewrites, from a program to a program; ``counts``: what a program casts, sends and keeps
``bound``        arrays and ranks behind the names: `bind` makes a `Bound`, which runs `startup` once, and then `step`
``placement``    streams of a device: schedules, and when their tasks run
===============  =======================================================================================================

A wrong argument raises a TypeError or a ValueError that names it, before anything is done.
"""

from refopt.program.bound import Bound, bind, run
from refopt.program.mixed_precision import amp_program, gradient_of
from refopt.program.model import ROLES, UNKNOWN, Op, Var
from refopt.program.parameter import CONFIGS, Config
from refopt.program.program import Program, side_by_side
from refopt.program.step import step_program

__all__ = [
    "CONFIGS", "ROLES", "UNKNOWN", "Bound", "Config", "Op", "Program", "Var", "amp_program", "bind", "gradient_of",
    "run", "side_by_side", "step_program",
]
