"""Bound schedules: the bits of the program on one stream, between what the caller does before and after; and time."""

import contextlib
import random
import sys
from collections import Counter, defaultdict, deque
from functools import partial
from itertools import pairwise

import numpy as np
import pytest
from placement_cases import on
from program_cases import adam, arrays_of, bound_on, everything, gradients_of, numbers_of, read, started, stepped

from refopt import gpu
from refopt.comm import local
from refopt.program import passes, placement, step_program
from refopt.program.passes import on_device
from refopt.program.placement.network import OnExecutor, OnGpu
from refopt.program.placement.work import Work
from refopt.simt import observe
from refopt.simt.base import streams

SMALL = [("w", (4, 2)), ("v", (6,)), ("u", (3,))]
PROGRAMS = {"adam": lambda: adam(), "amp": lambda: adam(config="amp", early=True),
            "merged": lambda: everything("merged")(adam(config="amp")).program,
            "flat": lambda: everything("flat", grouping="by_count", count=2)(adam()).program,
            "lamb": lambda: step_program(SMALL, "lamb", **numbers_of("lamb")),
            "nothing": lambda: step_program([], "sgd", lr=0.5)}
PLAN = placement.on_streams(adam(SMALL))
TICK = 2e-6  # seconds; events on a GPU are as exact


def scheduled(machine, program, steps=3, **options):
    """Some steps on streams, of gradients that differ from step to step and are ready on the caller's stream."""
    given = gradients_of(program, 0)
    made = [name for op in program.main if op.type == "backward" for name in op.outputs["grads"]]
    ready = [on(machine, {name: given(name, step) for name in made}) for step in range(steps)]
    run = placement.bind_schedule(
        placement.on_streams(program), on(machine, arrays_of(program)),
        gradients=lambda name, step: ready[step][name], **options)
    for step in range(steps):
        run.step(**({"lr": 0.125} if step == 1 and program.main else {}))
    return run


def in_sequence(program, steps=3):
    return read(stepped(bound_on(program), steps, lr=0.125))


# One device; those of several are in test_placement_schedule.py, and need NCCL on GPUs.


@pytest.mark.parametrize(("name", "options"), [
    *((name, {}) for name in PROGRAMS),
    *(pytest.param(name, options, marks=[pytest.mark.slow] * (name not in ("adam", "merged")))
      for options in ({"timing": True}, {"multiprocessors": 8}) for name in PROGRAMS),
], ids=str)
def test_the_bits_of_the_program(machine, name, options):
    program = PROGRAMS[name]()
    assert read(scheduled(machine, program, **options).bound) == in_sequence(program)


def beside(program):
    """Every second update goes on ``communication``, so that streams wait for each other."""
    ops = list(program.main)
    for i, op in enumerate(ops):
        if op.role == "optimize" and i % 2:
            ops[i] = op.replace(role="communicate")
    return program.replace(main=ops)


def test_steps_come_after_and_before_what_the_caller_does(machine):
    """Gradients are written on the caller's stream before each step, and parameters copied away after it."""
    program, steps = beside(adam()), 4
    caller = machine.new_stream()
    given = gradients_of(program, 0)
    arrays = on(machine, arrays_of(program))
    grads = {name: machine.to_device(np.zeros(var.shape, var.dtype)) for name, var in program.vars.items()
             if name.endswith("@GRAD")}
    news = [on(machine, {name: given(name, step) for name in grads}) for step in range(steps)]
    params = [name for name in arrays if f"{name}@GRAD" in grads]
    kept = [on(machine, {name: np.zeros(program.vars[name].shape, "f4") for name in params}) for _ in range(steps)]
    writes = [[machine.copier(new[name], grads[name]) for name in grads] for new in news]
    reads = [[machine.copier(arrays[name], keep[name]) for name in params] for keep in kept]

    def run():
        bound = placement.bind_schedule(placement.on_streams(program), {**arrays, **grads}, stream=caller)
        for write, keep in zip(writes, reads, strict=True):
            for copy in write:
                copy(machine.stream(caller))
            bound.step()
            for copy in keep:
                copy(machine.stream(caller))
        bound.synchronize()

    if machine.name == "executor":
        with observe(count=False, watch=True):
            run()
    else:
        run()
    for step, keep in enumerate(kept):
        bound = stepped(bound_on(program), step + 1)
        assert {name: keep[name].copy_to_host().tobytes() for name in keep} == {
            name: bound.read(name).tobytes() for name in keep}


# With a host that is steps ahead of the device.


class Late:
    """Streams whose work is done later, in a random order of those that CUDA's streams and events allow."""

    def __init__(self, seed):
        self.queues, self.random, self.over = defaultdict(deque), random.Random(seed), set()

    def work(self, plain):
        """For `Work._call`."""

        def late(work, task, lane, stepped):
            call = plain(work, task, lane, stepped)
            return call and partial(self.queues[lane.stream].append, ("do", call))

        return late

    def run(self):
        while any(self.queues.values()):
            heads = [
                queue for queue in self.queues.values() if queue and (queue[0][0] != "wait" or queue[0][1] in self.over)
            ]
            kind, what = self.random.choice(heads).popleft()
            if kind == "do":
                what()
            elif kind == "record":
                self.over.add(what)


