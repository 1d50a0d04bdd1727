"""Schedules: nothing races, no wait is for nothing, no order that streams allow shows; no chain is too long."""

from functools import partial

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from placement_cases import elapsed, sent, trained, waits_of, without_wait, written
from program_cases import adam, arrays_of, everything, few, gradients_of, programs, put, started, stepped

from refopt import gpu
from refopt.comm import local
from refopt.program import Op, Program, Var, passes, placement, step_program
from refopt.program.passes import on_device
from refopt.program.placement import Schedule, Task
from refopt.program.placement.bound import BoundSchedule
from refopt.program.placement.network import OnExecutor
from refopt.program.placement.schedule import STREAMS
from refopt.simt import DataRace, cuda, observe
from refopt.simt.base import streams
from refopt.simt.base.state import current

SMALL = [("w", (4, 2)), ("v", (6,)), ("u", (3,))]


def at_once(program, devices):
    """Gradients in a buffer, one sum, updates as one."""
    return everything(memory_size=0)(passes.all_reduce_gradients(program, devices).program)


EXAMPLES = {
    "reduce": lambda: passes.reduce_to_owners(adam(SMALL), 2).program,
    "all_reduce": lambda: passes.all_reduce_gradients(adam(SMALL, early=True), 2).program,
    "send": lambda: sent(step_program(SMALL[:2], "momentum", lr=0.5, mu=0.5), 2).program,
    "buffers": lambda: at_once(step_program(SMALL, "sgd", lr=0.5), 2).program, "overwritten": lambda: overwritten()}


def overwritten():
    """A copy that is sent, or that nobody reads before what is received comes in its place; and then another copy."""
    vars = [Var(name, (5,), "float32", True) for name in "ab"] + [Var("h", (5,), "float16", True, initial=0.0)]
    main = [Op("cast", {"x": ["a"]}, {"out": ["h"]}, role="optimize"),
            Op("send", {"x": ["h"]}, {}, {"ranks": 2, "to": 0}, "communicate", device=1),
            Op("recv", {}, {"out": ["h"]}, {"ranks": 2, "source": 1}, "communicate", device=0),
            Op("fetch_barrier", {"x": ["h"]}, {"out": ["h"]}, {"ranks": 2}, "communicate"),
            Op("cast", {"x": ["b"]}, {"out": ["h"]}, role="optimize")]
    return Program({var.name: var for var in vars}, (), tuple(main))


def run(made, devices=2, edit=None, watch=False, steps=2, seen=None, **options):
    """By rank, what some steps on streams leave behind, of gradients that stay."""

    def rank(world):
        mine = on_device(made, world.rank)
        plan = placement.on_streams(mine) if edit is None else edit(placement.on_streams(mine), world.rank)
        given = gradients_of(mine, world.rank)
        made_here = [name for op in mine.main if op.type == "backward" for name in op.outputs["grads"]]
        ready = {name: gpu.to_device(given(name, 0)) for name in made_here}

        def gradients(name, step):
            if seen is not None:
                default = streams.default_stream()
                seen.append((step, default.clock.get(default.id, 0)))
            return ready[name]

        arrays = put("gpu", arrays_of(mine))
        return left(placement.run_schedule(plan, arrays, comm=world, gradients=gradients, steps=steps, **options), made)

    if current.observer is not None:
        return local.run(rank, devices)
    with observe(count=False, watch=watch):
        return local.run(rank, devices)


def left(bound, made):
    names = {*written(bound.program), *trained(made)}
    names = {cell for name in names for cell in bound.program.memory(name)}
    return {name: bound.read(name).tobytes() for name in sorted(names)}


def in_sequence(made, devices=2, steps=2, **numbers):
    """The same, op for op, on NumPy's arrays."""

    def rank(world):
        mine = on_device(made, world.rank)
        given = gradients_of(mine, world.rank)
        bound = started(mine, arrays_of(mine), comm=world, gradients=lambda name, _: given(name, 0))
        return left(stepped(bound, steps, 0, **numbers), made)

    return local.run(rank, devices)


