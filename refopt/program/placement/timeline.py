"""When the tasks of a schedule start and stop, simulated or measured, and a drawing of it in text."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate
from typing import Any, NamedTuple

from refopt.checks.arguments import collected, listed, number, shown, whole
from refopt.program.ops.offload import COPIES
from refopt.program.placement import cost
from refopt.program.placement.schedule import Schedule, Task

Costs = Mapping[int, float] | Callable[[Task], float]
NAMES = 14  # columns for the name of a stream


class Span(NamedTuple):
    """A task in time."""

    task: Task
    start: float
    stop: float


class Overlap(NamedTuple):
    """The gain of using several streams.

    Attributes:
        total: the sum of the lengths of all tasks, which is the time on one stream if they do not slow each other down.
        elapsed: the time until the last task stops.
        hidden: the time during which ``compute`` and any other stream are busy at once.
    """

    total: float
    elapsed: float
    hidden: float


def simulate(plan: Schedule, costs: Costs, beside: float = 1.0) -> list[Span]:
    """Start and stop of each task, from 0: it starts as soon as its stream is free and the tasks it waits for stop.

    While ``compute`` and any other stream are busy at once, all running tasks proceed at the rate ``beside``,
    since they share the memory and the multiprocessors; at other times at the rate 1. As all slow down equally, this is
    the schedule of undisturbed tasks with its clock slowed where both are busy: what would happen at t happens at
    ``t + (1 / beside - 1) * h(t)``, where h(t) is how long both are busy before t.

    Args:
        costs: by number of a task, or as a function of a task, how long it takes undisturbed, at least 0; 0 for missing
            numbers.
        beside: above 0 and at most 1. At 1 streams do not slow each other down; at 0.5 nothing is gained by using
            both at once.
    """
    _expect_plan("simulate", plan)
    number("simulate: beside", beside, most=1, above=0)
    if not callable(costs) and not isinstance(costs, Mapping):
        raise TypeError(f"simulate: costs: expected a mapping or a function, got {shown(costs)}")
    cost_of = (lambda task: costs.get(task.number, 0.0)) if isinstance(costs, Mapping) else costs
    spans: list[Span] = []
    free: dict[str, float] = {}
    for task in plan.tasks:
        long = number(f"simulate: costs: task {task.number}", cost_of(task), 0, finite=True)
        start = max([free.get(task.stream, 0.0), *(spans[number].stop for number in task.waits)])
        spans.append(Span(task, start, start + long))
        free[task.stream] = start + long
    if beside == 1:
        return spans
    both = _both(spans)
    starts = [start for start, _ in both]
    before = [*accumulate((stop - start for start, stop in both), initial=0.0)]

    def slowed(time: float) -> float:
        count = bisect_left(starts, time)  # that have begun
        hidden = before[count] - max(both[count - 1][1] - time, 0.0) if count else 0.0
        return time + (1 / beside - 1) * hidden

    return [Span(task, slowed(start), slowed(stop)) for task, start, stop in spans]


def fit_beside(gains: Sequence[Overlap], times: Sequence[float]) -> float:
    """The ``beside`` of `simulate` that fits simulated schedules best to measured times.

    A schedule takes ``elapsed + x * hidden``, with ``x = 1 / beside - 1``. Minimizes the sum of the squares of
    ``(elapsed + x * hidden) / t - 1`` over x of at least 0, so that long and short ones count alike.

    Args:
        gains: the result of `overlap` for each schedule, simulated with a ``beside`` of 1; at least one hides some
            time.
        times: as measured, one for each, above 0.
    """
    gains = [_gain(f"fit_beside: gains[{k}]", x) for k, x in enumerate(listed("fit_beside: gains", gains, "gains"))]
    entries = enumerate(collected("fit_beside: times", times, "times"))
    times = [number(f"fit_beside: times[{k}]", t, above=0, finite=True) for k, t in entries]
    if len(times) != len(gains):
        raise ValueError(f"fit_beside: times: expected one for each of {len(gains)} gains, got {len(times)}")
    hidden = sum((gain.hidden / t) ** 2 for gain, t in zip(gains, times, strict=True))
    if not hidden > 0:
        raise ValueError(f"fit_beside: gains: expected one with hidden time, got {list(gains)}")
    missed = sum((t - gain.elapsed) * gain.hidden / t**2 for gain, t in zip(gains, times, strict=True))
    return 1 / (1 + max(missed / hidden, 0.0))


def task_cost(plan: Schedule, link: cost.Link, bus: cost.Link, rate: float) -> Callable[[Task], float]:
    """The cost of tasks by the model of `refopt.program.placement.cost`.

    Args:
        link: the network between ranks. An exchange takes as long as all messages that the rank sends, one after the
            other, or as all that it receives, whichever is longer.
        bus: the link between device and host, one message per copy.
        rate: bytes per second of a device's memory.
    """
    _expect_plan("task_cost", plan)
    for name, way in (("link", link), ("bus", bus)):
        cost.expect_link(f"task_cost: {name}", way)
    number("task_cost: rate", rate, above=0)
    program = plan.program

    def seconds(task: Task) -> float:
        if task.kind in ("begin", "end"):
            return 0.0
        if task.kind in ("copy_out", "copy_in"):
            return cost.send(bus, cost.bytes_of(program, task.names))
        op = program.main[task.op]
        if op.type in COPIES:
            return cost.send(bus, cost.bytes_of(program, op.inputs["x"]))
        if task.kind == "exchange":
            ways = op.inputs["x"], op.outputs["out"]
            return max(sum(cost.send(link, cost.bytes_of(program, [name])) for name in way) for way in ways)
        return cost.of_op(program, op, link, rate)

    return seconds


def overlap(spans: Sequence[Span]) -> Overlap:
    """How much work overlaps other work.

    Args:
        spans: the result of `simulate` or `BoundSchedule.spans`.
    """
    spans = _spans("overlap: spans", spans)
    hidden = sum((stop - start for start, stop in _both(spans)), 0.0)
    return Overlap(sum(s.stop - s.start for s in spans), max((s.stop for s in spans), default=0.0), hidden)


def text(plan: Schedule, spans: Sequence[Span], width: int = 100) -> str:
    """The streams one below the other, with time from left to right.

    A task is a box from its start to its stop, with as much of its name as fits; one that takes less than
    a column is a ``|``, or hidden by others in its column. Dots mark waiting.

    Args:
        spans: the result of `simulate` or `BoundSchedule.spans`.
        width: the most columns, at least 40.
    """
    _expect_plan("text", plan)
    spans, width = _spans("text: spans", spans), whole("text: width", width, 40, 10_000)
    columns = width - NAMES - 1
    end = max((span.stop for span in spans), default=0.0) or 1.0
    lines = []
    for stream in plan.streams:
        row = ["."] * columns
        for task, start, stop in (span for span in spans if span.task.stream == stream and span.stop > span.start):
            first, last = (min(columns, round(columns * t / end)) for t in (start, stop))
            if last <= first:
                first = min(first, columns - 1)
                row[first] = "|" if row[first] == "." else row[first]
                continue
            row[first:last] = _box(plan.label(task), last - first)
        lines.append(f"{stream:<{NAMES}} {''.join(row)}")
    right = f"{end:.6g}"
    lines.append(f"{'':<{NAMES}} 0{right:>{columns - 1}}")
    return "\n".join(lines)


def _spans(where: str, value: Any) -> list[Span]:
    """Checked spans; raises if any has times that are not finite, or stops before it starts."""
    checked = []
    for k, span in enumerate(listed(where, value, "spans")):
        if not isinstance(span, Span) or not isinstance(span.task, Task):
            raise TypeError(f"{where}[{k}]: expected a Span of a Task, got {shown(span)}")
        start = number(f"{where}[{k}]: start", span.start, finite=True)
        checked.append(Span(span.task, start, number(f"{where}[{k}]: stop", span.stop, start, finite=True)))
    return checked


def _gain(where: str, value: Any) -> Overlap:
    if not isinstance(value, Overlap):
        raise TypeError(f"{where}: expected an Overlap, got {shown(value)}")
    return Overlap(*(number(f"{where}: {name}", x, 0, finite=True) for name, x in value._asdict().items()))


def _expect_plan(where: str, value: Any) -> None:
    if not isinstance(value, Schedule):
        raise TypeError(f"{where}: plan: expected a Schedule, got {shown(value)}")


def _box(label: str, room: int) -> str:
    if room < 3:
        return "[]"[:room] if room > 1 else "|"
    return f"[{label[: room - 2]:-<{room - 2}}]"


def _both(spans: Sequence[Span]) -> list[tuple[float, float]]:
    """Disjoint intervals in which ``compute`` and any other stream are busy at once."""
    busy: dict[bool, list[tuple[float, float]]] = {True: [], False: []}
    for task, start, stop in spans:
        if stop > start:
            busy[task.stream == "compute"].append((start, stop))
    ours, others = sorted(busy[True]), _united(busy[False])
    overlaps, k = [], 0
    for a, b in ours:  # disjoint, since they are on one stream
        while k < len(others) and others[k][1] <= a:
            k += 1
        j = k
        while j < len(others) and others[j][0] < b:
            overlaps.append((max(a, others[j][0]), min(b, others[j][1])))
            j += 1
    return overlaps


def _united(intervals: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """Disjoint intervals with the same union."""
    united: list[tuple[float, float]] = []
    for start, stop in sorted(intervals):
        if united and start <= united[-1][1]:
            united[-1] = united[-1][0], max(united[-1][1], stop)
        else:
            united.append((start, stop))
    return united
