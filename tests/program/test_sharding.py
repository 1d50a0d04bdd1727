"""The laws of optimizer sharding and of the cast in the optimizer's stage: no bit changes, on no rank, in no step."""

import math
from functools import partial

import numpy as np
import pytest
import sharding_cases as cases
from hypothesis import given
from hypothesis import strategies as st
from program_cases import few, numbers_of

from refopt import cpu, gpu
from refopt.comm import local
from refopt.program import gradient_of, passes


def unsharded(program):
    """Every rank has everything, and copies; nobody owns anything alone."""
    made = passes.optimize_cast(program).program
    made.check()
    return made


def copies_match(program, states):
    """Each copy is the parameter, rounded once."""
    for state in states:
        for name, x in state.items():
            if name.endswith(".cast_fp16"):
                assert x.tobytes() == state[name.removesuffix(".cast_fp16")].astype(np.float16).tobytes(), name


# The step that passes start from.


def test_a_step_in_order():
    """Forward, then backward from the last parameter; sums, gradient check, loss scale, updates."""
    program = cases.step(cases.PARAMS[:2], world_size=2, accumulate=2, recompute=True, fp32=["a.b"])
    micro = [("cast", "a.w.cast_fp16"), ("forward", "a.w.cast_fp16"), ("forward", "a.b"), ("backward", "a.b@GRAD"),
             ("cast", "a.w.cast_fp16.subprog_0"), ("backward", "a.w.cast_fp16@GRAD@MICRO_0"), ("cast", "a.w@GRAD")]
    again = [*micro[:3], ("backward", "a.b@GRAD@MICRO_1"), ("sum", "a.b@GRAD"), micro[4],
             ("backward", "a.w.cast_fp16@GRAD@MICRO_1"), ("cast", "a.w@GRAD@MICRO_1"), ("sum", "a.w@GRAD")]
    reduced = [(kind, f"{name}@GRAD") for name in ("a.b", "a.w") for kind in ("all_reduce", "scale")]
    last = [("check_gradients", "sums"), ("finish_check", "grad_factor"), ("update_loss_scaling", "loss_scaling"),
            ("adam", "a.w"), ("adam", "a.b")]
    assert [(op.type, (op.writes or op.reads)[0]) for op in program.main] == [*micro, *again, *reduced, *last]
    assert {op.layer for op in program.main if op.type in ("forward", "all_reduce", "scale", "adam")} == {"a"}
    (average,) = (op for op in cases.step(world_size=2, reduced="float16").main if op.type == "scale")
    assert len(average.reads) == len(cases.PARAMS) and average.layer is None, "it is of several layers"
    assert gradient_of("a.w", 1) == "a.w.cast_fp16@GRAD@MICRO_1"
    assert [gradient_of("a.b", k, fp32=True) for k in (0, 1)] == ["a.b@GRAD", "a.b@GRAD@MICRO_1"]


@pytest.mark.parametrize("recompute", [False, True])
@pytest.mark.parametrize("max_norm", [None, 0.5])
@pytest.mark.parametrize(("ranks", "accumulate"), [(1, 1), (1, 2), (3, 1), (2, 3)])
def test_a_step_written_out(ranks, accumulate, max_norm, recompute):
    """Cast, gradients in fp16, summed in fp32 over micro-steps, then ranks; averaged, checked, updated."""
    params = cases.PARAMS[:3]
    program = cases.step(params, world_size=ranks, accumulate=accumulate, fp32=["a.b"], max_norm=max_norm,
                   recompute=recompute)
    got = cases.history([program] * ranks, 2)[ranks - 1]
    p = cases.brought(program, 0)
    state = {name: [np.zeros(x.shape, np.float32) for _ in range(2)] for name, x in p.items()}
    powers = {name: [np.array([b], np.float32) for b in (0.7, 0.8)] for name in p}
    scale, good, bad = np.array([8], np.float32), np.array([0], np.int32), np.array([0], np.int32)
    reads = {op.outputs["grads"][0]: op.inputs["params"][0] for op in program.main if op.type == "backward"}

    class Reader:
        def read(self, name):
            name, cast, _ = name.partition(".cast_fp16")
            return scale if name == "loss_scaling" else p[name].astype(np.float16) if cast else p[name]

    for k in range(2):
        total = {}
        for rank in range(ranks):
            gradient = cases.gradients_on([Reader()], program, rank)
            for name in p:
                parts = [n for n in reads if reads[n] == name or reads[n].startswith(f"{name}.cast")]
                assert len(parts) == accumulate
                own = gradient(parts[0], k).astype(np.float32)
                for part in parts[1:]:
                    own = own + gradient(part, k).astype(np.float32)
                total[name] = own if rank == 0 else total[name] + own
        grads = [np.float32(1 / (ranks * accumulate)) * total[name] for name, _ in params]
        check = cpu.check_gradients(grads, loss_scale=scale, max_norm=max_norm or np.inf)
        for (name, _), g in zip(params, grads, strict=True):
            cpu.adam(p[name], g, *state[name], *powers[name], grad_factor=check.grad_factor, **numbers_of("adam"))
        cpu.update_loss_scaling(check.found_inf, scale, good, bad, **cases.SCALING)
        if max_norm:
            assert got[k + 1]["grad_norm"].tobytes() == check.grad_norm.tobytes()
        assert got[k + 1]["loss_scaling"] == scale
        for name in p:
            assert got[k + 1][name].tobytes() == p[name].tobytes(), name
            assert got[k + 1][f"{name}_moment2_0"].tobytes() == state[name][1].tobytes()
            assert got[k + 1][f"{name}_beta1_pow_acc_0"].tobytes() == powers[name][0].tobytes()