# On the executor.


@pytest.mark.parametrize("example", EXAMPLES)
@pytest.mark.parametrize("order", [
    {}, *({"issue": "random", "seed": seed} for seed in (0, 1)),
    pytest.param({"issue": "random", "seed": 2}, marks=pytest.mark.slow),
], ids=str)
def test_scheduled_is_sequential_and_nothing_races(example, order):
    """To the bit; in any order that streams and events leave open, another in each step. The detector watches."""
    made = EXAMPLES[example]()
    assert run(made, watch=order.get("seed") != 1, **order) == in_sequence(made)


@pytest.mark.parametrize("issue", ["program", "random"])
def test_tasks_are_enqueued_in_the_order_asked_for(issue, monkeypatch):
    """A random one is another in each step."""
    got, step_in = {}, BoundSchedule.step_in

    def noted(bound, order):
        got.setdefault(bound.plan, []).append(list(order))
        step_in(bound, order)

    monkeypatch.setattr(BoundSchedule, "step_in", noted)
    run(EXAMPLES["reduce"](), issue=issue, seed=2)
    for plan, orders in got.items():
        first, second, tasks = plan.order(2), plan.order(3), list(plan.tasks)
        assert first != second != tasks != first
        assert orders == ([first, second] if issue == "random" else [tasks, tasks])
    assert len(got) == 2


@given(program=programs(max_tensors=2, ranks=1, mixed=False, optimizers=("sgd", "adam", "lars_momentum")),
       make=st.sampled_from([passes.reduce_to_owners, passes.all_reduce_gradients, sent]),
       seed=st.integers(0, 9))
@few(10)
def test_any_program(program, make, seed):
    made = make(program, 2).program
    if not any(var.sparse for var in made.vars.values()):
        assert run(made, watch=True, issue="random", seed=seed) == in_sequence(made)


def test_numbers():
    made = EXAMPLES["send"]()
    assert run(made, lr=0.125) == in_sequence(made, lr=0.125) != in_sequence(made)


@pytest.mark.parametrize(("example", "rank"), [
    ("send", 0), ("overwritten", 1),
    *(pytest.param(*case, marks=pytest.mark.slow) for case in (("send", 1), ("overwritten", 0), ("reduce", 0),
                                                               ("reduce", 1), ("buffers", 0), ("buffers", 1)))])
def test_the_executor_reports_each_wait_that_is_missing(example, rank):
    """Every one of them: the last broadcast, which Paddle did not wait for, as any other."""
    made = EXAMPLES[example]()
    waits = waits_of(placement.on_streams(on_device(made, rank)))
    assert len(waits) >= 2
    for pair in waits:
        with pytest.raises(DataRace):
            run(made, edit=lambda plan, on, pair=pair: without_wait(plan, *pair) if on == rank else plan, watch=True)


# What holds for schedules of any program.


def laws(plan):
    """Each op once, on its stream; no race; no wait for nothing."""
    program = plan.program
    assert [task.number for task in plan.tasks] == list(range(len(plan.tasks)))
    assert {task.stream for task in plan.tasks} <= set(STREAMS)
    done = [task.op for task in plan.tasks if task.kind in ("run", "exchange", "copy_out")]
    quiet = "recv", "split_by_ref"
    assert done == [i for i, op in enumerate(program.main) if op.type not in quiet]
    assert plan.races() == [], "tasks whose order shows can meet"
    for task, wait in waits_of(plan):
        assert wait < task and plan.tasks[wait].stream != plan.tasks[task].stream
        pairs = [(first.number, second.number) for first, second in without_wait(plan, task, wait).races()]
        assert pairs and (plan.tasks[task].kind == "end" or (wait, task) in pairs), f"{task} waits for {wait} in vain"


def some_rank(program, devices, make, rank):
    made = on_device(make(program, devices).program, rank % devices)
    return None if any(var.sparse for var in made.vars.values()) else made


