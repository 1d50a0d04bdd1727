"""A schedule bound to arrays and ranks, with streams and events that are created once."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, cast

from refopt.checks.arguments import collected, flag, mapped, shown, whole
from refopt.comm.mesh import communicators
from refopt.program import states
from refopt.program.backends import backend_of
from refopt.program.bound import Bound, check_arguments
from refopt.program.exclusive import Exclusive
from refopt.program.gpu.backend import Gpu
from refopt.program.memory import refuse_shared
from refopt.program.ops.context import Gradients
from refopt.program.placement import hosted
from refopt.program.placement.lanes import lanes_of
from refopt.program.placement.marks import Marks, Span
from refopt.program.placement.schedule import Schedule, Task
from refopt.program.placement.work import Call, Work


class BoundSchedule(Exclusive):
    """A schedule that can be run. Made by `bind_schedule`.

    Concurrent calls are serialized, so that each step is enqueued as a whole; with a communicator, calls must come from
    its thread. It cannot be copied; `plan` can.

    The streams belong to the schedule, and only events order them: relative to each other, as the schedule says;
    after the work that the caller's stream has before a step; and before the work that it gets afterwards.

    Attributes:
        bound: its program with its arrays, which are complete for work on the caller's stream after a step;
            `Bound.read` waits for them. Take steps here only: `Bound.step` does not know the state between them.
    """

    def __init__(
        self, plan: Schedule, bound: Bound, blocks: Mapping[int, hosted.Ends], timing: bool = False,
        multiprocessors: int | None = None,
    ) -> None:
        super().__init__(bound.comm)
        bound.hand_over("BoundSchedule")
        backend = cast(Gpu, bound.backend)
        self.plan, self.bound, self._machine = plan, bound, backend.machine
        self._timing, self._done, self._blocks = timing, False, blocks
        self._numbers: dict[str, Any] = {}
        self._lanes = lanes_of(plan.streams, bound, multiprocessors)
        self._bind()

    def _bind(self) -> None:
        """Make the calls of a step, for the arrays in their present state."""
        plan, bound = self.plan, self.bound
        self._work = Work(plan, bound, self._lanes, self._blocks)
        self._marks = Marks(plan, self._work.calls, self._machine, self._timing)
        self._calls = self._marks.calls(self._lanes, cast(Gpu, bound.backend).stream)
        self._all = [call for calls in self._calls for call in calls]
        self._machine.synchronize()

    def step(self, **numbers: Any) -> None:
        """Enqueue one step, in the order of the program.

        Args:
            numbers: as for `refopt.program.Bound.step`.

        Raises:
            TypeError, ValueError: as for `refopt.program.Bound.step`, before anything is done.
        """
        with self._turn("step"):
            self._enqueue(self._all, numbers)

    def step_in(self, order: Iterable[Task]) -> None:
        """Enqueue one step in another order, such as `Schedule.order` returns."""
        tasks = collected("step_in: order", order, "tasks")
        for k, task in enumerate(tasks):
            if not isinstance(task, Task):
                raise TypeError(f"step_in: order[{k}]: expected a Task, got {shown(task)}")
        if sorted(task.number for task in tasks) != list(range(len(self._calls))):
            raise ValueError(f"step_in: order: expected each of {len(self._calls)} tasks once, got {len(tasks)} tasks")
        with self._turn("step_in"):
            self._enqueue([call for task in tasks for call in self._calls[task.number]], {})

    def set(self, **numbers: Any) -> None:
        """Change the numbers of later steps, as for `refopt.program.Bound.step`."""
        with self._turn("set"):
            self._work.runners.check_numbers(numbers)
            self._numbers |= self._work.runners.set(numbers)

    def state_dict(self) -> dict[str, Any]:
        """Like `refopt.program.Bound.state_dict`, after all enqueued work."""
        with self._turn("state_dict"):
            self.synchronize()
            return states.saved(self.bound, self._numbers)

    def load(self, saved: Mapping[str, Any]) -> None:
        """Like `refopt.program.Bound.load`, after all enqueued work."""
        with self._turn("load"):
            self.synchronize()
            vars, numbers, self.bound.steps = states.check(self.bound, saved, self._work.runners.check_numbers)
            states.write(self.bound, vars)
            self._bind()
            self._numbers = self._work.runners.set(numbers)

    def synchronize(self) -> None:
        """Wait for all enqueued work.

        Raises:
            refopt.comm.CommError: communication on a GPU exceeds the communicator's timeout.
        """
        for lane in self._lanes.values():
            lane.network.synchronize()
        self._machine.synchronize()

    def spans(self) -> list[Span]:
        """When the tasks of the last step started and stopped: seconds from the end of ``begin``, by events.

        A task starts when its stream reaches it and its waits are over. One that enqueues nothing starts and stops
        when its stream reaches it. The executor does all work in the call that enqueues it, and its events have the
        host's time, so its tasks never overlap.

        Raises:
            RuntimeError: if the schedule was bound without ``timing``, or no step was taken.
        """
        if not self._timing:
            raise RuntimeError("spans: expected bind_schedule(..., timing=True), got a schedule without it")
        if not self._done:
            raise RuntimeError("spans: expected step() before it, got none")
        self.synchronize()
        return self._marks.spans()

    def _enqueue(self, calls: Iterable[Call], numbers: Mapping[str, Any]) -> None:
        """Make the calls of a step, after checking its numbers and gradients."""
        runners = self._work.runners
        runners.check_numbers(numbers)
        self.bound.check_gradients(runners)
        self._numbers |= runners.set(numbers)
        for call in calls:
            call()
        self.bound.steps += 1
        self._done = True


def bind_schedule(
    plan: Schedule, arrays: Mapping[str, Any], *, comm: Any = None, gradients: Gradients = None, stream: Any = 0,
    timing: bool = False, multiprocessors: int | None = None,
) -> BoundSchedule:
    """Bind the program of a schedule, run its startup, and put its tasks on streams.

    On a GPU these are CUDA streams that do not wait for the default stream; on the executor they are the executor's.

    Args:
        arrays: by name, device arrays, as for `bind`. States that `refopt.program.passes.offload` keeps in host memory
            are copied there.
        comm: a communicator, if the program has collectives or messages: on a GPU one of GPUs, whose calls are put on
            the stream ``communication``; on the executor one of the host.
        gradients: as for `refopt.program.bind`; the arrays of a mapping or a function must be ready on the caller's
            stream when a step begins.
        stream: the caller's stream, with which steps are ordered; the legacy default stream if not given.
        timing: whether tasks are timed, see `BoundSchedule.spans`. This takes two events per task.
        multiprocessors: how many of the GPU's multiprocessors the ops on ``compute`` may use, rounded up to a size that
            can be reserved; all if not given. Fewer leave more memory bandwidth to communication, which needs it
            throughout. The executor ignores this.

    Raises:
        ValueError, TypeError: as `refopt.program.bind` does; or if the communicator is for other arrays.
        refopt.comm.CommError: if the collectives of the ranks' programs differ.
    """
    if not isinstance(plan, Schedule):
        raise TypeError(f"bind_schedule: plan: expected a Schedule, got {shown(plan)}")
    check_arguments("bind_schedule", plan.program, comm, gradients)
    arrays, timing = mapped("bind_schedule: arrays", arrays), flag("bind_schedule: timing", timing)
    backend = cast(Gpu, backend_of("gpu", arrays, stream))
    on_gpu = backend.machine.name != "executor"
    if comm is not None and hasattr(communicators(comm)[0], "stream") != on_gpu:
        where = "GPUs, such as refopt.comm.nccl has, for arrays of a GPU" if on_gpu else "the host, for the executor"
        raise TypeError(f"bind_schedule: comm: expected a communicator of {where}, got {type(comm).__name__}")
    if multiprocessors is not None:
        multiprocessors = whole("bind_schedule: multiprocessors", multiprocessors, 1)
        backend.machine.new_stream(multiprocessors)  # refuses too many before anything is done
    offloaded = hosted.arrays_of(plan.program, arrays, backend)
    refuse_shared("bind_schedule", plan.program, arrays, backend)  # rings share memory on purpose
    started = [name for name in offloaded.arrays if name not in arrays]
    bound = Bound(plan.program, {**arrays, **offloaded.arrays}, "gpu", comm, gradients, stream, started)
    bound.startup()
    scheduled = BoundSchedule(plan, bound, offloaded.blocks, timing, multiprocessors)
    if bound.comm is not None:
        bound.comm.barrier()  # no rank begins a step while others are still binding
    return scheduled
