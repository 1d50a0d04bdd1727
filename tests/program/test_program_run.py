"""Running a program is calling the routines and the collectives; what is wrong with arrays, gradients and ranks."""

import re

import needs
import numpy as np
import pytest
from program_cases import PARAMS, adam, arrays_of, bound_on, gradients_of, numbers_of, outcome, put, started, values

from refopt import cpu, gpu
from refopt.comm import CommError, local
from refopt.program import Op, Program, Var, amp_program, bind, passes, placement, run, step_program
from refopt.program.gpu import mixed_precision, sparse

# Running one.


@pytest.mark.clause("N10")
@pytest.mark.parametrize("backend", ["cpu", "gpu"])
@pytest.mark.parametrize("config", ["fp32", "amp"])
@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_a_step_is_the_sum_in_rank_order_then_the_mean_then_the_update(ranks, config, backend):
    """Written out: every gradient added from rank to rank, multiplied by 1 / W, and given to the routine."""
    program = adam(PARAMS[:3], world_size=ranks, config=config)
    got = outcome(program, 2, backend)
    arrays = {name: values(program.vars[name].dtype, shape, 0, *map(ord, name)) for name, shape in PARAMS[:3]}
    for name, p in arrays.items():
        m, u = (np.zeros(p.shape, np.float32) for _ in range(2))
        b1, b2 = np.array([0.7], np.float32), np.array([0.8], np.float32)
        master = p.astype(np.float32) if config == "amp" else None
        for step in range(2):
            total = gradients_of(program, 0)(f"{name}@GRAD", step).astype(np.float32)
            for rank in range(1, ranks):
                total = total + gradients_of(program, rank)(f"{name}@GRAD", step).astype(np.float32)
            total = total.astype(p.dtype)
            if ranks > 1:
                total = (np.float32(1 / ranks) * total.astype(np.float32)).astype(p.dtype)
            cpu.adam(p, total, m, u, b1, b2, master_param=master, **numbers_of("adam"))
        for suffix, x in (("", p), ("_moment1_0", m), ("_moment2_0", u), ("_beta1_pow_acc_0", b1)):
            assert got[name + suffix] == x.tobytes(), name + suffix


@pytest.mark.parametrize("backend", ["cpu", "gpu"])
@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("ranks", [1, 3])
def test_sparse_gradients(ranks, dtype, optimizer, backend):
    """Rows added to a dense gradient of zeros, rank after rank and row after row, then as any gradient."""
    program = step_program([("e", (2, 3))], optimizer, world_size=ranks, sparse=["e"], grad_dtype=dtype,
                           **numbers_of(optimizer))
    got = outcome(program, 3, backend, seed=1)
    dense = step_program([("e", (2, 3))], optimizer, **numbers_of(optimizer))
    bound = started(dense, arrays_of(dense, 1), gradients=None)
    for step in range(3):
        total = bound.arrays["e@GRAD"]
        total[...] = 0
        for rank in range(ranks):
            rows, added = gradients_of(program, rank, 1)("e@GRAD", step)
            for row, x in zip(rows, added, strict=True):
                total[row] = total[row] + x.astype(np.float32)
        if ranks > 1:
            total[...] = np.float32(1 / ranks) * total
        bound.step(**({"lr": 0.25} if step == 2 else {}))
    assert got == {name: bound.read(name).tobytes() for name in got}


def test_no_rank_need_have_rows():
    program = step_program([("e", (2, 1))], "sgd", world_size=2, sparse=["e"], lr=1.0)

    def rank(world):
        arrays, none = {"e": np.ones((2, 1), np.float32)}, (np.zeros(0, np.int64), np.zeros((0, 1), np.float32))
        run(program, arrays, comm=world, gradients={"e@GRAD": none})
        return arrays["e"].tolist()

    assert local.run(rank, 2) == [[[1.0], [1.0]]] * 2


@pytest.mark.parametrize("backend", ["cpu", "gpu"])
@pytest.mark.parametrize(("value", "error", "message"), [
    (np.zeros(3), TypeError, "expected a pair of row numbers and rows, got ndarray"),
    ((np.zeros(2, np.int32), np.zeros((2, 3), np.float32)), TypeError, r"\[0\]: expected int64 of one dimension, got"),
    ((np.zeros(2, np.int64), np.zeros((2, 3), np.float16)), TypeError, r"\[1\]: expected float32, got float16"),
    ((np.zeros(2, np.int64), np.zeros((1, 3), np.float32)), ValueError, r"\[1\]: expected shape \(2, 3\), a row for"),
    ((np.array([0, 4]), np.zeros((2, 3), np.float32)), ValueError, r"\[0\]\[1\]: expected a row from 0 to 3, got 4"),
    ((np.array([0, -1]), np.zeros((2, 3), np.float32)), ValueError, r"\[0\]\[1\]: expected a row from 0 to 3, got -1"),
    ((np.zeros(2, np.int64), np.zeros((2, 6), np.float32)[:, ::2]), ValueError, r"\[1\]: expected a C-contiguous arr"),
])
def test_bad_rows(value, error, message, backend):
    program = step_program([("e", (4, 3))], "sgd", sparse=["e"], lr=1.0)
    e = np.zeros((4, 3), np.float32)
    arrays = {"e": gpu.to_device(e) if backend == "gpu" else e}
    if backend == "gpu" and "contiguous" in message:
        # What is copied to the device is contiguous there, and fits.
        run(program, arrays, backend=backend, gradients={"e@GRAD": (value[0], value[1].copy())})
        return
    with pytest.raises(error, match=rf"backward: 'e@GRAD': {message}"):
        run(program, arrays, backend=backend, gradients={"e@GRAD": value})


