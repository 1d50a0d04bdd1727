"""Placing a step on streams of a device.

    >>> from refopt.program import passes, placement, step_program
    >>> program = step_program([("fc.weight", (4, 3)), ("fc.bias", (4,))], "adam", lr=0.1)
    >>> print(placement.on_streams(passes.on_device(passes.reduce_to_owners(program, 2).program, 0)))
        0  compute        begin
        1  compute        backward fc.bias@GRAD
        2  communication  reduce fc.bias@GRAD  waits for 1
        3  communication  scale fc.bias@GRAD
        4  compute        backward fc.weight@GRAD
        5  communication  reduce fc.weight@GRAD  waits for 4
        6  compute        adam fc.bias  waits for 3
        7  communication  broadcast fc.bias  waits for 6
        8  communication  broadcast fc.weight
        9  compute        end  waits for 8

`on_streams` assigns a rank's step to streams, and `bind_schedule` runs it on CUDA streams or on those of the
executor, where `run_schedule` looks for races. `BoundSchedule.spans` says when its tasks ran.
"""

from refopt.program.placement.bound import BoundSchedule, bind_schedule
from refopt.program.placement.broadcast import broadcast_params
from refopt.program.placement.marks import Span
from refopt.program.placement.schedule import Schedule, Task, on_streams
from refopt.program.placement.streams import run_schedule

__all__ = [
    "BoundSchedule", "Schedule", "Span", "Task", "bind_schedule", "broadcast_params", "on_streams", "run_schedule",
]
