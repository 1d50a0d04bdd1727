"""A refused call of a program changes no byte, whatever came before the array that is bad; one array bound anew."""

import contextlib
import itertools

import numpy as np
import pytest
from laws.routines import OF_EACH_FAMILY
from program_cases import adam, numbers_of, put, started, values

from refopt import gpu
from refopt.catalog import ROUTINES
from refopt.comm import local
from refopt.program import bind, passes, placement, run, step_program

PARAMS = [("a", (3,)), ("b", (2, 2)), ("c", (5,))]
FUSED = {
    "plain": lambda program: program, "merged": lambda program: passes.fuse_optimizer(program, form="merged").program}
BACKENDS = pytest.mark.parametrize("backend", ["cpu", "gpu"])


def program_of(optimizer, form="plain"):
    optional = [slot.name for slot in ROUTINES[optimizer].slots if slot.optional and slot.name != "master_params"]
    return FUSED[form](step_program(PARAMS, optimizer, optional=optional, **numbers_of(optimizer)))


def brought(program):
    """An array for everything that lives from step to step, the last parameter's last."""
    kept = [var for var in program.vars.values() if var.persistable and var.shape != (-1,)]
    kept.sort(key=lambda var: var.name == "c")
    return {var.name: np.abs(values(var.dtype, var.shape, 1, *map(ord, var.name))) % 0.5 + 0.25 for var in kept}


def gradients():
    return {f"{name}@GRAD": values("float32", shape, 2, k) for k, (name, shape) in enumerate(PARAMS)}


def held(*mappings):
    """What some arrays hold."""
    every = [x for mapping in mappings for x in mapping.values()]
    return [(x.copy_to_host() if hasattr(x, "copy_to_host") else x).tobytes() for x in every if hasattr(x, "tobytes")
            or hasattr(x, "copy_to_host")]


BAD = {
    "shape": lambda x: np.ones(x.size + 1, x.dtype), "dtype": lambda x: x.astype(np.float64),
    "byte order": lambda x: x.astype(x.dtype.newbyteorder()), "objects": lambda x: x.astype(object),
    "texts": lambda x: x.astype(str), "records": lambda x: np.ones(x.shape, "f4,f4"), "None": lambda x: None,
    "masked": lambda x: np.ma.array(x, mask=x > 0), "gaps": lambda x: np.repeat(x.reshape(-1), 2)[::2].reshape(-1)[:-1],
    "number": lambda x: 1.0, "list": lambda x: x.tolist()}


@pytest.mark.parametrize(("call", "bad"), [*itertools.product(["bind", "rebind"], BAD), ("run", "shape")])
@BACKENDS
def test_a_bad_array_in_the_last_place(call, bad, backend, executor):
    """No other array has been touched, and what is bound goes on as it was."""
    program = program_of("adam")
    last = list(brought(program))[-1]
    given, good = put(backend, brought(program)), put(backend, brought(program))
    made = started(program, given, backend=backend, gradients=gradients())
    wrong = BAD[bad](brought(program)[last])
    if backend == "gpu" and isinstance(wrong, np.ndarray):
        with contextlib.suppress(TypeError):
            wrong = gpu.to_device(wrong)
    arrays = good | {last: wrong}
    before = held(given, good)
    calls = {"bind": lambda: bind(program, arrays, backend=backend), "rebind": lambda: made.rebind(arrays),
             "run": lambda: run(program, arrays, backend=backend, gradients=gradients())}
    expected = f"^{'rebind' if call == 'rebind' else 'bind'}: arrays: '{last}': expected"
    with np.errstate(all="raise"), pytest.raises((TypeError, ValueError), match=expected):
        calls[call]()
    assert held(given, good) == before
    made.step()
    fresh = put(backend, brought(program))
    run(program, fresh, backend=backend, gradients=gradients())
    assert held(given) == held(fresh)