@pytest.mark.clause("N3")
@pytest.mark.parametrize(("module", "source", "target"), [
    (sparse, "bfloat16", "float32"), (sparse, "float32", "float64"), (mixed_precision, "float16", "float32"),
    (mixed_precision, "float32", "float64"), (mixed_precision, "bfloat16", "bfloat16")])
def test_sums_and_scatter_adds_are_exact(module, source, target):
    """One rounded addition for each element, on the GPU too."""
    needs.compiler()
    kernel = module.adder(source, target)
    ptx = kernel.ptx(["int64"] * kernel.function.__code__.co_argcount)
    floating = re.findall(r"\b((?:add|sub|mul|div|fma|mad)\.\S*f(?:16|32|64))", ptx)
    assert set(floating) == {"add.rn.f64" if target == "float64" else "add.rn.f32"}


def test_gradients_are_written_where_they_are():
    """Into the array, and so through the views of a buffer; from a mapping, a function, or by the caller."""
    program = passes.fuse_optimizer(step_program(PARAMS[:2], "sgd", lr=0.5)).program
    given = {name: values("float32", shape, 5) for name, shape in PARAMS[:2]}
    ends = []
    for gradients in ({f"{n}@GRAD": g for n, g in given.items()}, lambda n, _: given[n.removesuffix("@GRAD")], None):
        bound = started(program, arrays_of(program), gradients=gradients)
        for name, g in given.items() if gradients is None else ():
            bound.arrays[f"{name}@GRAD"][...] = g
        buffer = bound.arrays["@FUSEDVAR@_sgd_Grad_a.b@GRAD"]
        bound.step()
        assert all(np.shares_memory(bound.arrays[f"{name}@GRAD"], buffer) for name in given)
        assert buffer[:7].tobytes() == given["a.b"].tobytes()
        ends.append(bound.read("a.w").tobytes())
    assert len(set(ends)) == 1


@pytest.mark.parametrize("backend", ["cpu", "gpu"])
def test_run_leaves_the_outcome_in_the_arrays_that_were_given(backend):
    """Though it has been computed in buffers."""
    program = adam(PARAMS[:2])
    for each in (program, passes.fuse_optimizer(program).program):
        arrays = put(backend, arrays_of(program))
        bound = run(each, arrays, backend=backend, gradients=gradients_of(program, 0), steps=2, lr=0.125)
        assert bound.steps == 2
        for name, array in arrays.items():
            now = array.copy_to_host() if backend == "gpu" else array
            assert now.tobytes() == bound.read(name).tobytes() != arrays_of(program)[name].tobytes()


@pytest.mark.parametrize("backend", ["cpu", "gpu"])
@pytest.mark.parametrize("form", ["flat", "merged"])
@pytest.mark.parametrize("gate", ["found_inf", "grad_factor"])
def test_gates(gate, form, backend):
    """A flag and a factor for all: kept through the passes; a step that is skipped leaves scalars as they are."""
    plain = adam(PARAMS[:2])
    main = [op.replace(inputs={**op.inputs, gate: [gate]}) if op.type == "adam" else op for op in plain.main]
    program = plain.with_vars([Var(gate, (1,), "float32", persistable=True)]).replace(main=main)
    made = passes.fuse_optimizer(program, form=form).program
    (op,) = (op for op in made.main if op.role == "optimize")
    assert op.inputs[gate] == (gate,)

    def end(program, number):
        bound = bound_on(program, arrays=arrays_of(plain) | {gate: np.full(1, number, np.float32)}, backend=backend)
        bound.step()
        return {name: bound.read(name).tobytes() for name in plain.vars if plain.vars[name].persistable}

    other = 0.0 if gate == "found_inf" else 0.5
    assert end(made, 1.0) == end(program, 1.0)
    assert end(made, other) == end(program, other) != end(made, 1.0)
    if gate == "found_inf":
        before = bound_on(plain)
        assert end(made, 1.0) == {
            name: before.read(name).tobytes() for name in plain.vars if plain.vars[name].persistable}


