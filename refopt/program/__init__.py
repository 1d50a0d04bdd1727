"""A training step as a list of ops: written down, looked at, rewritten by `refopt.program.passes`, and run.

    >>> from refopt.program import step_program
    >>> program = step_program([("fc.weight", (4, 3)), ("fc.bias", (4,))], "adam", lr=0.1, world_size=2)
    >>> program.counts()
    {'backward': 2, 'all_reduce': 2, 'scale': 2, 'adam': 2}

`bind` puts arrays and ranks behind the names; `Bound.startup` runs what is done once, `Bound.step` a step.
"""

from refopt.program.bound import Bound, bind, run
from refopt.program.build import CONFIGS, Config, step_program
from refopt.program.ops import ROLES, UNKNOWN, Op, Var
from refopt.program.program import Program, side_by_side

__all__ = [
    "CONFIGS", "ROLES", "UNKNOWN", "Bound", "Config", "Op", "Program", "Var", "bind", "run", "side_by_side",
    "step_program",
]  # fmt: skip
