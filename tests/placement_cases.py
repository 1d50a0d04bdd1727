"""What holds for placed programs, whatever places them."""

import re
from dataclasses import replace

from program_cases import arrays_of, gradients_of, put, started, stepped

from refopt import gpu
from refopt.comm import local
from refopt.program import passes
from refopt.program.ops.updates import routine_of


def on(machine, arrays):
    with gpu.use(machine.name):
        return {name: gpu.to_device(array) for name, array in arrays.items()}


def everywhere(program, devices):
    """The step by which others are judged: the same on every device."""
    return passes.all_reduce_gradients(program, devices).program


def sent(program, devices, **options):
    return passes.send_to_owners(program, devices, **{"min_block_size": 4, **options})


def on_rank(program, world, backend="cpu", seed=0, wrap=lambda world: world):
    """A rank's part of a placed program, bound and started."""
    mine = passes.on_device(program, world.rank)
    mine.check()
    gradients = gradients_of(mine, world.rank, seed)
    return started(mine, put(backend, arrays_of(mine, seed)), backend=backend, comm=wrap(world), gradients=gradients)


def elapsed(plan, long):
    """When the last task of a schedule stops, if each takes as long as a function of it says."""
    stop, free = {}, {}
    for task in plan.tasks:
        start = max([free.get(task.stream, 0), *(stop[wait] for wait in task.waits)])
        stop[task.number] = free[task.stream] = start + long(task)
    return max(stop.values(), default=0)


def written(program):
    """What a step leaves behind."""
    names = {name for op in program.main for name in op.writes}
    return [name for name in names if program.vars[name].persistable]


def ends(program, devices, steps=2, backend="cpu", seed=0, **options):
    """By rank, the bits of all parameters, and of what else its ops have changed that lasts."""

    def rank(world):
        bound = stepped(on_rank(program, world, backend, seed), steps, lr=0.25)
        return {name: bound.read(name).tobytes() for name in {*written(bound.program), *trained(program)}}

    return local.run(rank, devices, **options)


def waits_of(plan):
    """Pairs of the numbers of a task and of one that it waits for."""
    return [(task.number, wait) for task in plan.tasks for wait in task.waits]


def without_wait(plan, task, wait):
    """The schedule with one wait of a task taken away."""
    tasks = list(plan.tasks)
    tasks[task] = replace(tasks[task], waits=tuple(number for number in tasks[task].waits if number != wait))
    return replace(plan, tasks=tuple(tasks))


def updates(program):
    return [op for op in program.main if routine_of(op) is not None]


def trained(program):
    """Parameters, whole."""
    return [name for op in program.main if op.type == "backward" for name in op.inputs["params"]]


def params_of(program):
    return [op.inputs["params"][0] for op in updates(program)]


def expected_of(program, devices, steps=2, seed=0):
    """What the same step leaves behind that is done everywhere."""
    first, *others = ends(everywhere(program, devices), devices, steps, seed=seed)
    assert all(other == first for other in others), "ranks differ"
    return first


# The laws.


def same_bits(placed, program, devices, steps=2, backend="cpu", seed=0, **options):
    """N11: a placed step computes what the step everywhere does, given the same gradients.

    On every rank for parameters; for states on the rank that updates, the blocks of a state making up the whole.
    """
    expected = expected_of(program, devices, steps, seed)
    states = ends(placed, devices, steps, backend, seed, **options)
    for rank, got in enumerate(states):
        for name in params_of(program):
            assert got[name] == expected[name], f"N11: {name!r} differs on rank {rank}"
    cut = {}
    for rank, got in enumerate(states):
        for name, value in got.items():
            match = re.fullmatch(r"(.+)\.block(\d+)(_\w+)?", name)
            if match is None:
                assert value == expected[name], f"N11: {name!r} differs on rank {rank}"
            elif any(name in op.writes and op.device == rank for op in placed.main if op.role == "optimize"):
                cut.setdefault(match[1] + (match[3] or ""), {})[int(match[2])] = value
    for name, parts in cut.items():
        if len(parts[0]) == len(expected[name]):
            assert set(parts.values()) == {expected[name]}, f"N11: {name!r}, of which each block has one, differs"
        else:
            whole = b"".join(parts[number] for number in range(len(parts)))
            assert whole == expected[name], f"N11: the blocks of {name!r} differ"


