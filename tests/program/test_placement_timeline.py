"""What runs beside something else is slower: simulated, against a clock that goes from event to event, and its fit."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from program_cases import adam, few

from refopt.program.placement import Overlap, Schedule, Span, Task, overlap, simulate, timeline
from refopt.program.placement.schedule import STREAMS
from refopt.program.placement.timeline import fit_beside

PROGRAM = adam([("w", (2,))])


def plan_of(*tasks):
    """A schedule of so many tasks: stream and waits of each."""
    made = (Task(k, "run", stream, -1, (), frozenset(), frozenset(), waits) for k, (stream, waits) in enumerate(tasks))
    return Schedule(PROGRAM, tuple(made))


@st.composite
def plans(draw):
    """Schedules with waits for any tasks before, and costs, of which some are 0."""
    count = draw(st.integers(1, 14))
    waits = [draw(st.sets(st.integers(0, k - 1), max_size=2)) if k else set() for k in range(count)]
    tasks = [(draw(st.sampled_from(STREAMS)), tuple(sorted(before))) for before in waits]
    return plan_of(*tasks), {k: float(draw(st.integers(0, 5))) for k in range(count)}


def played(plan, costs, beside):
    """Start and stop of each task, by what is left of those under way from one event to the next."""
    queues = {stream: list(tasks) for stream, tasks in plan.streams.items()}
    left, start, stop, now = {}, {}, {}, 0.0
    while any(queues.values()):
        heads = [queue[0] for queue in queues.values() if queue and set(queue[0].waits) <= set(stop)]
        for task in heads:
            start.setdefault(task.number, now)
            left.setdefault(task.number, costs[task.number])
        if done := [task for task in heads if left[task.number] == 0]:
            for task in done:
                stop[task.number] = now
                queues[task.stream].pop(0)
            continue
        rate = beside if len({task.stream == "compute" for task in heads}) == 2 else 1.0
        turn = min(left[task.number] for task in heads)
        for task in heads:
            left[task.number] -= turn
        now += turn / rate
    return [(start[task.number], stop[task.number]) for task in plan.tasks]


@given(case=plans(), beside=st.sampled_from([1.0, 0.5, 0.25]))
@few(200)
def test_as_from_event_to_event(case, beside):
    """Exactly, as costs are whole numbers and rates powers of two; without a rate, as with 1."""
    plan, costs = case
    spans = simulate(plan, costs, beside)
    assert [(start, stop) for _, start, stop in spans] == played(plan, costs, beside)
    assert [span.task for span in spans] == list(plan.tasks)
    assert beside < 1 or spans == simulate(plan, costs)


@given(cases=st.lists(plans(), min_size=1, max_size=4), beside=st.floats(0.05, 1))
@few(50)
def test_fit_finds_the_rate(cases, beside):
    cases = [case for case in cases if overlap(simulate(*case)).hidden]
    gains = [overlap(simulate(*case)) for case in cases]
    if gains:
        assert fit_beside(gains, [overlap(simulate(*case, beside)).elapsed for case in cases]) == pytest.approx(beside)


def test_fit_weighs_relative_errors():
    """Rates of 1/2 and 1/3, of which the short one says as much as the long one; faster than undisturbed is 1."""
    long_, short = Overlap(300.0, 200.0, 200.0), Overlap(3.0, 2.0, 2.0)
    assert fit_beside([long_, short], [400.0, 6.0]) == pytest.approx(1 / (1 + (0.25 + 4 / 18) / (0.25 + 1 / 9)))
    assert fit_beside([short, Overlap(1.0, 1.0, 0.0)], [4.0, 9.0]) == 0.5
    assert fit_beside([short], [1.5]) == 1.0


@pytest.mark.parametrize(("first", "box"), [(1.0, "|"), (2.0, "[]"), (3.0, "[r]"), (4.0, "[ru]")])
def test_boxes_are_as_wide_as_tasks_are_long(first, box):
    """The second task begins where it would without the label of the first."""
    plan = plan_of(("compute", ()), ("compute", ()))
    width = 57
    columns = width - 15
    line = timeline.text(plan, simulate(plan, {0: first, 1: columns - first}), width).splitlines()[0]
    assert line.startswith(f"compute        {box}[run") and len(line) == width


def test_short_tasks_are_bars():
    """Also at the end; under a box of its stream one is hidden."""
    plan = plan_of(("compute", ()), ("compute", ()), ("copy_in", (1,)))
    ours, other, _ = timeline.text(plan, simulate(plan, {0: 42.0, 1: 1e-3, 2: 1e-3}), 57).splitlines()
    assert ours.endswith("-]") and other == f"copy_in        {'.' * 41}|"


PLAN = plan_of(("compute", ()))
HIDES = Overlap(2.0, 1.0, 1.0)


@pytest.mark.parametrize(("call", "message"), [
    (lambda: simulate(PLAN, {}, 1.5), "simulate: beside: expected a number above 0 and of at most 1, got 1.5"),
    (lambda: fit_beside([HIDES], []), "fit_beside: times: expected one for each of 1 gains, got 0"),
    (lambda: fit_beside([HIDES], [0.0]), "fit_beside: times[0]: expected a finite number above 0, got 0.0"),
    (lambda: fit_beside([Overlap(1.0, 1.0, 0.0)], [1.0]), "fit_beside: gains: expected one with hidden time, got"),
    (lambda: fit_beside([HIDES, Overlap(3.0, float("nan"), 1.0)], [1.0, 2.0]),
     "fit_beside: gains[1]: elapsed: expected a finite"),
    (lambda: timeline.text(PLAN, [Span(PLAN.tasks[0], -float("inf"), 1.0)]), "text: spans[0]: start: expected a finit"),
])
def test_bad_arguments(call, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        call()