@pytest.mark.parametrize(("last", "bad"), [*itertools.product("a", BAD), ("c", "shape"), ("c", "None")])
@BACKENDS
def test_a_bad_gradient(last, bad, backend, executor):
    """Gradients of a mapping are looked at before any is written, in whichever order the step makes them."""
    program = program_of("adam")
    arrays, grads = put(backend, brought(program) | {name: x * 0 for name, x in gradients().items()}), gradients()
    made = started(program, arrays, backend=backend, gradients=grads)
    made.step()
    right, before = grads[f"{last}@GRAD"], held(arrays)
    grads[f"{last}@GRAD"] = BAD[bad](right)
    with np.errstate(all="raise"), pytest.raises((TypeError, ValueError), match=f"^backward: .*'{last}@GRAD'"):
        made.step(lr=0.125)
    assert held(arrays) == before and made.steps == 1
    grads[f"{last}@GRAD"] = right
    made.step()  # with the learning rate that it had
    fresh = put(backend, brought(program))
    run(program, fresh, backend=backend, gradients=gradients(), steps=2)
    assert held({name: arrays[name] for name in fresh}) == held(fresh)


def test_a_bad_gradient_of_a_schedule(executor):
    """Nor a bad number; what comes next is as if neither had been."""
    placed = passes.reduce_to_owners(program_of("adam"), 2).program

    def rank(world):
        plan = placement.on_streams(passes.on_device(placed, world.rank))
        names = {name for name, var in plan.program.vars.items() if var.persistable}

        def scheduled():
            arrays = {name: gpu.to_device(x) for name, x in brought(program_of("adam")).items() if name in names}
            grads = gradients()
            return placement.bind_schedule(plan, arrays, comm=world, gradients=grads), arrays, grads

        (made, arrays, grads), (other, others, _) = scheduled(), scheduled()
        made.step()
        before, right = held(arrays, made.bound.arrays), dict(grads)
        grads |= {"a@GRAD": right["a@GRAD"][:-1], "c@GRAD": grads["c@GRAD"] + 1}
        for call in (lambda: made.step(lr=0.5), lambda: made.step_in(plan.tasks)):
            with pytest.raises(ValueError, match=r"^backward: 'a@GRAD': expected float32 of shape"):
                call()
        grads |= right
        with pytest.raises(ValueError, match="lr: expected"):
            made.step(lr=-1.0)
        assert held(arrays, made.bound.arrays) == before and made.bound.steps == 1
        for each in (made, other, other):
            each.step()
            each.synchronize()
        return held(arrays, made.bound.arrays) == held(others, other.bound.arrays)

    assert all(local.run(rank, 2))


@pytest.mark.parametrize("bad", ["shape", "dtype", "objects"])
def test_a_bad_array_on_the_last_rank(bad):
    """It is refused there, no rank has changed a byte, and the others say why they cannot go on."""
    program, kept = adam(PARAMS, world_size=3), {}

    def rank(world):
        arrays = brought(program)
        if world.rank == 2:
            arrays["c"] = BAD[bad](arrays["c"])
        kept[world.rank] = arrays, held(arrays) if bad != "objects" else None
        bind(program, arrays, comm=world, gradients=gradients()).startup()

    with pytest.raises((TypeError, ValueError), match=r"^bind: arrays: 'c': expected"):
        local.run(rank, 3)
    assert all(before is None or held(arrays) == before for arrays, before in kept.values()) and len(kept) == 3


def is_quick(routine, form, backend):
    """Of all routines one op for each tensor, with NumPy; else what one routine of each family does."""
    return routine in OF_EACH_FAMILY if backend == "gpu" and form == "plain" else (
        form == "plain" or routine.name in ("adam", "lamb"))


@pytest.mark.parametrize(("optimizer", "form", "backend"), [
    pytest.param(name, form, backend, marks=[pytest.mark.slow] * (not is_quick(routine, form, backend)))
    for name, routine in ROUTINES.items() for form in FUSED for backend in ("cpu", "gpu")
])
def test_each_array_bound_anew(optimizer, form, backend, executor):
    """After a step, with what it has left and its numbers: the next one is that of a program that is bound afresh."""
    program = program_of(optimizer, form)
    names, options = list(brought(program)), {"backend": backend, "gradients": gradients()}
    made = started(program, put(backend, brought(program)), **options)
    made.step(lr=0.125)
    for name in [*(n for n in names if n.startswith("c")), names[0]]:
        now = {other: made.read(other) for other in names}
        now[name] = now[name] * np.asarray(0.5, now[name].dtype)
        fresh = started(program, put(backend, now), **options)
        made.rebind(put(backend, {name: now[name]}))
        made.step()
        fresh.step(lr=0.125)
        for other in names:
            assert made.read(other).tobytes() == fresh.read(other).tobytes(), (name, other)