def one_update_each(placed, program):
    """Whatever is updated is updated on one device, and nothing twice."""
    changed = [name for op in updates(placed) for name in op.outputs["params"]]
    assert len(set(changed)) == len(changed), "a parameter is updated twice"
    for op in updates(placed):
        sizes = [placed.vars[name].shape for name in op.inputs["params"]]
        assert op.device is not None or 0 in sizes[0], f"{op.type} of {op.inputs['params']} is on every device"


def one_place_each(placed):
    """What reduces, averages, cuts and sends a gradient is on one device; what receives and broadcasts it, too."""
    places, homes = {}, {}
    whole = {part: op.reads[0] for op in placed.main if op.type == "split_by_ref" for part in op.writes}
    joined = {part: op.writes[0] for op in placed.main if op.type == "concat" for part in op.reads}
    late = False
    for op in placed.main:
        late = late or op.type == "send_barrier"
        if op.type in ("reduce", "scale", "split_by_ref", "send") and not late:
            (name, *_) = op.reads
            where = op.attrs["root"] if op.type == "reduce" else op.device
            if where is not None:
                assert places.setdefault(whole.get(name, name), where) == where, f"{op.type} of {name!r} is elsewhere"
        if late and op.type in ("recv", "concat", "broadcast"):
            (name,) = op.writes
            where = op.attrs["root"] if op.type == "broadcast" else op.device
            assert homes.setdefault(joined.get(name, name), where) == where, f"{op.type} of {name!r} is elsewhere"


def in_order(placed):
    """send, send_barrier, update, send back, fetch_barrier, concat, broadcast."""
    order = [op.type for op in placed.main]
    gradients, parameters = order.index("send_barrier"), order.index("fetch_barrier")
    assert gradients < parameters and order.count("send_barrier") == order.count("fetch_barrier") == 1
    for i, op in enumerate(placed.main):
        if op.type == "split_by_ref":
            assert i < gradients
        if op.role == "optimize":
            assert gradients < i < parameters
        if op.type in ("send", "recv"):
            assert i < parameters
            updated = any(set(op.reads + op.writes) & set(x.outputs.get("params", ())) for x in updates(placed))
            assert updated == (i > gradients), f"{op.type} of {op.reads + op.writes} is on the wrong side"
        if op.type in ("concat", "broadcast"):
            assert i > parameters
    types = [kind for kind in order[parameters:] if kind in ("concat", "broadcast")]
    assert types == sorted(types, reverse=True), "broadcast before all blocks are together"


def messages_fit(placed, devices):
    """Each message is sent once and received once, between the same ranks, and its barrier has it."""
    for side, other in (("send", "recv"), ("recv", "send")):
        for op in placed.main:
            if op.type == side:
                (name,) = op.reads + op.writes
                to = op.attrs["to" if side == "send" else "source"]
                meets = [x for x in placed.main if x.type == other and (*x.reads, *x.writes) == (name,)
                         and x.device == to and x.attrs["source" if side == "send" else "to"] == op.device]
                assert len(meets) == 1 and to != op.device, f"{side} of {name!r} meets {len(meets)}"
    for rank in range(devices):
        waiting = set(), set()
        for op in passes.on_device(placed, rank).main:
            if op.type.endswith("_barrier"):
                assert (set(op.reads), set(op.writes)) == waiting, f"{op.type} of rank {rank} has other messages"
                waiting = set(), set()
            elif op.type in ("send", "recv"):
                waiting[op.type == "recv"].update(op.reads + op.writes)
