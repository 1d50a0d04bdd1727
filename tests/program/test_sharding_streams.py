"""Shards in buckets on two streams: each bucket waits for what it needs, and for nothing else."""

import pytest
from program_cases import put, started, stepped, values
from sharding_cases import bits, in_buckets, read, step

from refopt import gpu
from refopt.comm import local
from refopt.program import UNKNOWN, passes, placement, step_program
from refopt.simt import observe


def on_streams(programs, edit=lambda plan, rank: plan, watch=True, steps=2, **options):
    """By rank, what some steps on streams leave behind, of gradients that stay."""

    def rank(world):
        mine = programs[world.rank]
        given = constant(mine, world.rank, gpu.to_device)
        plan = edit(placement.on_streams(mine), world.rank)
        arrays = put("gpu", initial(mine))
        return bits(read(placement.run_schedule(plan, arrays, comm=world, gradients=given, steps=steps, **options)))

    with observe(count=False, watch=watch):
        return local.run(rank, len(programs))


def in_sequence(programs, steps=2):
    def rank(world):
        mine = programs[world.rank]
        bound = started(mine, initial(mine), comm=world, gradients=constant(mine, world.rank, lambda x: x))
        return bits(read(stepped(bound, steps)))

    return local.run(rank, len(programs))


def initial(program):
    names = [name for op in program.startup if op.type == "initialize" for name in op.writes]
    names += [name for name, var in program.vars.items() if var.persistable and var.initial is None]
    return {n: values("float32", program.vars[n].shape, *map(ord, n)).astype(program.vars[n].dtype)
            for n in sorted({*names}) if program.vars[n].shape != UNKNOWN}


def constant(program, rank, place):
    grads = [name for op in program.main if op.type == "backward" for name in op.outputs["grads"]]
    return {n: place(values("float32", program.vars[n].shape, rank, *map(ord, n)).astype(program.vars[n].dtype))
            for n in grads}


def by_element(program):
    made = [passes.shard_elements(program, rank, 2, limit=LIMIT).program for rank in range(2)]
    return [passes.fuse_optimizer(each, form="merged", per_buffer=True).program for each in made]


EIGHT = [(name, (4,)) for name in "abcdefgh"]
MIXED = dict(config="amp", grad_dtype="float32", world_size=2, lr=0.1)
LIMIT = 33 / 2**20  # two gradients
SCHEDULED = {
    "plain": lambda: in_buckets(step_program(EIGHT, "adam", **MIXED), "greedy", LIMIT),
    "gradient check in batches": lambda: in_buckets(step(EIGHT, world_size=2, max_norm=0.5), "greedy", LIMIT, True),
    "plain in batches": lambda: in_buckets(step_program(EIGHT, "adam", **MIXED), "greedy", LIMIT, True),
    "by element": lambda: by_element(step([("a", (1025,)), ("b", (7,))], world_size=2, max_norm=0.5))}


@pytest.mark.parametrize("example", [
    pytest.param("plain", marks=pytest.mark.slow), "gradient check in batches", "plain in batches", "by element"])
def test_scheduled_is_sequential_and_nothing_races(example):
    """To the bit, in any order that streams leave open; the executor's detector watches."""
    made = SCHEDULED[example]()
    expected = in_sequence(made)
    assert on_streams(made) == expected
    assert on_streams(made, watch=False, issue="random", seed=1) == expected


def test_buckets_wait_for_what_they_need_alone():
    """An average for its own reduction, a broadcast for its own update; the others follow on their streams."""
    plan = placement.on_streams(SCHEDULED["plain"]()[0])
    tasks = [task for task in plan.tasks if task.op >= 0 and plan.program.main[task.op].type != "backward"]
    waits = [
        (task.stream, plan.label(task), [plan.label(plan.tasks[k]) for k in task.waits])
        for task in tasks if not plan.label(task).startswith("reduce")
    ]
    assert waits == [("compute", "scale g@GRAD", ["reduce g@GRAD"]), ("compute", "merged_adam g", []),
                     ("compute", "scale c@GRAD", ["reduce c@GRAD"]), ("compute", "merged_adam c", []),
                     ("communication", "broadcast h", []), ("communication", "broadcast g", ["merged_adam g"]),
                     ("communication", "broadcast d", []), ("communication", "broadcast c", ["merged_adam c"])]