class LateEvent:
    """One that is recorded anew in each step: who waits, waits for the last time that the host has asked for."""

    def __init__(self, late):
        self.late, self.times = late, 0

    def record(self, stream):
        self.times += 1
        self.late.queues[stream].append(("record", (self, self.times)))

    def wait(self, stream):
        if self.times:
            self.late.queues[stream].append(("wait", (self, self.times)))


LATE = {"two streams": lambda: beside(adam()),
        "offload": lambda: passes.offload(everything("merged")(adam()).program, nbytes=1024, ring=2).program}


def run_late(monkeypatch, program, seed, steps=3):
    late = Late(seed)
    with monkeypatch.context() as patch:
        patch.setattr("refopt.gpu.runtime.Executor.new_event", lambda machine, timing=False: LateEvent(late))
        patch.setattr(Work, "_call", late.work(Work._call))
        silent(patch)
        machine, given = gpu.device("executor"), gradients_of(program, 0)
        grads = {name: given(name, 0) for name in program.vars if name.endswith("@GRAD")}
        arrays = on(machine, arrays_of(program) | grads)
        run = placement.bind_schedule(placement.on_streams(program), arrays, stream=streams.stream())
        for _ in range(steps):
            run.step()
        late.run()
    return read(run.bound)


def of_one_gradient(program, steps=3):
    given = gradients_of(program, 0)
    return read(stepped(started(program, arrays_of(program), gradients=lambda name, _: given(name, 0)), steps))


@pytest.mark.parametrize("example", LATE)
@pytest.mark.parametrize("seed", range(5))
def test_a_host_that_is_ahead(monkeypatch, example, seed):
    """Three steps are enqueued before any work is done. Events are those of the step, of all times recorded."""
    program = LATE[example]()
    assert run_late(monkeypatch, program, seed) == of_one_gradient(program)


# Tasks that enqueue nothing.


def silent(monkeypatch):
    """Nobody says that backward reads, as on a GPU."""
    monkeypatch.setattr(OnExecutor, "reading", OnGpu.reading)


def test_gradients_that_are_there_take_no_time_of_streams(executor, monkeypatch):
    """Their tasks have no events, and whoever waits for them waits for `begin`."""
    silent(monkeypatch)
    program = beside(adam())
    calls = Counter()
    for name in ("record", "wait"):
        plain = getattr(streams.Event, name)
        counted = lambda self, stream=0, name=name, plain=plain: (calls.update([name]), plain(self, stream))  # noqa: E731
        monkeypatch.setattr(streams.Event, name, counted)
    grads = on(executor, {name: gradients_of(program, 0)(name, 0) for name in program.vars if name.endswith("@GRAD")})
    arrays = on(executor, arrays_of(program)) | grads
    plan = placement.on_streams(program)
    assert sum(len(task.waits) for task in plan.tasks) == 2 and len(plan.tasks) == 14
    with observe(count=False, watch=True):
        run = placement.bind_schedule(plan, arrays, stream=streams.stream(), timing=True)
        assert calls == {"record": 1, "wait": 2}, "ops are bound on streams that have waited for startup"
        calls.clear()
        run.step()
    # compute for the caller, communication for begin, compute for communication, the caller for compute;
    # the caller, begin, and six updates and the end before and after
    assert calls == {"wait": 4, "record": 16}
    assert read(run.bound) == of_one_gradient(program, 1)
    spans = run.spans()
    assert all(start == stop == 0 for task, start, stop in spans if plan.label(task).startswith(("begin", "backward")))
    assert all(stop > start for task, start, stop in spans if plan.label(task).startswith("adam"))


# Time.


@pytest.mark.parametrize("name", ["adam", "merged"])
def test_spans(machine, name):
    """Tasks follow each other on a stream, start after what they wait for has stopped, and all do within the step."""
    run = scheduled(machine, beside(PROGRAMS[name]()), timing=True)
    spans = run.spans()
    assert [span.task for span in spans] == list(run.plan.tasks)
    assert spans[0] == (run.plan.tasks[0], 0, 0)
    for task, start, stop in spans:
        assert -TICK <= start <= stop + TICK, run.plan.label(task)
        assert all(spans[wait].stop <= start + TICK for wait in task.waits), run.plan.label(task)
    for tasks in run.plan.streams.values():
        assert all(spans[one.number].stop <= spans[two.number].start + TICK for one, two in pairwise(tasks))
    end = max(stop for _, _, stop in spans)
    assert end > 0 and end - spans[-1].stop <= TICK
    total = sum(stop - start for _, start, stop in spans)
    assert machine.name == "gpu" or total > 0.5 * end, "there is little between tasks"


def test_spans_are_of_the_last_step(executor):
    run = placement.bind_schedule(PLAN, on(executor, arrays_of(PLAN.program)), timing=True)
    run.step()
    before = run.spans()
    assert run.spans() == before
    run.step()
    assert run.spans() != before