def test_numbers_of_a_step():
    """They hold from then on, for every op that has them; none is changed if one of them is bad."""
    bound = bound_on(step_program(PARAMS[:2], {"a.w": "sgd", "a.b": "momentum"}, lr=0.5, mu=0.5))
    for numbers, error, message in (
        (dict(beta1=0.1), TypeError, "beta1: expected one of dampening, l2_decay, lr, mu, rescale_grad, seed, got"),
        (dict(mu=0.25, lr=-1.0), ValueError, "merged_sgd: lr: expected a finite float32 at least 0, got -1.0"),
    ):
        with pytest.raises(error, match=message):
            bound.step(**numbers)
    assert bound.steps == 0
    bound.step(lr=0.125)
    bound.step(mu=0.25)
    other = bound_on(step_program(PARAMS[:2], {"a.w": "sgd", "a.b": "momentum"}, lr=0.125, mu=0.5))
    other.step()
    other.step(mu=0.25)
    assert bound.read("a.w").tobytes() == other.read("a.w").tobytes()
    assert bound.read("a.b").tobytes() == other.read("a.b").tobytes()
    double = bound_on(step_program(PARAMS[:1], "sgd", config="fp64", grad_dtype="float32", lr=0.5))
    double.step(lr=1e300)  # a number of fp64, though its gradient is fp32
    for program in (Program({}), step_program([], "sgd", lr=0.5)):
        with pytest.raises(TypeError, match="step: lr: expected one of none, got a number"):
            bound_on(program).step(lr=0.5)
    early = bound_on(adam(PARAMS[:1], early=True))
    with pytest.raises(TypeError, match=r"step: beta1: expected one of epsilon, lr, rescale_grad, seed"):
        early.step(beta1=0.5)


def test_lists_of_numbers_stay_the_callers(executor):
    """Of a step, of a checkpoint that is made, and of one that is loaded."""
    program = step_program(PARAMS[:1], "sgd", lr=0.5)
    plan, there = placement.on_streams(program), put("gpu", arrays_of(program))
    for bound in (bound_on(program), placement.bind_schedule(plan, there)):
        rates = [0.25]
        bound.step(lr=rates)
        saved = bound.state_dict()
        rates[0] = 9.0
        assert saved["numbers"] == bound.state_dict()["numbers"] == {"lr": [0.25]}
        for _ in range(2):
            saved["numbers"]["lr"][0] = 9.0
            assert bound.state_dict()["numbers"] == {"lr": [0.25]}
            bound.load(saved := bound.state_dict())


@pytest.mark.parametrize(("change", "options", "error", "message"), [
    (lambda a: a.pop("a.w"), {}, ValueError, "arrays: 'a.w': expected an array, since it has no initial value, got"),
    (lambda a: a.update({"x": a["a.w"]}), {}, ValueError, "arrays: expected names of dense tensors of the program"),
    (lambda a: a.update({"a.w": a["a.w"].T}), {}, ValueError, r"arrays: 'a.w': expected shape \(5, 3\), got \(3, 5\)"),
    (lambda a: None, dict(backend="gpu"), TypeError, "arrays: 'a.w': expected a device array, got a NumPy array")])
def test_bad_arguments_of_bind(change, options, error, message):
    program = adam(PARAMS[:1])
    arrays = arrays_of(program)
    change(arrays)
    with pytest.raises(error, match=rf"^bind: {message}"):
        bind(program, arrays, **options)


def test_order_of_calls_and_bad_gradients():
    program = adam(PARAMS[:1])
    bound = bind(program, arrays_of(program), gradients={})
    with pytest.raises(RuntimeError, match=r"Bound.step: expected startup\(\) before it, got none"):
        bound.step()
    bound.startup()
    with pytest.raises(RuntimeError, match=r"Bound.startup: expected to be called once"):
        bound.startup()
    with pytest.raises(ValueError, match=r"backward: gradients: expected an entry for 'a.w@GRAD', got none"):
        bound.step()
    for value, error, message in (
        (None, TypeError, "gradients: 'a.w@GRAD': expected an array, got None"),
        (np.zeros(3, np.float32), ValueError, r"'a.w@GRAD': expected float32 of shape \(5, 3\), got float32 of shape"),
        (np.zeros((5, 3)), ValueError, r"'a.w@GRAD': expected float32 of shape \(5, 3\), got float64 of shape"),
    ):
        bound = started(program, arrays_of(program), gradients=lambda name, step, value=value: value)
        with pytest.raises(error, match=rf"backward: {message}"):
            bound.step()
    with pytest.raises(ValueError, match=r"bind: matmul: expected a type that can be run"):
        bind(Program({}, (), (Op("matmul"),)), {})
    with pytest.raises(ValueError,
                       match=r"bind: comm: expected a communicator of 2 ranks, as broadcast needs, got None"):
        bind(adam(PARAMS[:1], world_size=2), {})


