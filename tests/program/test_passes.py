"""The laws of passes: no bit changes, nothing happens the second time, no scalar goes stale, padding leaks nowhere."""

import inspect
from dataclasses import replace
from functools import partial

import numpy as np
import program_cases as cases
import pytest
from hypothesis import given
from hypothesis import strategies as st

from refopt.comm import local
from refopt.cpu.coalesce import CHUNK
from refopt.program import Op, Program, Var, amp_program, passes, step_program

FORMS = st.sampled_from(["auto", "flat", "merged"])


# No bit changes.


@pytest.mark.clause("N11")
@given(program=cases.programs(), grouping=cases.GROUPINGS, form=FORMS, steps=st.integers(1, 3), seed=st.integers(0, 99),
       backend=st.sampled_from(["cpu", "cpu", "cpu", "gpu"]))
@cases.few(62)
def test_passes_change_no_bit(program, grouping, form, steps, seed, backend):
    """On 1 to 8 ranks, for any grouping and form, by kernels, too, which align to another size; and each pass alone."""
    name, flags = grouping
    cases.same_bits(cases.everything(form, name, **flags), program, steps, backend, seed=seed)
    cases.same_bits(partial(passes.fuse_optimizer, form=form), program, steps, seed=seed)


@pytest.mark.parametrize("form", ["flat", "merged"])
@pytest.mark.parametrize("early", [False, True])
def test_one_rank(machine, form, early):
    """The same on a GPU, where there is one."""
    program = cases.adam(cases.PARAMS[:4], config="amp", early=early, sparse=["a.w"])
    cases.same_bits(partial(passes.fuse_optimizer, form=form), program, 3, "gpu")


# Gradients that live from step to step, or that two updates have.


def delayed(ranks=1, lasting="ab"):
    """Updates by the gradients of the step before, of which some live on; they start at 0.25."""
    vars = [Var(name, (3,), "float32", persistable=True) for name in "ab"]
    vars += [Var(f"{x}@GRAD", (3,), "float32", persistable=x in lasting, initial=0.25) for x in "ab"]
    updates, made = {}, []
    for x in "ab":
        g = [f"{x}@GRAD"]
        updates[x] = Op("sgd", {"params": [x], "grads": g}, {"params": [x]}, {"lr": 1.0}, "optimize")
        made.append(Op("backward", {"params": [x]}, {"grads": g}, {}, "backward"))
        made += [Op("all_reduce", {"x": g}, {"out": g}, {"ranks": ranks}, "communicate")] if ranks > 1 else []
    before, after = ([op for x, op in updates.items() if (x in lasting) == early] for early in (True, False))
    return Program({var.name: var for var in vars}, (), (*before, *made, *after))


@pytest.mark.parametrize("backend", ["cpu", "gpu"])
@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("lasting", ["ab", "a"])
def test_gradients_that_live_on_move_with_what_is_in_them(ranks, lasting, backend):
    """If some gradients do and others do not, they stay out, with the reason."""
    program = delayed(ranks, lasting)
    for apply in (partial(passes.coalesce_gradients, memory_size=0), partial(passes.fuse_optimizer, form="flat")):
        cases.same_bits(apply, program, 2, backend)
        result = apply(program)
        result.program.check()
        assert bool(result.reasons) == (lasting == "a" or not result.applied)


def shared(slot):
    """Updates of two parameters that have one gradient, or one power of beta."""
    program = cases.adam(cases.PARAMS[:1])
    (first,) = (op for op in program.main if op.type == "adam")
    more = [replace(var, name=f"z{name}", initial=f"z{var.initial}" if isinstance(var.initial, str) else var.initial)
            for name, var in program.vars.items()]

    def other(slots):
        return {name: given if name == slot else [f"z{x}" for x in given] for name, given in slots.items()}

    again = first.replace(inputs=other(first.inputs), outputs=other(first.outputs))
    backward = [op.replace(inputs=other(op.inputs), outputs=other(op.outputs)) for op in program.main[:-1]]
    return program.with_vars(more).replace(main=[*program.main[:-1], *backward, first, again])


@pytest.mark.parametrize("form", ["auto", "flat", "merged"])
@pytest.mark.parametrize("slot", ["grads", "beta1_pow"])
def test_updates_that_share_a_variable(slot, form):
    """What they have is valid, and of the same bits; one op takes a gradient twice, and a scalar not."""
    program = shared(slot)
    program.check()
    result = passes.fuse_optimizer(program, form=form)
    result.program.check()
    assert result.applied == (slot == "grads" and form != "flat")
    name = program.main[-1].inputs[slot][0]
    assert form == "merged" or f"{slot}: 2 ops use {name!r}" in str(result.reasons)
    cases.same_bits(partial(passes.fuse_optimizer, form=form), program, 2)


# Groups.


@pytest.mark.parametrize("backend", ["cpu", "gpu"])
@pytest.mark.parametrize("form", ["flat", "merged"])
@pytest.mark.parametrize("ranks", [1, 2])
def test_padding_reaches_nothing(backend, form, ranks):
    """NaN in the padding of every buffer, of gradients, parameters, states and scalars: no tensor sees it."""
    program = cases.adam(cases.PARAMS[:4], world_size=ranks, early=form == "flat", epsilon=0.0)
    made = cases.everything(form)(program).program
    assert made.views or (form, ranks) == ("merged", 1)

    def poison(bound):
        for buffer, views in made.views.items():
            before = {name: bound.read(name) for name in views}
            whole = bound.arrays[buffer]
            nan = np.full(whole.shape, np.nan, whole.dtype)
            (whole.copy_to_device if backend == "gpu" else partial(np.copyto, whole))(nan)
            for name, value in before.items():
                view = bound.arrays[name]
                (view.copy_to_device if backend == "gpu" else partial(np.copyto, view))(value)
            assert np.isnan(bound.read(buffer)).sum() == whole.size - sum(x.size for x in before.values()) > 0

    assert cases.outcome(made, 3, backend, change=poison) == cases.outcome(program, 3)