# Communication on the right stream.


class Recorder:
    """A communicator of GPUs that says which stream a call was made on."""

    rank, stream = 0, 5

    def __init__(self):
        self.calls = []

    def __getattr__(self, name):
        return lambda *args: self.calls.append((name, self.stream, *args))

    def prepared(self, name, *args):
        return lambda: getattr(self, name)(*args)

    @contextlib.contextmanager
    def batch(self):
        yield
        self.calls.append(("made at once", self.stream))


def test_calls_are_made_on_the_stream_they_belong_to():
    comm = Recorder()
    network = OnGpu(comm, 77)
    for call in (("all_reduce", "x"), ("reduce", "x", 1), ("broadcast", "y", 0)):
        network.prepared(*call)()
    network.exchange([("send", "x", 1), ("recv", "y", 1)])()
    with network.batch():
        network.prepared("reduce", "x", 0)()
    network.synchronize()
    assert comm.calls == [("all_reduce", 77, "x"), ("reduce", 77, "x", 1), ("broadcast", 77, "y", 0),
                          ("send", 77, "x", 1), ("recv", 77, "y", 1), ("made at once", 77), ("reduce", 77, "x", 0),
                          ("made at once", 77), ("synchronize", 77)]
    assert comm.stream == 5
    comm.all_reduce = lambda array: 1 / 0
    with pytest.raises(ZeroDivisionError):
        network.prepared("all_reduce", "x")()
    assert comm.stream == 5


# What is refused.


def bound_here(**options):
    return placement.bind_schedule(PLAN, {name: gpu.to_device(x) for name, x in arrays_of(PLAN.program).items()},
                                   **options)


@pytest.mark.parametrize(("call", "error", "message"), [
    (lambda: placement.bind_schedule(PLAN, arrays_of(PLAN.program)), TypeError, "'w': expected a device array, got a"),
    (lambda: bound_here().spans(), RuntimeError, r"spans: expected bind_schedule\(..., timing=True\), got a schedule "),
    (lambda: bound_here(timing=True).spans(), RuntimeError, r"spans: expected step\(\) before it, got none"),
    (lambda: bound_here().step(mu=0.5), TypeError, "step: mu: expected one of .*lr"),
    (lambda: bound_here().step(lr=-1.0), ValueError, "lr"),
    (lambda: bound_here().set(mu=0.5), TypeError, "step: mu: expected one of .*lr"),
    (lambda: placement.bind_schedule(PLAN, dict.fromkeys("wvu", gpu.to_device(np.zeros((4, 2), np.float32)))),
     ValueError, "bind_schedule: arrays: '.': expected memory of its own, got an overlap with arr"),
    (lambda: bound_here(multiprocessors=0), ValueError, "bind_schedule: multiprocessors: expected an integer of at "),
    (lambda: bound_here().step_in([PLAN.tasks[0], *PLAN.tasks[:-1]]), ValueError, "step_in: order: expected each of"),
    (lambda: bound_here(multiprocessors=1.5), TypeError, "multiprocessors: expected an integer of at least 1, got 1.5"),
    (lambda: bound_here(comm=Recorder()), TypeError, "comm: expected a communicator of the host, .* got Recorder")])
def test_bad_arguments(call, error, message):
    with gpu.use("executor"), pytest.raises(error, match=message):
        call()


def test_too_many_multiprocessors_are_refused_before_anything_is_bound(executor, monkeypatch):
    def new_stream(count=None):
        raise ValueError(f"multiprocessors: expected fewer, got {count}")

    monkeypatch.setattr(executor, "new_stream", new_stream)
    monkeypatch.setattr(sys.modules["refopt.program.placement.bound"], "Bound", None)
    with pytest.raises(ValueError, match="expected fewer, got 999"):
        placement.bind_schedule(PLAN, on(executor, arrays_of(PLAN.program)), multiprocessors=999)


def test_some_multiprocessors_are_for_updates(executor, monkeypatch):
    """Those of the streams beside them are all."""
    made = []
    monkeypatch.setattr(executor, "new_stream", lambda count=None: made.append(count) or streams.stream())
    for count in (None, 56):
        program = beside(adam())
        plan = placement.on_streams(program)
        run = placement.bind_schedule(plan, on(executor, arrays_of(program)), multiprocessors=count)
        assert dict(zip(run.plan.streams, made[-2:], strict=True)) == {"compute": count, "communication": None}
        made.clear()


@pytest.mark.gpu
def test_ranks_in_one_process_have_no_gpu_of_their_own():
    machine = gpu.device("gpu")
    program = passes.all_reduce_gradients(adam(SMALL), 2).program

    def rank(world):
        mine = on_device(program, world.rank)
        placement.bind_schedule(placement.on_streams(mine), on(machine, arrays_of(mine)), comm=world)

    with pytest.raises(TypeError, match=r"comm: expected a communicator of GPUs, such as refopt.comm.nccl has"):
        local.run(rank, 2)