# With other ranks.


def test_ranks_agree_on_their_collectives():
    """Those whose programs do not fit together say so, before anything is done."""

    def rank(world):
        program = adam(PARAMS[: 2 + (world.rank == 1)], world_size=3).replace(startup=())
        bind(program, arrays_of(program), comm=world)

    message = r"agree: call 0: ranks 0 and 2 have main all_reduce of a.b@GRAD: float32 \(7,\), rank 1 has main all_red"
    with pytest.raises(CommError, match=message):
        local.run(rank, 3)


def without_update(program):
    """The program in which nothing changes the parameter a.w."""
    return program.replace(main=[op for op in program.main if "a.w" not in op.outputs.get("params", ())])


@pytest.mark.parametrize(("make", "of", "other", "message"), [
    (step_program, {}, {"optimizer": "adamw"}, "a.w: update: ranks 0 and 2 have adam, rank 1 has adamw"),
    (step_program, {}, {"lr": 0.25}, "a.w: lr: ranks 0 and 2 have 0.5, rank 1 has 0.25"),
    (step_program, {}, {"lr": {"a.w": 0.5, "a.b": 0.25}}, "a.b: lr: ranks 0 and 2 have 0.5, rank 1 has 0.25"),
    (step_program, {}, {"beta2": 0.5}, "a.w: beta2: ranks 0 and 2 have 0.999, rank 1 has 0.5"),
    (step_program, {}, {"decay": "decoupled"}, "a.w: decay: ranks 0 and 2 have l2, rank 1 has decoupled"),
    (step_program, {}, {"optional": ["moment2_max"]}, "a.w: moment2_max: ranks 0 and 2 have none, rank 1 has float32"),
    (step_program, {"optimizer": "muon", "mu": 0.5}, {"coefficients": (3.0, -4.0, 2.0)},
     "a.w: coefficients: ranks 0 and 2 have"),
    (amp_program, {"max_norm": 1.0}, {"max_norm": 2.0}, "finish_check: max_norm: ranks 0 and 2 have 1.0, rank 1 has"),
    (amp_program, {}, {"scaling": {"incr_ratio": 4.0}}, "update_loss_scaling: incr_ratio: ranks 0 and 2 have 2.0, "),
    (amp_program, {}, {"loss_scale": 8.0}, "loss_scaling: initial: ranks 0 and 2 have 32768.0, rank 1 has 8.0"),
    (without_update, {}, {}, "a.w: update: ranks 0 and 2 have adam, rank 1 has none")])
def test_ranks_agree_on_their_updates(make, of, other, message):
    """Where parameters would drift apart, before anything is done; and whatever passes have made of the programs."""
    alone = make if make is without_update else lambda program: program
    make = step_program if make is without_update else make

    def program(world):
        options = {"optimizer": "adam", "lr": 0.5, **of, **(other if world.rank == 1 else {})}
        made = make([("a.w", (4, 3)), ("a.b", (2, 3))], world_size=3, **options)
        return alone(made) if world.rank == 1 else made

    def rank(world, *chain):
        made = passes.pipeline(program(world), *chain).program
        bind(made, arrays_of(made), comm=world)

    for chain in ((), passes.preset("data_parallel", 0, 3)):
        with pytest.raises(CommError, match=re.escape(f"agree: {message}")):
            local.run(lambda world, chain=chain: rank(world, *chain), 3)


def test_ranks_may_update_alike_by_other_ops():
    """Numbers may be integers, and passes may differ that do not change the calls."""
    def rank(world):
        made = adam(PARAMS, world_size=2, lr=1 if world.rank else 1.0)
        made = passes.fuse_optimizer(made, form="merged").program if world.rank else made
        bind(made, arrays_of(made), comm=world)

    local.run(rank, 2)


def test_a_step_that_raises_is_not_counted():
    seen = []

    def gradient(name, step):
        seen.append(step)
        return np.ones(2 if len(seen) > 1 else 3, np.float32)  # the first is refused

    bound = started(step_program([("a", (2,))], "sgd", lr=0.5), {"a": np.ones(2, np.float32)}, gradients=gradient)
    with pytest.raises(ValueError):
        bound.step()
    bound.step()
    assert seen == [0, 0] and bound.steps == 1


def test_a_refused_drop_drops_nothing():
    bound = bound_on(step_program(PARAMS[:1], "sgd", lr=0.5))
    with pytest.raises(ValueError, match=r"Bound\.drop: expected a variable of the program, got 'nothing'"):
        bound.drop([PARAMS[0][0], "nothing"])
    assert PARAMS[0][0] in bound.arrays
