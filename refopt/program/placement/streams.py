"""Runs a schedule on streams and events of the executor, which finds races between them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from refopt.checks.arguments import chosen, mapped, whole
from refopt.program.backends import backend_of
from refopt.program.bound import Bound
from refopt.program.gpu.backend import Gpu
from refopt.program.ops.context import Gradients
from refopt.program.placement.bound import bind_schedule
from refopt.program.placement.schedule import Schedule
from refopt.simt import cuda

ISSUES = "program", "random"


def run_schedule(
    plan: Schedule, arrays: Mapping[str, Any], *, comm: Any = None, gradients: Gradients = None, steps: int = 1,
    issue: str = "program", seed: int = 0, **numbers: Any,
) -> Bound:
    """Bind a schedule to arrays of the executor, and run some steps.

    All streams are the executor's, the caller's included. A task is enqueued on its stream after the stream has waited
    for the events that the task needs. Under `refopt.simt.observe` with ``watch=True``, two unordered tasks
    that conflict in memory raise `refopt.simt.DataRace`. Communication is also work of its stream. A
    ``backward`` op, whose gradients come from the caller, reads its parameters.

    Args:
        arrays: by name, arrays of the executor, as for `refopt.program.bind`.
        comm: a communicator of `refopt.comm.local`, if the program has collectives or messages.
        gradients: as for `bind`; arrays of the executor, ready when a step begins, and the same ones in every step: a
            new array, or a NumPy array, needs work on the default stream, for which everything else waits.
        steps: how many.
        issue: the order in which tasks are enqueued: that of the ``"program"``, or ``"random"``, in each step another
            one that streams and events allow. With all waits in place it does not affect the result.
        seed: of the random order.
        numbers: as for `Bound.step`, in the first step.

    Returns:
        The bound program, whose arrays are complete.

    Raises:
        ValueError, TypeError: as `bind` does, or naming the argument.
        RuntimeError: if the arrays are not on the executor.
    """
    chosen("run_schedule: issue", issue, ISSUES)
    steps, seed = whole("run_schedule: steps", steps, 0), whole("run_schedule: seed", seed)
    arrays = mapped("run_schedule: arrays", arrays)
    backend = backend_of("gpu", arrays, 0)
    if not isinstance(backend, Gpu) or backend.machine.name != "executor":
        raise RuntimeError("run_schedule: arrays: expected arrays of the executor, got those of a GPU")
    # Not the default stream: the executor knows that all others wait for it.
    scheduled = bind_schedule(plan, arrays, comm=comm, gradients=gradients, stream=cuda.stream())
    scheduled.set(**numbers)
    for k in range(steps):
        scheduled.step_in(plan.tasks if issue == "program" else plan.order(seed + k))
    cuda.synchronize()
    return scheduled.bound
