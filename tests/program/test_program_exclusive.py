"""What can be copied and sent to other processes, what cannot, and what several threads may call."""

import copy
import pickle
import threading

import numpy as np
import pytest
from program_cases import PARAMS, adam, everything, gradients_of, read, started

from refopt import gpu
from refopt.comm import CommError, local
from refopt.program import Op, Program, Var, amp_program, passes, placement, step_program

CHANGES = {"pickle": lambda value: pickle.loads(pickle.dumps(value)), "copy": copy.copy, "deepcopy": copy.deepcopy}


def scheduled():
    return placement.on_streams(step_program(PARAMS[:2], "adam", lr=0.5))


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
@pytest.mark.parametrize("value", [
    Var("a", (2, 3), "bfloat16", True, initial=0.5),
    Op("scale", {"x": ["a"]}, {"out": ["a"]}, {"scale": 0.5}, device=1),
    Program({}), adam(world_size=2), everything()(adam(world_size=2)), passes.fuse_optimizer(adam()), scheduled(),
    amp_program(PARAMS, "adam", lr=0.5, max_norm=1.0), passes.eligible(adam()),
    passes.send_to_owners(adam(), 2, min_block_size=2).program,
], ids=lambda value: type(value).__name__)
def test_copies(value, change):
    """Equal, of the same type, and as fit for use."""
    for name in ("users", "views", "streams", "events"):
        getattr(value, name, None)  # what has been found out does not stand in the way
    made = change(value)
    assert type(made) is type(value) and made == value
    if isinstance(value, Program):
        made.check()
        assert hash(made) == hash(value) and str(made) == str(value)
        with pytest.raises(TypeError):
            made.vars["new"] = None


def bound_here(count=64):
    program = step_program([("a", (count,))], "adam", lr=0.5)
    return started(program, {"a": np.ones(count, np.float32)}, gradients=gradients_of(program, 0))


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_what_has_no_copies(change):
    bound = bound_here()
    with pytest.raises(TypeError, match="Bound: cannot be copied, since it is bound to its arrays"):
        change(bound)
    with gpu.use("executor"):
        arrays = {name: gpu.to_device(np.ones(shape, np.float32)) for name, shape in PARAMS[:2]}
        schedule = placement.bind_schedule(scheduled(), arrays)
    with pytest.raises(TypeError, match="BoundSchedule: cannot be copied"):
        change(schedule)

    def rank(world):
        with pytest.raises(TypeError, match="LocalCommunicator: cannot be copied, since it belongs to this rank"):
            change(world)

    local.run(rank, 2)


def in_threads(function, count=4):
    """What each of some threads that call at the same time raises, or returns."""
    found, start = [], threading.Barrier(count)

    def body():
        start.wait()
        try:
            found.append(function())
        except Exception as error:
            found.append(error)

    threads = [threading.Thread(target=body) for _ in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found


def test_threads_take_turns():
    """Steps of four threads are as many steps of one."""
    bound, alone = bound_here(count=20_000), bound_here(count=20_000)

    def steps():
        for _ in range(5):
            bound.step()

    assert in_threads(steps) == [None] * 4
    for _ in range(20):
        alone.step()
    assert bound.steps == 20 and read(bound) == read(alone)


def test_no_call_within_another():
    """Gradients that take a step, or put other arrays in, while a step is under way; they may read."""
    program = step_program([("a", (2,))], "sgd", lr=0.5)
    calls = [lambda bound: bound.step(), lambda bound: bound.rebind({}), lambda bound: bound.copy_back()]

    def gradient(name, step):
        before = bound.read("a").tolist()
        for call in calls:
            with pytest.raises(RuntimeError, match=r"^Bound\.\w+: expected one call at a time, got one within another"):
                call(bound)
        assert bound.read("a").tolist() == before
        return np.ones(2, np.float32)

    bound = started(program, {"a": np.ones(2, np.float32)}, gradients=gradient)
    bound.step()
    bound.step()
    assert bound.read("a").tolist() == [0, 0] and bound.steps == 2


def test_a_communicator_has_one_thread():
    """Another one is refused before a step has done anything."""
    program = step_program([("a", (2,))], "sgd", lr=0.5, world_size=2)

    def rank(world):
        ones, array = (np.ones(2, np.float32) for _ in range(2))
        bound = started(program, {"a": ones.copy()}, comm=world, gradients={"a@GRAD": ones})
        for call in (bound.step, lambda: world.all_reduce(array), world.barrier, lambda: bound.rebind({})):
            (error,) = in_threads(call, 1)
            assert type(error) is CommError and "expected a call " in str(error)
        assert bound.steps == 0 and bound.read("a@GRAD").tolist() == [0, 0] and array.tolist() == [1, 1]
        bound.step()
        return bound.read("a").tolist()

    assert local.run(rank, 2) == [[0.5, 0.5]] * 2


def test_what_a_schedule_steps():
    """Steps and arrays are the schedule's then; the bound program refuses them."""
    with gpu.use("executor"):
        arrays = {name: gpu.to_device(np.ones(shape, np.float32)) for name, shape in PARAMS[:2]}
        bound = placement.bind_schedule(scheduled(), arrays).bound
        for call in (bound.step, lambda: bound.rebind({"a.w": gpu.to_device(np.zeros((5, 3), np.float32))})):
            with pytest.raises(RuntimeError, match="expected a program that nothing else steps, got one that"):
                call()
    assert bound.read("a.w").tolist() == np.ones((5, 3)).tolist() and bound.steps == 0