@pytest.mark.parametrize(("options", "error", "message"), [
    (dict(accumulate=2**20 + 1), ValueError, "accumulate: expected an integer from 1 to 1048576, got 1048577"),
    (dict(fp32=[*"zyxw"]), ValueError, "fp32: expected names of params, got 'w'"),
    (dict(scaling=dict.fromkeys("zyxw", 1)), TypeError, "scaling: expected some of incr_every_n_steps, .*, got 'w'"),
    *((dict(loss_scale=x), ValueError, f"loss_scale: expected a finite float32 above 0, got {x!r}".replace("+", r"\+"))
      for x in (0.0, math.inf, 1e300))])
def test_bad_arguments_of_amp_program(options, error, message):
    with pytest.raises(error, match=rf"^amp_program: {message}"):
        cases.step(**options)


@pytest.mark.parametrize("name", [
    "w.cast_fp16", "w.cast_fp16.subprog_0", "w@GRAD@MICRO_1", "w.cast_fp16@GRAD@MICRO_0",
    "odd", "sums", "found_inf", "grad_factor", "grad_norm", "loss_scaling", "good_steps", "bad_steps"])
def test_names_that_collide(name):
    """A parameter named like what the program makes for another one, or for the whole step."""
    expected = f"^amp_program: params: expected names that are unique in the program, got {name!r}$"
    for params in ([("w", (2,)), (name, (2,))], [(name, (2,)), ("w", (2,))]):
        with pytest.raises(ValueError, match=expected):
            cases.step(params, max_norm=1.0, accumulate=2, recompute=True)


def test_names_that_do_not_collide():
    """What is not made without a clip, copies and micro-steps is free."""
    params = [(name, (2,)) for name in ("w", "grad_norm", "w.cast_fp16", "w@GRAD@MICRO_1")]
    assert cases.step(params, fp32=["w"]).counts()["adam"] == 4


# No bit changes.


# By the greedy rule, of tensors that are alike, where a mix-up shows in the values alone.
SHARED = {"paddle": cases.PARAMS, "greedy": [("a", (4, 2)), ("b", (8,)), ("c", (2, 4)), ("d", (8, 1)), ("e", (8,))]}
QUICK = (1, "paddle"), (2, "greedy"), (3, "paddle"), (3, "greedy"), (8, "paddle")


@pytest.mark.parametrize(("ranks", "rule"), [
    pytest.param(ranks, rule, marks=[pytest.mark.slow] * ((ranks, rule) not in QUICK))
    for ranks in range(1, 9) for rule in ("paddle", "greedy")
])
def test_shards_have_the_bits_of_the_whole(ranks, rule):
    """At every world size: with accumulation, recomputation, a clip, fp32 parameters, and a step that is skipped."""
    program = cases.step(SHARED[rule], world_size=ranks, **cases.FULL)
    odd = {(1, ranks - 1)}
    base = cases.history([program] * ranks, 3, odd=odd)
    for form, make in cases.FORMS.items():
        made = make(program, rule)
        assert ("batch" in made[0].counts()) == (ranks > 1 and "batches" in form)
        cases.same_bits(program, made, rule, 3, odd=odd, base=base)


OF_ANY = "adam", "momentum", "sgd", "lamb", "lars_momentum", "novograd"
FORM = st.sampled_from([*cases.FORMS])


@pytest.mark.clause("N11")
@given(program=cases.steps(optimizers=OF_ANY), rule=cases.RULES, form=FORM, odd=st.booleans())
@few(40)
def test_shards_of_any_step(program, rule, form, odd):
    """For any tensors, optimizers and ranks, some of which own nothing."""
    cases.same_bits(program, cases.FORMS[form](program, rule), rule, odd={(0, 1)} if odd else ())


@given(program=cases.steps(ranks=3, max_tensors=3), rule=cases.RULES, form=FORM, odd=st.booleans())
@few(10)
def test_shards_on_the_executor(program, rule, form, odd):
    """The same by the kernels, against NumPy."""
    cases.same_bits(program, cases.FORMS[form](program, rule), rule, backend="gpu", odd={(0, 1)} if odd else ())


@pytest.mark.parametrize(("form", "optimizer", "ranks"), [
    ("fused broadcasts", "adam", 3), ("small batches", "lars_momentum", 3),
    *(pytest.param(*case, marks=pytest.mark.slow) for case in (
        ("shards", "adam", 3), ("small buckets", "adam", 3), ("small batches", "adam", 2), ("small batches", "adam", 4),
    ))])