PLANS = dict(
    program=programs(max_tensors=4, ranks=1), devices=st.integers(1, 4), rank=st.integers(0, 3),
    make=st.sampled_from([
        passes.reduce_to_owners, passes.all_reduce_gradients, sent, at_once, partial(sent, receiver="balanced")]))


@given(**PLANS)
@few(40)
def test_laws_of_any_schedule(program, devices, make, rank):
    if mine := some_rank(program, devices, make, rank):
        laws(placement.on_streams(mine))


def test_blocks_and_buffers_are_memory():
    """What is sent in blocks has been averaged as a whole; what is summed in a buffer is made view by view."""
    plan = placement.on_streams(on_device(sent(adam([("w", (8, 3))]), 2, min_block_size=12).program, 0))
    (copy,) = (task for task in plan.tasks if task.kind == "copy_out" and "GRAD" in task.names[0])
    (scale,) = (task for task in plan.tasks if plan.label(task).startswith("scale"))
    assert copy.waits == (scale.number,) and copy.reads < scale.writes == {"w@GRAD.block0", "w@GRAD.block1"}
    plan = placement.on_streams(EXAMPLES["buffers"]())
    labels = [plan.label(task).split()[0] for task in plan.tasks]
    assert labels == ["begin", "backward", "backward", "backward", "all_reduce", "scale", "sgd", "end"]
    assert [task.op for task in plan.tasks] == [-1, 0, 1, 2, 3, 4, 5, -1]
    assert plan.tasks[4].waits == (3,) and plan.tasks[6].waits == (5,)


def early(device, op=None):
    """A change, or another op, of what is sent by device 1 to 0, before the barrier."""
    made = on_device(overwritten(), device)
    first, message, barrier, change = made.main
    return made.replace(main=[first, message, op or change, barrier])


def one_task(op=0, waits=()):
    return Task(0, "run", "compute", op, (), frozenset(), frozenset(), waits)


READS = Op("cast", {"x": ["h"]}, {"out": ["a"]}, role="optimize")
PLAIN = adam(SMALL)
PLAN = placement.on_streams(PLAIN)


@pytest.mark.parametrize(("call", "error", "message"), [
    (lambda: placement.on_streams(EXAMPLES["reduce"]()), ValueError, "expected ops of one device, got devices"),
    (lambda: placement.on_streams(adam(SMALL, sparse=["w"])), ValueError, "main.*expected dense variables, got 'w@GRA"),
    *((lambda about=about: placement.on_streams(early(*about)), ValueError, r"main\[2\] cast: expected 'h' to be left")
      for about in ((1,), (0,), (0, READS))),
    (lambda: Schedule(PLAIN, [one_task(op=6)]), ValueError, r"tasks\[0\]: op: expected one of 6 ops, got 6"),
    (lambda: Schedule(PLAIN, [one_task(waits=(0,))]), ValueError, r"\[0\]: waits: expected earlier tasks, got \(0,\)"),
    (lambda: placement.on_streams(PLAIN, {"copy": "compute"}), ValueError, "on_streams: streams: expected one of comp"),
    (lambda: placement.run_schedule(PLAN, {}, issue="any"), ValueError, "run_schedule: issue: expected one of program"),
    (lambda: placement.run_schedule(PLAN, {}, steps=-1), ValueError, "run_schedule: steps: expected an integer of at "),
    (lambda: placement.run_schedule(PLAN, arrays_of(PLAIN)), TypeError, "arrays: 'w': expected a device array, got "),
])
def test_bad_arguments(call, error, message):
    with pytest.raises(error, match=message):
        call()


# Time.


def longest(plan, costs):
    """The longest chain of tasks that must come one after the other: by memory and streams, without any events."""
    end = {}
    for task in plan.tasks:
        before = [end[x.number] for x in plan.tasks[: task.number] if x.conflicts(task) or x.stream == task.stream]
        end[task.number] = max(before, default=0) + costs[task.number]
    return max(end.values())