@pytest.mark.parametrize("backend", ["cpu", "gpu"])
def test_moved_arrays_are_noticed(backend):
    """A reduction of a group needs its gradients side by side; after the error everything is as before."""
    program = cases.everything("merged")(cases.adam(world_size=2)).program

    def rank(world):
        bound = cases.bound_on(program, world, backend)
        bound.step()
        before = dict(bound.arrays)
        moved = bound.backend.full((7,), "float32", 0.0)
        with pytest.raises(ValueError, match=r"all_reduce: '.*': expected it at address 0x\w+, after '.*' with its pa"):
            bound.rebind({"a.b@GRAD": moved})
        assert dict(bound.arrays) == before
        bound.step()
        return cases.read(bound)

    assert cases.on_ranks(2, rank)[0] == cases.outcome(program, 2)


def test_gradients_side_by_side_that_are_in_no_buffer():
    memory = np.zeros(3 * CHUNK["bytes"], np.uint8)
    memory = memory[-memory.ctypes.data % CHUNK["bytes"] :][: 2 * CHUNK["bytes"]].view(np.float32).reshape(2, -1)
    vars = [Var(name, memory.shape[1:], "float32", persistable=True) for name in "ab"]
    op = Op("all_reduce", {"x": ["a", "b"]}, {"out": ["a", "b"]}, {"ranks": 1}, "communicate")
    program = Program({var.name: var for var in vars}, (), [op])
    with pytest.raises(ValueError, match=r"^all_reduce: 'a': expected a view of a buffer that startup makes"):
        local.run(lambda world: cases.started(program, dict(zip("ab", memory, strict=True)), comm=world), 1)


def test_arrays_moved_together_are_noticed():
    """Side by side as the gradients of a group are, but right behind the buffer."""
    program = cases.everything("merged")(cases.adam(world_size=2)).program

    def rank(world):
        bound = cases.bound_on(program, world, "cpu")
        names = next(op.inputs["x"] for op in program.main if op.type == "all_reduce" and len(op.inputs["x"]) > 1)
        whole = bound.arrays[program.buffer_of[names[0]]]
        views = {name: bound.arrays[name] for name in names}
        behind = np.lib.stride_tricks.as_strided(whole, (2 * whole.size,))[whole.size :]  # compared, not read
        places = {name: (view.ctypes.data - whole.ctypes.data) // view.itemsize for name, view in views.items()}
        starts = {name: place - min(places.values()) for name, place in places.items()}
        moved = {name: behind[starts[name] :][: view.size].reshape(view.shape) for name, view in views.items()}
        with pytest.raises(ValueError, match="expected a view of the buffer, got an array elsewhere"):
            bound.rebind(moved)
        return all(bound.arrays[name] is view for name, view in views.items())

    assert cases.on_ranks(2, rank) == [True, True]


# Powers of beta.


def test_scalars_that_differ_are_no_flat_step():
    """One of them would be taken for all; the merged form keeps them apart."""
    program = cases.adam(cases.PARAMS[:3])
    arrays = cases.arrays_of(program) | {"a.b_beta1_pow_acc_0": np.full(1, 0.25, np.float32)}
    flat, merged = (passes.fuse_optimizer(program, form=form).program for form in ("flat", "merged"))
    message = "adam: 'a.b_beta1_pow_acc_0': expected 0.69.*, as 'b.w_beta1_pow_acc_0' has, .*, got 0.25; the merged"
    with pytest.raises(ValueError, match=message):
        cases.bound_on(flat, arrays=arrays)
    left = []
    for made in (program, merged):
        bound = cases.bound_on(made, arrays={name: array.copy() for name, array in arrays.items()})
        bound.step()
        left.append(cases.read(bound))
    assert left[0] == left[1]


@pytest.mark.parametrize(("apply", "message"), [
    (passes.shard, r"pipeline: passes\[0\], shard: expected .* bound by functools.partial, got .* rank, degree, too"),
    (partial(passes.shard, rank=0), r"pipeline: passes\[0\], shard: .*, got one that needs degree, too"),
    (passes.preset("data_parallel"), r"pipeline: passes\[0\]: expected a function .*; write \* before a list of")])
def test_a_pipeline_of_what_is_no_function_of_a_program_alone(apply, message):
    with pytest.raises(TypeError, match=f"^{message}"):
        passes.pipeline(step_program([("a", (3,))], "sgd", lr=0.1), apply)


def of_a_program():
    """What there is in `passes` that takes a program first: its name, and how many more arguments have no default."""
    for name, function in vars(passes).items():
        first, *others = inspect.signature(function).parameters.values() if inspect.isfunction(function) else (None,)
        if name in passes.__all__ and first and first.name == "program":
            yield name, sum(x.default is x.empty and x.kind is x.POSITIONAL_OR_KEYWORD for x in others)


@pytest.mark.parametrize(("name", "others"), [*of_a_program()])
def test_what_is_no_program_is_refused(name, others):
    with pytest.raises(TypeError, match=f"^{name}: program: expected a Program, got None$"):
        getattr(passes, name)(None, *[2] * others)


@pytest.mark.parametrize("make", [step_program, amp_program])
def test_a_number_without_a_default_is_asked_for(make):
    with pytest.raises(TypeError, match=f"^{make.__name__}: lr: expected a number, got none"):
        make([("a", (3,))], "sgd")