def test_every_kind_of_op_on_the_executor(form, optimizer, ranks):
    program = cases.step(optimizer=optimizer, world_size=ranks, **cases.FULL)
    cases.same_bits(program, cases.FORMS[form](program, "greedy"), "greedy", 3, backend="gpu", odd={(1, ranks - 1)})


@pytest.mark.parametrize("backend", ["cpu", "gpu"])
@pytest.mark.parametrize("ranks", [1, 2])
def test_the_cast_in_the_optimizers_stage(ranks, backend):
    """PR 34965: on every rank all parameters, and copies that are these, rounded, after every step."""
    program = cases.step(cases.PARAMS[:4], world_size=ranks, **cases.FULL)
    expected = cases.history([program] * ranks, 2)
    for one, other in zip(expected, cases.history([unsharded(program)] * ranks, 2, backend), strict=True):
        for here, there in zip(one, other, strict=True):
            assert cases.bits(here).items() <= cases.bits(there).items()
            assert there.keys() - here.keys() == {f"{name}.cast_fp16" for name in ("a.w", "a.b", "b.w")}
        copies_match(program, other)


def test_one_rank(machine):
    """The same on a GPU, where there is one."""
    program = cases.step(accumulate=2, recompute=True, fp32=["c"], max_norm=0.5)
    expected = cases.history([program], 3, odd={(1, 0)})
    with gpu.use(machine.name):
        got = cases.history([unsharded(program)], 3, "gpu", odd={(1, 0)})
        plain = cases.history([program], 3, "gpu", odd={(1, 0)})
    for k, state in enumerate(expected[0]):
        assert cases.bits(plain[0][k]) == cases.bits(state)
        assert cases.bits(state).items() <= cases.bits(got[0][k]).items()
    copies_match(program, got[0])


@pytest.mark.parametrize(("form", "rule", "who", "backend"), [
    ("shards", "paddle", 1, "cpu"), ("casts on every rank", "paddle", 3, "cpu"), ("buckets", "paddle", 3, "gpu"),
    ("batches", "greedy", 0, "cpu"),
    *(pytest.param(*case, marks=pytest.mark.slow) for case in (
        ("shards", "paddle", 0, "gpu"), ("shards", "paddle", 3, "gpu"), ("casts on every rank", "paddle", 1, "gpu"),
        ("buckets", "paddle", 0, "cpu"), ("batches", "greedy", 3, "gpu")))])
def test_a_skipped_step_is_skipped_by_all(form, rule, who, backend):
    """An inf in a gradient of one rank, though one alone owns that gradient, and ranks own nothing."""
    program = cases.step([("a", (4,)), ("b", (1,)), ("c", (2,))], world_size=4, max_norm=0.5)
    assert set(cases.owners_of(program, rule).values()) < set(range(4)), "all ranks own something"
    made = cases.FORMS[form](program, rule)
    for k in (0, 1):
        cases.skipped(made, k, odd={(k, who)}, backend=backend)


# Passes.


def test_what_is_let_go():
    """fp32 parameters of others are there for the startup, and not after it."""
    program = cases.step(cases.PARAMS[:3], world_size=3)
    made, owners = cases.shards(program), cases.owners_of(program)

    def rank(world):
        assert set(cases.brought(made[world.rank], world.rank)) == {"a.w", "a.b", "b.w"}
        bound = cases.bound_on(made[world.rank], world)
        bound.step()
        bound.copy_back()
        for name in owners:
            if owners[name] != world.rank:
                with pytest.raises(ValueError, match=rf"Bound.read: expected a dense variable .*, got '{name}'"):
                    bound.read(name)
        return {name for name in bound.arrays if name in owners}

    assert local.run(rank, 3) == [{p for p in owners if owners[p] == r} for r in range(3)]


@pytest.mark.parametrize("backend", ["cpu", "gpu"])
def test_found_inf_is_a_flag(backend):
    """However many ranks have found an inf, and in however many gradients."""
    program = cases.step(cases.PARAMS[:3], world_size=3)
    programs = cases.shards(program, "greedy")

    def rank(world):
        found = []
        for mine in (program, programs[world.rank]):
            bound = cases.bound_on(mine, world, backend)
            bound.gradients = {
                name: np.full(var.shape, np.inf, var.dtype) for name, var in mine.vars.items() if "@GRAD" in name}
            bound.step()
            found.append(bound.read("found_inf")[0])
        return found

    assert local.run(rank, 3) == [[1.0, 1.0]] * 3


def test_the_program_of_another_rank_is_refused():
    """It would send what it never updates."""
    made = cases.shards(cases.step(world_size=2))

    def rank(world):
        cases.bound_on(made[1 - world.rank], world)

    with pytest.raises(ValueError, match=r"bind: program: expected the program of rank [01], got one for a r"):
        local.run(rank, 2)


def test_a_step_without_updates_is_not_shared_out():
    program = cases.step(world_size=2)
    program = program.replace(main=[op for op in program.main if not op.outputs.get("params")])
    for apply in (partial(passes.shard, order="reduced"), passes.shard_elements):
        assert apply(program, rank=0, degree=2).reasons == ("nothing is updated",)