@given(**PLANS, data=st.data())
@few(20)
def test_a_schedule_takes_as_long_as_its_longest_chain(program, devices, make, rank, data):
    """Events lose nothing; one stream takes all."""
    mine = some_rank(program, devices, make, rank)
    if mine is None:
        return
    plan = placement.on_streams(mine)
    costs = {task.number: data.draw(st.integers(0, 5)) for task in plan.tasks}
    assert elapsed(plan, lambda task: costs[task.number]) == longest(plan, costs)
    one = placement.on_streams(mine, dict.fromkeys(STREAMS, "compute"))
    assert not one.events and elapsed(one, lambda task: costs[task.number]) == sum(costs.values())


def test_a_schedule_by_hand():
    plan = placement.on_streams(on_device(sent(adam([("w", (8, 3))]), 2, min_block_size=12).program, 0))
    assert str(plan).splitlines() == [
        "    0  compute        begin",
        "    1  compute        backward w@GRAD",
        "    2  communication  reduce w@GRAD  waits for 1",
        "    3  communication  scale w@GRAD",
        "    4  copy_out       copy_out w@GRAD.block1  waits for 3",
        "    5  communication  send_barrier  waits for 4",
        "    6  compute        adam w.block0  waits for 3",
        "    7  communication  fetch_barrier",
        "    8  copy_in        copy_in w.block1  waits for 7",
        "    9  communication  concat w  waits for 6, 8",
        "   10  communication  broadcast w",
        "   11  compute        end  waits for 10"]
    for count in (64, 65):  # which make the longest line one of 100 characters, and of one more
        lines = str(placement.on_streams(step_program([("w" * count, (2,))], "sgd", lr=0.5))).splitlines()
        assert max(map(len, lines)) == 100 and any(line.endswith("...") for line in lines) == (count == 65)


def test_communication_says_what_it_reads_and_writes():
    """The root of a reduction writes, that of a broadcast only reads."""

    def rank(world):
        x = gpu.to_device(np.ones(3, np.float32))
        x.name = f"x{world.rank}"
        network = OnExecutor(world, streams.stream())
        for call in (("reduce", x, 1), ("broadcast", x, 1), ("all_reduce", x)):
            network.prepared(*call)()
        other = 1 - world.rank
        network.exchange([("send", x, other)] if world.rank else [("recv", x, other)])()
        assert world.counts["barrier"].calls == 1, "all ranks meet, also those without messages"
        y = gpu.to_device(np.full(3, world.rank + 1, np.float32))
        y.name = f"y{world.rank}"
        with network.batch():
            network.prepared("reduce", y[:1], 0)()
            network.prepared("broadcast", y[1:], 1)()
            assert y.copy_to_host()[0] == world.rank + 1, "nothing is done before the end"
        return y.copy_to_host().tolist()

    with observe() as log:
        assert local.run(rank, 2) == [[3, 2, 2], [2, 2, 2]]
    kinds = [copy.kind for copy in log.copies if "y0" in (copy.source, copy.target) and copy.kind[1:] != "toH"]
    assert [kind for kind in kinds if kind in ("reduce", "broadcast")] == ["reduce", "reduce", "broadcast"]
    found = [[(copy.kind, copy.source is not None, copy.target is not None) for copy in log.copies
              if f"x{rank}" in (copy.source, copy.target) and copy.kind != "HtoD"] for rank in range(2)]
    read, write = (True, False), (False, True)
    both = [("all_reduce", *read), ("all_reduce", *write)]
    assert found[0] == [("reduce", *read), ("broadcast", *write), *both, ("exchange", *write)]
    assert found[1] == [("reduce", *read), ("reduce", *write), ("broadcast", *read), *both, ("exchange", *read)]


def test_runs_on_streams_of_its_own():
    """Communication and compute are enqueued where the schedule says; nothing is on the default stream in a step."""
    made = EXAMPLES["send"]()
    seen = []
    with observe(count=()) as log:
        run(made, steps=3, seen=seen)
    assert len({count for step, count in seen if step}) == 1
    first = {copy.kind: copy.stream for copy in log.copies if copy.kind in ("reduce", "exchange", "broadcast")}
    assert set(first) == {"reduce", "exchange", "broadcast"} and cuda.default_stream() not in first.values()
