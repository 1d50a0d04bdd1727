"""A schedule with arrays and ranks behind its names, on streams and events that are made once."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, MutableSet, Sequence
from functools import partial
from typing import Any, cast

from refopt.checks.arguments import collected, flag, shown, whole
from refopt.gpu.runtime import Event
from refopt.program import ops
from refopt.program.backends import backend_of
from refopt.program.bound import Bound, check_arguments
from refopt.program.exclusive import Exclusive
from refopt.program.gpu.backend import Gpu
from refopt.program.memory import refuse_shared
from refopt.program.model import mapping
from refopt.program.ops.context import Context, Gradients
from refopt.program.ops.offload import COPIES
from refopt.program.ops.runner import Runner, Runners
from refopt.program.placement import hosted
from refopt.program.placement.network import Message, Network, OnExecutor, OnGpu
from refopt.program.placement.schedule import Schedule, Task, received, sent
from refopt.program.placement.timeline import Span

Call = Callable[[], Any]


class BoundSchedule(Exclusive):
    """A schedule that can be run. Made by `bind_schedule`.

    Threads that call at the same time take turns, so that each step is enqueued as a whole; with a communicator, calls
    are made in the thread that it is of. There are no copies of it; `plan` can be copied.

    The streams are the schedule's own, and nothing but events orders them: among each other, as the schedule says;
    after what the caller's stream has been given before a step; and before what it is given afterwards.

    Attributes:
        bound: its program with its arrays, which are complete where the caller's stream is after a step; `Bound.read`
            waits for them. Steps are taken here alone: `Bound.step` does not know what is carried over from them.
    """

    def __init__(
        self, plan: Schedule, bound: Bound, blocks: Mapping[int, hosted.Ends], timing: bool = False,
        multiprocessors: int | None = None,
    ) -> None:  # fmt: skip
        super().__init__(bound.comm)
        self.plan, self.bound = plan, bound
        bound.hand_over("BoundSchedule")
        backend = cast(Gpu, bound.backend)
        self._machine = machine = backend.machine
        self._caller, self._timing, self._done = backend.stream, timing, False
        most = {"compute": multiprocessors}
        self._owned = {name: machine.new_stream(most.get(name)) for name in plan.streams}
        self._streams = {name: machine.stream(stream) for name, stream in self._owned.items()}
        self._entry = machine.new_event()
        self._entry.record(self._caller)  # what startup has done comes before what ops do as they are bound
        for stream in self._streams.values():
            self._entry.wait(stream)
        network = OnExecutor if machine.name == "executor" else OnGpu
        self._networks: dict[str, Network] = {name: network(bound.comm, x) for name, x in self._streams.items()}
        views = {
            name: bound.on(Gpu(bound.arrays.values(), stream), self._networks[name])
            for name, stream in self._owned.items()
        }
        self._blocks, self._staging = blocks, self._staged()
        self._messages = self._exchanged()
        self._stepped: list[Runner] = []  # those that are given something in a step
        work = [self._work(task, views[task.stream]) for task in plan.tasks]
        self._runners = Runners(self._stepped)
        self._anchors = _anchors(plan, work)
        self._stop, self._start = self._events(timing)
        awaited: dict[str, MutableSet[int]] = {name: set() for name in plan.streams}
        self._calls = [self._enqueued(task, work[task.number], awaited[task.stream]) for task in plan.tasks]
        self._all = [call for calls in self._calls for call in calls]
        machine.synchronize()

    def _events(self, timing: bool) -> tuple[dict[int, Event], dict[int, Event]]:
        """By task, the events that are recorded after it, and before it."""
        marked = {self._anchors[number] for number in (0, -1, *self.plan.events)} | set(self._anchors if timing else ())
        stop = {number: self._machine.new_event(timing) for number in sorted(marked)}
        return stop, {number: self._machine.new_event(True) for number in stop if timing and number}

    def step(self, **numbers: Any) -> None:
        """Enqueue one step, in the order of the program.

        Args:
            numbers: as for `refopt.program.Bound.step`.

        Raises:
            TypeError, ValueError: as for `refopt.program.Bound.step`; nothing has been done then.
        """
        with self._turn("step"):
            self._runners.check_numbers(numbers)
            self.bound.check_gradients(self._runners)
            self._runners.set(numbers)
            for call in self._all:
                call()
            self._finish()

    def step_in(self, order: Iterable[Task]) -> None:
        """Enqueue one step in another order, one of those that `Schedule.order` gives."""
        tasks = collected("step_in: order", order, "tasks")
        for k, task in enumerate(tasks):
            if not isinstance(task, Task):
                raise TypeError(f"step_in: order[{k}]: expected a Task, got {shown(task)}")
        if sorted(task.number for task in tasks) != list(range(len(self._calls))):
            raise ValueError(f"step_in: order: expected each of {len(self._calls)} tasks once, got {len(tasks)} tasks")
        with self._turn("step_in"):
            self.bound.check_gradients(self._runners)
            for task in tasks:
                for call in self._calls[task.number]:
                    call()
            self._finish()

    def set(self, **numbers: Any) -> None:
        """Change numbers of the steps to come, as for `refopt.program.Bound.step`."""
        with self._turn("set"):
            self._runners.check_numbers(numbers)
            self._runners.set(numbers)

    def synchronize(self) -> None:
        """Wait until all that was enqueued is done.

        Raises:
            refopt.comm.CommError: when communication on a GPU is not done in the communicator's time.
        """
        for network in self._networks.values():
            network.synchronize()
        self._machine.synchronize()

    def spans(self) -> list[Span]:
        """When the tasks of the last step started and stopped: seconds from the end of ``begin``, by events.

        A task starts when its stream has come to it, waits included. One that enqueues nothing starts and stops where
        its stream is. The executor does all work at the call that enqueues it, and its events have the time of the
        host, so tasks follow each other there.

        Raises:
            RuntimeError: if the schedule was bound without ``timing``, or there was no step.
        """
        if not self._timing:
            raise RuntimeError("spans: expected bind_schedule(..., timing=True), got a schedule without it")
        if not self._done:
            raise RuntimeError("spans: expected step() before it, got none")
        self.synchronize()
        origin, spans = self._stop[self._anchors[0]], []
        at = {number: origin.elapsed_time(event) * 1e-3 for number, event in self._stop.items()}
        for task in self.plan.tasks:
            stop, start = at[self._anchors[task.number]], self._start.get(task.number)
            spans.append(Span(task, stop if start is None else origin.elapsed_time(start) * 1e-3, stop))
        return spans

    def _finish(self) -> None:
        self.bound.steps += 1
        self._done = True

    def _staged(self) -> dict[str, Any]:
        """Staging memory of messages, on the device."""
        buffers = {}
        for task in self.plan.tasks:
            if task.kind in COPIES:
                (name,), var = task.names, self.plan.program.vars[task.names[0]]
                where = sent(name) if task.kind == "copy_out" else received(name)
                buffers[where] = self.bound.backend.full(var.shape, var.dtype, 0.0)
        return buffers

    def _exchanged(self) -> dict[int, list[Message]]:
        """By place of a barrier in ``main``, the messages that it exchanges."""
        messages: dict[int, list[Message]] = {}
        waiting: list[Message] = []
        for i, op in enumerate(self.plan.program.main):
            if op.type == "send":
                waiting.append(("send", self._staging[sent(op.reads[0])], op.attrs["to"]))
            elif op.type == "recv":
                waiting.append(("recv", self._staging[received(op.writes[0])], op.attrs["source"]))
            elif op.type.endswith("_barrier"):
                messages[i], waiting = waiting, []
        return messages

    def _work(self, task: Task, view: Context) -> Call | None:
        """What a task enqueues between its waits and its event; ``None`` for nothing."""
        stream, arrays = self._streams[task.stream], self.bound.arrays
        if task.kind == "run":
            return self._op(task, view)
        if task.kind == "exchange":
            return cast(Call, view.comm.exchange(self._messages[task.op]))
        if task.kind == "copy_out":
            return partial(self._machine.copier(arrays[task.names[0]], self._staging[sent(task.names[0])]), stream)
        if task.kind == "copy_in":
            return partial(self._machine.copier(self._staging[received(task.names[0])], arrays[task.names[0]]), stream)
        return None

    def _op(self, task: Task, view: Context) -> Call | None:
        op = self.plan.program.main[task.op]
        if task.op in self._blocks:
            return partial(self._machine.copier(*self._blocks[task.op]), self._streams[task.stream])
        runner = ops.bind(view, op)
        self._stepped += [runner] if runner.numbers or runner.provided else []
        if not runner.provided:
            return runner.run
        # Who makes the gradients has read the parameters. If they are in their arrays already, that is all.
        calls = [view.comm.reading(op.type, [view.arrays[name] for name in op.inputs["params"]])]
        calls += [runner.run] if view.gradients is not None else []
        return partial(_each, [call for call in calls if call is not None]) if any(calls) else None

    def _enqueued(self, task: Task, work: Call | None, awaited: MutableSet[int]) -> list[Call]:
        """The calls that enqueue a task and its work; what its stream has waited for is added to."""
        stream, anchor, calls = self._streams[task.stream], self._anchors[task.number], []  # type: Any, int, list[Call]
        if task.kind == "begin":
            calls += [partial(self._entry.record, self._caller), partial(self._entry.wait, stream)]
        for number in dict.fromkeys(self._anchors[number] for number in task.waits):
            if number not in awaited:
                calls.append(partial(self._stop[number].wait, stream))
                awaited.add(number)
        if anchor == task.number:
            calls += [partial(self._start[anchor].record, stream)] if anchor in self._start else []
            calls += [work] if work is not None else []
            calls += [partial(self._stop[anchor].record, stream)] if anchor in self._stop else []
        if task.kind == "end":
            calls.append(partial(self._stop[anchor].wait, self._caller))
        return calls


def _each(calls: Sequence[Call]) -> None:
    for call in calls:
        call()


def _anchors(plan: Schedule, work: Sequence[Call | None]) -> list[int]:
    """By task, the one after which its stream has done it: itself, or one before if it waits for and does nothing."""
    anchors: list[int] = []
    last: dict[str, int] = {}
    for task in plan.tasks:
        idle = work[task.number] is None and not task.waits and task.stream in last
        anchors.append(last[task.stream] if idle else task.number)
        last[task.stream] = anchors[-1]
    return anchors


def bind_schedule(
    plan: Schedule, arrays: Mapping[str, Any], *, comm: Any = None, gradients: Gradients = None, stream: Any = 0,
    timing: bool = False, multiprocessors: int | None = None,
) -> BoundSchedule:  # fmt: skip
    """Bind the program of a schedule, run its startup, and put its tasks on streams.

    On a GPU these are CUDA streams that do not wait for the default stream; on the executor they are the executor's.

    Args:
        arrays: by name, device arrays, as for `bind`. What `refopt.program.passes.offload` has put in the
            host's memory is copied there.
        comm: a communicator, if the program has collectives or messages: on a GPU one of GPUs, whose calls are put on
            the stream ``communication``; on the executor one of the host.
        gradients: as for `refopt.program.bind`; of a mapping or a function, arrays that are ready on the caller's
            stream when a step begins.
        stream: the caller's stream, which steps come after and before; the legacy default stream if not given.
        timing: whether tasks are timed, see `BoundSchedule.spans`. Takes two events a task.
        multiprocessors: how many of the GPU's the ops on ``compute`` may use, rounded up to what can be set apart; all
            if not given. Fewer leave communication more of the memory's bandwidth, which it needs all the time. The
            executor has none, and takes no notice.

    Raises:
        ValueError, TypeError: as `refopt.program.bind` does; or if the communicator is for other arrays.
        refopt.comm.CommError: if the ranks' programs have other collectives.
    """
    if not isinstance(plan, Schedule):
        raise TypeError(f"bind_schedule: plan: expected a Schedule, got {shown(plan)}")
    check_arguments("bind_schedule", plan.program, comm, gradients)
    arrays, timing = mapping("bind_schedule: arrays", arrays), flag("bind_schedule: timing", timing)
    backend = cast(Gpu, backend_of("gpu", arrays, stream))
    on_gpu = backend.machine.name != "executor"
    if comm is not None and hasattr(comm, "stream") != on_gpu:
        where = "GPUs, such as refopt.comm.nccl has, for arrays of a GPU" if on_gpu else "the host, for the executor"
        raise TypeError(f"bind_schedule: comm: expected a communicator of {where}, got {type(comm).__name__}")
    if multiprocessors is not None:
        multiprocessors = whole("bind_schedule: multiprocessors", multiprocessors, 1)
        backend.machine.new_stream(multiprocessors)  # so that too many are refused before anything is done
    offloaded = hosted.arrays_of(plan.program, arrays, backend)
    refuse_shared("bind_schedule", plan.program, arrays, backend)  # rings share memory on purpose
    bound = Bound(plan.program, {**arrays, **offloaded.arrays}, "gpu", comm, gradients, stream)
    bound.startup()
    scheduled = BoundSchedule(plan, bound, offloaded.blocks, timing, multiprocessors)
    if comm is not None:
        comm.barrier()  # no rank begins a step while others are still binding
    return scheduled
