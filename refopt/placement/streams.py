"""Runs a schedule on streams and events of the executor, which finds races between them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

from refopt.placement.kinds import Message
from refopt.placement.schedule import Schedule, Task, received, sent
from refopt.program import Bound, bind, runners
from refopt.program.backends import Gpu
from refopt.program.bound import Gradients
from refopt.program.update import Runner
from refopt.simt import streams
from refopt.simt.arrays import Copy, DeviceArray
from refopt.simt.state import current

ISSUES = "program", "random"


def run_schedule(
    plan: Schedule, arrays: Mapping[str, Any], *, comm: Any = None, gradients: Gradients = None, steps: int = 1,
    issue: str = "program", seed: int = 0, **numbers: Any,
) -> Bound:  # fmt: skip
    """Bind the program of a schedule, run its startup, and some steps on the schedule's streams.

    Each stream is one of the executor's. A task is enqueued on its stream, after the stream has waited for the events
    of the tasks that it waits for. Under `refopt.simt.observe` with ``watch=True``, two tasks that meet in memory
    without an order are a `refopt.simt.DataRace`. Communication is work of its stream, too. A ``backward`` op, whose
    gradients come from outside, reads its parameters.

    Args:
        plan: the schedule.
        arrays: by name, arrays of the executor, as for `refopt.program.bind`.
        comm: a communicator of `refopt.comm.local`, if the program has collectives or messages.
        gradients: as for `bind`; arrays of the executor, ready when a step begins, and the same ones in every step: a
            new array, or one of NumPy's, has work done on the default stream, which everything else waits for.
        steps: how many.
        issue: the order in which tasks are enqueued: that of the ``"program"``, or any other that streams and events
            allow, ``"random"``, another one in each step. With all waits in place it changes no bit.
        seed: of the random order.
        numbers: as for `Bound.step`, in the first step.

    Returns:
        The bound program, whose arrays are complete.

    Raises:
        ValueError, TypeError: as `bind` does, or naming the argument.
        RuntimeError: if the arrays are not on the executor.
    """
    if issue not in ISSUES:
        raise ValueError(f"run_schedule: issue: expected {' or '.join(ISSUES)}, got {issue!r}")
    if not isinstance(steps, int) or isinstance(steps, bool) or steps < 0:
        raise ValueError(f"run_schedule: steps: expected an integer of at least 0, got {steps!r}")
    bound = bind(plan.program, arrays, backend="gpu", comm=comm, gradients=gradients)
    if not isinstance(bound.backend, Gpu) or bound.backend.machine.name != "executor":
        raise RuntimeError("run_schedule: arrays: expected arrays of the executor, got those of a GPU")
    bound.startup()
    run = _Run(plan, bound)
    bound._set(numbers, [*run.runners.values()])
    if comm is not None:
        comm.barrier()  # what a rank does on the default stream as it starts orders the streams of all
    for k in range(steps):
        run.step(list(plan.tasks) if issue == "program" else plan.order(seed + k))
        bound.steps += 1
    streams.synchronize()
    return bound


class _Run:
    """A schedule, bound: streams, staging memory, and the runner of each op for its stream."""

    def __init__(self, plan: Schedule, bound: Bound) -> None:
        self._plan, self._bound = plan, bound
        self._streams = {name: streams.stream() for name in plan.streams}
        self._networks = {name: _Network(bound.comm, stream) for name, stream in self._streams.items()}
        self._staging: dict[str, Any] = {}
        self._messages: dict[int, list[Message]] = {}
        self.runners: dict[int, Runner] = {}
        backends = {name: Gpu(bound.arrays.values(), stream) for name, stream in self._streams.items()}
        for task in plan.tasks:
            if task.kind == "run":
                view = _OnStream(bound, backends[task.stream], self._networks[task.stream])
                self.runners[task.number] = runners.bind(cast(Bound, view), plan.program.main[task.op])
            elif task.kind in ("copy_out", "copy_in"):
                (name,) = task.names
                var = plan.program.vars[name]
                staged = sent(name) if task.kind == "copy_out" else received(name)
                self._staging[staged] = bound.backend.full(var.shape, var.dtype, 0.0)
        waiting: list[Message] = []
        for i, op in enumerate(plan.program.main):
            if op.type == "send":
                waiting.append(("send", self._staging[sent(op.reads[0])], op.attrs["to"]))
            elif op.type == "recv":
                waiting.append(("recv", self._staging[received(op.writes[0])], op.attrs["source"]))
            self._messages[i] = waiting
            if op.type.endswith("_barrier"):
                waiting = []

    def step(self, tasks: Sequence[Task]) -> None:
        """One step, its tasks enqueued in this order."""
        events = {number: streams.event(timing=False) for number in self._plan.events}
        for task in tasks:
            stream = self._streams[task.stream]
            for number in task.waits:
                events[number].wait(stream)
            self._enqueue(task, stream)
            if task.number in events:
                events[task.number].record(stream)

    def _enqueue(self, task: Task, stream: streams.Stream) -> None:
        if task.kind == "run":
            op = self._plan.program.main[task.op]
            if op.type == "backward":  # who makes the gradient has read the parameters
                self._networks[task.stream].report("backward", [self._bound.arrays[x] for x in op.inputs["params"]], [])
            self.runners[task.number].run()
        elif task.kind == "exchange":
            self._networks[task.stream].exchange(self._messages[task.op])
        elif task.kind == "copy_out":
            (name,) = task.names
            self._staging[sent(name)].copy_to_device(self._bound.arrays[name], stream)
        elif task.kind == "copy_in":
            (name,) = task.names
            self._bound.arrays[name].copy_to_device(self._staging[received(name)], stream)


class _OnStream:
    """A bound program as its ops see it that are bound to one stream."""

    def __init__(self, bound: Bound, backend: Gpu, comm: _Network) -> None:
        self.program, self.arrays, self.rows = bound.program, bound.arrays, bound.rows
        self.gradient, self.read, self.put = bound.gradient, bound.read, bound.put
        self.backend, self.comm = backend, comm


class _Network:
    """Calls of a local communicator as work of a stream, so that they are ordered as the stream is."""

    def __init__(self, comm: Any, stream: streams.Stream) -> None:
        self._comm, self._stream = comm, stream

    def all_reduce(self, array: DeviceArray) -> None:
        self.report("all_reduce", [array], [array])
        self._comm.all_reduce(array.data)

    def reduce(self, array: DeviceArray, root: int) -> None:
        self.report("reduce", [array], [array] if self._comm.rank == root else [])
        self._comm.reduce(array.data, root)

    def broadcast(self, array: DeviceArray, root: int) -> None:
        ours = self._comm.rank == root
        self.report("broadcast", [array] if ours else [], [] if ours else [array])
        self._comm.broadcast(array.data, root)

    def exchange(self, messages: Sequence[Message]) -> None:
        """All messages at once."""
        ends: dict[str, list[DeviceArray]] = {"send": [], "recv": []}
        for kind, array, _ in messages:
            ends[kind].append(array)
        self.report("exchange", ends["send"], ends["recv"])
        with self._comm.batch():
            for kind, array, peer in messages:
                getattr(self._comm, kind)(array.data, peer)
        self._comm.barrier()

    def report(self, name: str, sources: Sequence[DeviceArray], targets: Sequence[DeviceArray]) -> None:
        """Tell the executor what memory the stream is about to work on."""
        operation = self._stream.enqueue(name)
        for source, target in [(source, None) for source in sources] + [(None, target) for target in targets]:
            if current.observer is not None:
                array = source if source is not None else target
                assert array is not None
                names = [end.name if end is not None else None for end in (source, target)]
                copy = Copy(name, array.nbytes, names[0], names[1], self._stream)
                current.observer.copy(copy, operation, source, target)
