"""The events of a schedule, by which its streams wait for each other and its tasks are timed."""

from __future__ import annotations

from collections.abc import Mapping, MutableSet, Sequence
from functools import partial
from typing import Any, NamedTuple

from refopt.gpu.runtime import Device, Event
from refopt.program.placement.lanes import Lane
from refopt.program.placement.schedule import Schedule, Task
from refopt.program.placement.work import Call


class Span(NamedTuple):
    """When a task started and stopped, in seconds."""

    task: Task
    start: float
    stop: float


class Marks:
    """Events after tasks that others wait for; if tasks are timed, before and after each that enqueues something."""

    def __init__(self, plan: Schedule, work: Sequence[Call | None], machine: Device, timing: bool) -> None:
        self._plan, self._work, self._anchors = plan, work, _anchors(plan, work)
        marked = {self._anchors[number] for number in (0, -1, *plan.events)} | set(self._anchors if timing else ())
        self._entry = machine.new_event()
        self._stop: dict[int, Event] = {number: machine.new_event(timing) for number in sorted(marked)}
        self._start: dict[int, Event] = {number: machine.new_event(True) for number in self._stop if timing and number}

    def calls(self, lanes: Mapping[str, Lane], caller: Any) -> list[list[Call]]:
        """By task, the calls that enqueue it: its waits, its work, and its events.

        Args:
            lanes: the streams by name.
            caller: the stream with which steps are ordered.
        """
        awaited: dict[str, MutableSet[int]] = {name: set() for name in lanes}
        return [self._enqueued(task, lanes[task.stream].stream, caller, awaited[task.stream])
                for task in self._plan.tasks]

    def _enqueued(self, task: Task, stream: Any, caller: Any, awaited: MutableSet[int]) -> list[Call]:
        """The calls of one task; adds the tasks that it waits for to ``awaited``."""
        anchor, work, calls = self._anchors[task.number], self._work[task.number], []  # type: int, Any, list[Call]
        if task.kind == "begin":
            calls += [partial(self._entry.record, caller), partial(self._entry.wait, stream)]
        for number in dict.fromkeys(self._anchors[number] for number in task.waits):
            if number not in awaited:
                calls.append(partial(self._stop[number].wait, stream))
                awaited.add(number)
        if anchor == task.number:
            calls += [partial(self._start[anchor].record, stream)] if anchor in self._start else []
            calls += [work] if work is not None else []
            calls += [partial(self._stop[anchor].record, stream)] if anchor in self._stop else []
        if task.kind == "end":
            calls.append(partial(self._stop[anchor].wait, caller))
        return calls

    def spans(self) -> list[Span]:
        """When the tasks of the last step, which is complete, started and stopped; see `BoundSchedule.spans`."""
        origin, spans = self._stop[self._anchors[0]], []
        at = {number: origin.elapsed_time(event) * 1e-3 for number, event in self._stop.items()}
        for task in self._plan.tasks:
            stop, start = at[self._anchors[task.number]], self._start.get(task.number)
            spans.append(Span(task, stop if start is None else origin.elapsed_time(start) * 1e-3, stop))
        return spans


def _anchors(plan: Schedule, work: Sequence[Call | None]) -> list[int]:
    """By task, the one whose end is its end: itself, or the one before if it waits for nothing and does nothing."""
    anchors: list[int] = []
    last: dict[str, int] = {}
    for task in plan.tasks:
        idle = work[task.number] is None and not task.waits and task.stream in last
        anchors.append(last[task.stream] if idle else task.number)
        last[task.stream] = anchors[-1]
    return anchors
