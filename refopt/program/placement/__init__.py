"""Where parameters are updated, on which streams of a device, and what that costs.

    >>> from refopt.program import placement
    >>> from refopt.program import step_program
    >>> program = step_program([("fc.weight", (4, 3)), ("fc.bias", (4,))], "adam", lr=0.1)
    >>> made = placement.reduce(program, 2).program
    >>> made.counts()
    {'backward': 2, 'reduce': 2, 'scale': 2, 'adam': 2, 'broadcast': 2}
    >>> placement.owners(made)
    {'fc.bias': 0, 'fc.weight': 1}

`reduce`, `all_reduce` and `send_to_owners` are passes from the step of one device to that of several, in one program
whose ops have devices; `on_device` gives a rank's part, which it binds. `offload` leaves states in the memory of the
host. `on_streams` puts a rank's step on streams, and `bind_schedule` runs it so, on CUDA streams or on those of the
executor, where `run_schedule` looks for races. `cost` says how long things take, and `timeline` shows when.
"""

from refopt.program.placement import cost, timeline
from refopt.program.placement.balance import Balancer, sizes_of
from refopt.program.placement.blocks import Block, concat, slice_variable, split_by_ref
from refopt.program.placement.bound import BoundSchedule, bind_schedule
from refopt.program.placement.hosted import offload
from refopt.program.placement.schedule import Schedule, Task, on_streams
from refopt.program.placement.send import send_to_owners
from refopt.program.placement.strategies import all_reduce, broadcast_params, on_device, owners, reduce
from refopt.program.placement.streams import run_schedule
from refopt.program.placement.timeline import Overlap, Span, overlap, simulate, task_cost

__all__ = [
    "Balancer", "Block", "BoundSchedule", "Overlap", "Schedule", "Span", "Task", "all_reduce", "bind_schedule",
    "broadcast_params", "concat", "cost", "offload", "on_device", "on_streams", "overlap", "owners", "reduce",
    "run_schedule", "send_to_owners", "simulate", "sizes_of", "slice_variable", "split_by_ref", "task_cost", "timeline",
]  # fmt: skip
