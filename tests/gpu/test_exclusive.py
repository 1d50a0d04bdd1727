"""Plans, and what else is bound to arrays on a device: calls of several threads take turns, and there are no copies."""

import copy
import gc
import pickle
import threading
import time

import numpy as np
import pytest

from refopt import cpu, gpu, simt
from refopt.catalog import ROUTINES
from refopt.oracle.exact.build import make, step_of
from refopt.oracle.exact.cases import arguments, assert_same

F = np.float32
TURNS = 6


@pytest.fixture
def slow(executor, monkeypatch):
    """Launches and uploads after which another thread gets a chance to come between."""
    def slowed(name):
        make_one = getattr(type(executor), name)

        def made(*args):
            run = make_one(*args)

            def late(*given):
                answer = run(*given)
                time.sleep(0.002)
                return answer

            return late

        monkeypatch.setattr(type(executor), name, made)

    slowed("sequence")
    slowed("filler")
    slowed("uploader")


def together(*functions):
    """Call each of some functions some times, each in a thread of its own; raises what one of them raised."""
    errors, begin = [], threading.Barrier(len(functions))

    def calls(function):
        begin.wait()
        try:
            for _ in range(TURNS):
                function()
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=calls, args=(function,)) for function in functions]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]


def bound(executor, routine, **options):
    """A plan over a case on the executor, the case, and its arrays there."""
    case = make(routine, [9, 300])
    slots = {name: xs and [executor.to_device(x) for x in xs] for name, xs in case.slots.items()}
    positional, named = arguments(routine, slots)
    return gpu.plan(routine.name, *positional, **named, **step_of(routine), **options), case, slots


def left(case, slots):
    """What the steps left of the arrays of a case."""
    return {name: [x.copy_to_host() for x in slots[name] or ()] or xs for name, xs in case.lists().items()}


@pytest.mark.parametrize("name", ["adam", "novograd", "lars_momentum",
                                  *(pytest.param(x, marks=pytest.mark.slow) for x in ("radam", "lamb"))])
def test_steps_of_two_threads(executor, slow, name):
    """As many steps as both take, in whatever order: scalars, norms and sums go from one to the next."""
    options = {"form": "carried_norm"} if name == "lars_momentum" else {}
    step, case, slots = bound(executor, ROUTINES[name], **options)
    together(step, step)
    for _ in range(2 * TURNS):
        positional, named = arguments(case.routine, case.slots)
        getattr(cpu, case.routine.merged_name)(*positional, **named, **step_of(case.routine))
    assert_same(case.outcome(), left(case, slots), "threads")


def test_a_number_is_that_of_its_step(executor, slow):
    x, g = (executor.to_device(np.full(3, value, F)) for value in (0, 1))
    step = gpu.plan("sgd", [x], [g])
    together(lambda: step(lr=0.5), lambda: step(lr=0.25))
    assert (x.copy_to_host() == -0.75 * TURNS).all()
    target = executor.to_device(np.zeros(3, F))
    cast, seen = gpu.cast_plan([g], [target]), []
    together(lambda: cast(scale=2.0), lambda: cast(scale=4.0), lambda: seen.append(target.copy_to_host()[0]))
    assert set(seen) <= {0, 2, 4}
    made = gpu.coalesce_tensor([g])
    other = executor.to_device(np.full(3, 7, F))
    together(lambda: made.gather([g]), lambda: made.gather([other]))
    assert made.views[0].copy_to_host()[0] in (1, 7)


@pytest.mark.parametrize("way", ["rebind", "move"])
def test_rebinding_while_another_thread_steps(executor, slow, way):
    """Each step is with the arrays before or after, never with some of each."""
    params = [executor.to_device(np.zeros(3, F)) for _ in range(2)]
    grads = [executor.to_device(np.full(3, value, F)) for value in (1, 2)]
    step = gpu.plan("sgd", params[:1], grads[:1], lr=1.0)

    def turn():
        for k in (1, 0):
            if way == "rebind":
                step.rebind(params=[params[k]], grads=[grads[k]])
            else:
                step.move("params", [params[k].address], [params[k]])

    together(step, turn)
    first, second = (x.copy_to_host()[0] for x in params)
    assert first + (second / 2 if way == "rebind" else second) == -TURNS


BOUND = {"merged_sgd": lambda x, *_, **how: gpu.plan("sgd", x[:1], x[1:], lr=1.0, **how),
         "merged_cast": lambda x, *_, **how: gpu.cast_plan(x[:1], x[1:], scale=2.0, **how),
         "check_gradients": lambda x, *_, **how: gpu.gradient_check(x, **how),
         "update_loss_scaling": lambda x, ones, counts, **how: gpu.loss_scaling(*ones, *counts, **how),
         "coalesce_tensor": lambda x, *_, **how: gpu.coalesce_tensor(x, **how)}


def made(executor, name, **how):
    """One of each class that is bound to arrays, which nobody else has."""
    x = [executor.to_device(np.ones(3, F)) for _ in range(2)]
    counts = [executor.to_device(np.zeros(1, np.int32)) for _ in range(2)]
    return BOUND[name](x, [executor.to_device(np.ones(1, F)) for _ in range(2)], counts, **how)


@pytest.mark.parametrize("name", BOUND)
def test_arrays_are_kept_alive_and_the_stream_is_kept_to(executor, frozen, name):
    stream = simt.cuda.stream()
    with simt.observe(count=()) as log:
        one = made(executor, name, stream=stream)
        gc.collect()
        if name == "coalesce_tensor":
            one.gather([executor.to_device(np.full(3, 5, F)) for _ in range(2)])
            assert one.buffer.copy_to_host()[64] == 5
        else:
            one()
    assert log.launches and {launch.stream for launch in log.launches} == {stream}
    with pytest.raises(TypeError, match=f"^{name}: stream: expected a stream of the executor or its handle, got 'a'$"):
        made(executor, name, stream="a")


@pytest.mark.parametrize("way", [copy.copy, copy.deepcopy, pickle.dumps, lambda x: copy.deepcopy({"a": [x]})])
def test_no_copies(executor, way):
    for one in (*(made(executor, name) for name in BOUND), cpu.coalesce_tensor([np.ones(3, F)])):
        with pytest.raises(TypeError, match=rf"^{type(one).__name__}: cannot be copied, since "):
            way(one)
