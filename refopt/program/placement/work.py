"""The work that each task of a schedule enqueues on its stream, between its waits and its event."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, cast

from refopt.program import ops
from refopt.program.bound import Bound
from refopt.program.gpu.backend import Gpu
from refopt.program.model import Op
from refopt.program.ops.offload import COPIES
from refopt.program.ops.runner import Runner, Runners, each
from refopt.program.placement.hosted import Ends
from refopt.program.placement.lanes import Lane
from refopt.program.placement.network import Message
from refopt.program.placement.schedule import Schedule, Task, received, sent

Call = Callable[[], Any]


class Work:
    """The tasks of a schedule, bound to arrays and streams.

    Attributes:
        calls: by number of a task, the call that enqueues its work; ``None`` if there is none.
        runners: the ops that take numbers or gradients in a step.
    """

    def __init__(self, plan: Schedule, bound: Bound, lanes: Mapping[str, Lane], blocks: Mapping[int, Ends]) -> None:
        self._main, self._arrays, self._blocks = plan.program.main, bound.arrays, blocks
        self._machine = cast(Gpu, bound.backend).machine
        self._staging = _staging(plan, bound)
        self._messages = _messages(plan, self._staging)
        stepped: list[Runner] = []
        self.calls = [self._call(task, lanes[task.stream], stepped) for task in plan.tasks]
        self.runners = Runners(stepped)

    def _call(self, task: Task, lane: Lane, stepped: list[Runner]) -> Call | None:
        if task.kind == "run":
            return self._op(task, lane, stepped)
        if task.kind == "exchange":
            return lane.network.exchange(self._messages[task.op])
        if task.kind in COPIES:
            ends = [self._arrays[task.names[0]], self._staging[_place(task)]]
            return partial(self._machine.copier(*(ends if task.kind == "copy_out" else ends[::-1])), lane.stream)
        return None

    def _op(self, task: Task, lane: Lane, stepped: list[Runner]) -> Call | None:
        if task.op in self._blocks:
            return partial(self._machine.copier(*self._blocks[task.op]), lane.stream)
        op, context = self._main[task.op], lane.context
        runner = ops.bind(context, op)
        stepped += [runner] if runner.numbers or runner.provided else []
        return self._provided(op, runner, lane) if runner.provided else runner.run

    def _provided(self, op: Op, runner: Runner, lane: Lane) -> Call | None:
        """Report that the caller has read the parameters; then copy the gradients, unless they are in place."""
        calls = [lane.network.reading(op.type, [self._arrays[name] for name in op.inputs["params"]])]
        calls += [runner.run] if lane.context.gradients is not None else []
        there = [call for call in calls if call is not None]
        return each(there) if there else None


def _place(task: Task) -> str:
    """The staging memory that a copy writes or reads."""
    return sent(task.names[0]) if task.kind == "copy_out" else received(task.names[0])


def _staging(plan: Schedule, bound: Bound) -> dict[str, Any]:
    """Device memory from which variables are sent and in which they are received."""
    vars, copies = plan.program.vars, [task for task in plan.tasks if task.kind in COPIES]
    about = {_place(task): vars[task.names[0]] for task in copies}
    return {place: bound.backend.full(var.shape, var.dtype, 0.0) for place, var in about.items()}


def _messages(plan: Schedule, staging: Mapping[str, Any]) -> dict[int, list[Message]]:
    """By index of a barrier in ``main``, the messages that it exchanges."""
    messages: dict[int, list[Message]] = {}
    waiting: list[Message] = []
    for i, op in enumerate(plan.program.main):
        if op.type == "send":
            waiting.append(("send", staging[sent(op.reads[0])], op.attrs["to"]))
        elif op.type == "recv":
            waiting.append(("recv", staging[received(op.writes[0])], op.attrs["source"]))
        elif op.type.endswith("_barrier"):
            messages[i], waiting = waiting, []
    return messages
