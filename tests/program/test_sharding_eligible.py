"""Which parameters can live in fp16, what passes decline and why, and what ops of mixed precision must look like."""


import numpy as np
import pytest
from program_cases import adam, edited, everything, idempotent, numbers_of, put, started, untouched, values
from sharding_cases import PARAMS, bits, bound_on, history, read, shards, step

from refopt.comm import local
from refopt.program import Op, Program, Var, amp_program, counts, passes, step_program


def with_names(program, old, new):
    """The program with another name of a variable."""

    def of(slots):
        return {slot: [new if name == old else name for name in names] for slot, names in slots.items()}

    def change(op):
        return op.replace(inputs=of(op.inputs), outputs=of(op.outputs))

    vars = {new if name == old else name: var for name, var in program.vars.items()}
    vars[new] = Var(new, vars[new].shape, vars[new].dtype)
    return program.replace(vars=vars, main=[change(op) for op in program.main])


def reader(param, role):
    return Op("forward", {"params": [param]}, {}, {}, role)


# Names, and who is eligible.


def test_all_that_are_cast_are_eligible():
    program = step(PARAMS[:3], accumulate=2, recompute=True)
    found = passes.eligible(program)
    assert found.copies == {name: f"{name}.cast_fp16" for name in ("a.w", "a.b", "b.w")} and not found.reasons
    assert found.recomputed == {f"{copy}.subprog_0": copy for copy in found.copies.values()}
    assert len(found.casts) == 3 * 2 * 2
    assert all(program.main[i].type == "cast" for i in found.casts)
    after = passes.eligible(passes.optimize_cast(program).program)
    assert not after.copies and not after.casts
    assert after.reasons == tuple(f"{name!r} stays fp32: no model pass casts it" for name in ("a.w", "a.b", "b.w"))


def doubled(op):
    """Casts two at a time."""
    if op.type == "cast" and op.outputs["out"] == ("a.b.cast_fp16",):
        return []
    if op.type == "cast" and op.outputs["out"] == ("a.w.cast_fp16",):
        return [op.replace(inputs={"x": ["a.w", "a.b"]}, outputs={"out": ["a.w.cast_fp16", "a.b.cast_fp16"]})]
    return [op]


def renamed(old, new, **options):
    return lambda: with_names(step(PARAMS[:2], **options), old, new)


def followed(what, new, **options):
    """A step with one more op behind each op of a type, or that writes a variable."""
    return lambda: edited(
        step(PARAMS[:2], **options), lambda op: [op, new] if what in (op.type, *op.writes[:1]) else [op])


INELIGIBLE = {
    "kept in fp32": (lambda: step(PARAMS[:2], fp32=["a.w"]), "forward of 'a.w' reads it"),
    "read in fp32, too": (followed("a.w.cast_fp16", reader("a.w", "forward")), "forward of 'a.w' reads it"),
    "read by the backward pass": (
        lambda: edited(step(PARAMS[:2]), lambda op: [reader("a.w", "backward"), op] if op.writes[:1] == (
            "a.w@GRAD",) else [op]), "forward of 'a.w' reads it"),
    "another name": (renamed("a.w.cast_fp16", "half"), "its cast is named 'half'"),
    "another ending": (renamed("a.w.cast_fp16", "a.w.cast_fp16_1"), "its cast is named 'a.w.cast_fp16_1'"),
    "recomputed first": (renamed("a.w.cast_fp16", "a.w.cast_fp16.subprog_0"),
                         "its cast is named 'a.w.cast_fp16.subprog_0'"),
    "recomputed under another name": (renamed("a.w.cast_fp16.subprog_0", "a.w.again", recompute=True),
                                      "its cast is named 'a.w.again'"),
    "two at a time": (lambda: edited(step(PARAMS[:2]), doubled), "one op casts it together with others"),
    "not used": (
        lambda: edited(step(PARAMS[:2]), lambda op: [] if op.role in ("forward", "backward") and any(
            name.startswith("a.w") for name in (*op.reads, *op.writes)) else [op]), "no model pass casts it"),
    "an older copy is read": (
        lambda: step(PARAMS[:2]).replace(main=[*step(PARAMS[:2]).main, reader("a.w.cast_fp16", "forward")]),
        "forward of 'a.w.cast_fp16' reads 'a.w.cast_fp16', which is older than the parameter"),
    "changed elsewhere": (
        followed("finish_check", Op("scale", {"x": ["a.w"]}, {"out": ["a.w"]}, {"scale": 0.5}, "communicate")),
        "scale of 'a.w' changes it outside the optimizer's stage"),
    "in a group": (
        followed("adam", Op("broadcast", {"x": ["a.w", "a.b"]}, {"out": ["a.w", "a.b"]}, {"ranks": 2, "root": 0},
                            "communicate"), world_size=2),
        "broadcast has it in a group; apply fuse_broadcasts afterwards")}


@pytest.mark.parametrize("case", INELIGIBLE)
def test_who_is_not_eligible(case):
    """It stays as it was, and the other one is eligible all the same."""
    make, why = INELIGIBLE[case]
    program = make()
    found = passes.eligible(program)
    others = () if case in ("two at a time", "in a group") else ("a.b",)
    assert tuple(found.copies) == others
    assert f"'a.w' stays fp32: {why}" in found.reasons
    result = passes.optimize_cast(program)
    assert result.applied == bool(others) and result.reasons[: len(found.reasons)] == found.reasons
    untouched(passes.optimize_cast, program)
    idempotent(passes.optimize_cast, program)
    for op in program.main:
        if op.type == "cast" and "a.w" in op.reads:
            assert op in result.program.main


def test_two_updates_in_a_step():
    """Each is followed by its cast; and what is read in between is new, so that it cannot wait for a broadcast."""
    program = step(PARAMS[:2], recompute=True)
    program = program.replace(main=[*program.main, *program.main])
    made = passes.optimize_cast(program).program
    assert counts.param_casts(made) == 4
    for one, other in zip(history([program])[0], history([made])[0], strict=True):
        assert bits(one).items() <= bits(other).items()
    program = step(PARAMS[:2], world_size=2)
    again = passes.shard(program.replace(main=[*program.main, *program.main]), 0, 2)
    assert again.reasons == ("cast of 'a.w.cast_fp16' needs 'a.w' between its update and its broadcast",)
    twice = passes.shard(program.replace(main=[*program.main, program.main[-1]]), 0, 2)
    assert twice.reasons == ("adam of 'a.b' needs 'a.b' between its update and its broadcast",)


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_parameter_that_nobody_updates(ranks):
    """It is cast at startup, and stays for who wants it in fp32."""
    program = step(PARAMS[:2], world_size=ranks)
    program = program.replace(main=[op for op in program.main if op.outputs.get("params") != ("a.b",)])
    made = passes.optimize_cast(program).program
    assert counts.param_casts(made) == 1
    for one, other in zip(history([program] * ranks)[0], history([made] * ranks)[0], strict=True):
        assert bits(one).items() <= bits(other).items()
        assert other["a.b.cast_fp16"].tobytes() == one["a.b"].astype(np.float16).tobytes()


def test_another_type_is_not_eligible():
    program = step(PARAMS[:1])
    vars = {name: Var(name, var.shape, "bfloat16") if name.endswith("fp16") else var
            for name, var in program.vars.items()}
    assert "its cast 'a.w.cast_fp16' is bfloat16" in passes.eligible(program.replace(vars=vars)).reasons[0]


# What passes decline.


def test_shard_declines():
    plain, fused = step(world_size=2), everything()(adam(world_size=2)).program
    for program, degree, why in (
        (step(), 1, "one rank owns everything"),
        (step(), 2, "no gradient is reduced over the ranks"),
        (shards(plain)[0], 2, "gradients are already reduced to owners"),
        (fused, 2, "adam of '@FUSEDVAR@_adam_Param_d.e.f' updates a buffer; apply fuse_optimizer afterwards"),
        (plain.replace(main=[op for op in plain.main if op.inputs.get("x") != ("c@GRAD",)]), 2,
         "'c@GRAD' is not reduced over the ranks"),
    ):
        result = passes.shard(program, 0, degree)
        assert not result.applied and result.program is program
        assert why in result.reasons[0], result.reasons


def test_shard_says_who_owns_nothing():
    program = step([("a", (1,)), ("b", (1,)), ("c", (1,)), ("d", (10,))], world_size=2)
    assert passes.shard(program, 0, 2).reasons == ("rank 1 owns nothing: 4 parameters by the rule 'paddle'",)
    assert passes.shard(program, 0, 2, "greedy").reasons == ()


@pytest.mark.parametrize(("args", "message"), [
    ((2, 2), "shard: rank: expected an integer from 0 to 1, got 2"),
    ((0, 4), "shard: degree: expected 2, as all_reduce of 'd.e.f@GRAD' has, got 4")])
def test_bad_arguments_of_shard(args, message):
    with pytest.raises(ValueError, match=f"^{message}"):
        passes.shard(step(world_size=2), *args)


def test_optimize_cast_declines():
    result = passes.optimize_cast(step(fp32=[name for name, _ in PARAMS]))
    assert not result.applied and len(result.reasons) == len(PARAMS) + 1
    assert result.reasons[-1] == "no model pass casts a parameter that can live in fp16"
    plain = passes.optimize_cast(step_program(PARAMS[:1], "sgd", lr=0.5))
    assert plain.reasons[0] == "'a.w' stays fp32: backward of 'a.w@GRAD' reads it"


# What ops must look like.


def test_bad_ops():
    """The error says which op, which slot and what was expected."""
    made = shards(step(PARAMS[:2], world_size=2, accumulate=2, max_norm=1.0))[1]

    def without(part, kind, **fields):
        return made.replace(**{part: [op.replace(**fields) if op.type == kind else op for op in getattr(made, part)]})

    check = next(op for op in made.main if op.type == "check_gradients")
    finish = next(op for op in made.main if op.type == "finish_check")
    for bad, error, message in (
        (without("startup", "initialize", outputs={}), TypeError, r"initialize: out: expected variables, got none"),
        (without("startup", "delete", inputs={"x": ["a.b"]}), ValueError, r"x\[0\]: expected a variable that is not p"),
        (without("startup", "delete", role="forward"), ValueError, r"delete: role: expected startup, got forward"),
        (without("main", "forward", outputs={"out": ["a.b"]}), TypeError, r"forward: out: expected no variables"),
        (without("main", "sum", inputs={"x": ["a.w@GRAD"], "out": ["a.b@GRAD"]}), ValueError, r"sum: .*out"),
        (without("main", "check_gradients", attrs={}), ValueError, r"positions: expected a place for each of 1 grad"),
        (without("main", "check_gradients", attrs={"positions": (2,)}), ValueError, r"positions\[0\]: expected a pla"),
        (without("main", "check_gradients", inputs={"x": ["a.b@GRAD"] * 2}, attrs={"positions": (0, 0)}), ValueError,
         r"positions\[1\]: expected a place from 0 to 1, each once, got 0"),
        (without("main", "check_gradients", outputs={**check.outputs, "odd": ["found_inf"]}), TypeError,
         "odd: expected int32, got float32"),
        (without("main", "finish_check", attrs={"max_norm": -1.0, "epsilon": 0.0}), ValueError,
         "max_norm: expected a number of at least 0, got -1.0"),
        (without("main", "check_gradients", outputs={**check.outputs, "sums": ["a.w@GRAD"]}), ValueError,
         r"sums: expected one dimension, got shape \(5, 3\)"),
        (without("main", "check_gradients", outputs={**check.outputs, "sums": ["found_inf", "sums", "sums"]}),
         ValueError, r"sums\[2\]: expected each variable once, got 'sums' again"),
        (without("main", "sum", inputs={"x": ["a.b@GRAD"], "out": ["a.b.cast_fp16@GRAD@MICRO_0"]},
                 outputs={"out": ["a.b@GRAD"]}), ValueError, "out: expected the same variables in inputs and outputs"),
        (without("main", "finish_check", inputs={**finish.inputs, "loss_scale": ["sums"]}), ValueError,
         r"loss_scale: expected one element, got shape \(2,\)"),
        (without("main", "finish_check", inputs={k: x for k, x in finish.inputs.items() if k != "sums"}), TypeError,
         "grad_norm: expected none without sums"),
        (without("main", "finish_check", outputs={k: x for k, x in finish.outputs.items() if k != "grad_norm"}),
         TypeError, "grad_norm: expected a variable"),
        (without("main", "finish_check", inputs={**finish.inputs, "odd": ["sums"]}), TypeError, "odd: expected int32"),
        (without("main", "finish_check", outputs={"found_inf": ["found_inf"]}), TypeError, "grad_factor: expected var"),
        (without("main", "update_loss_scaling", attrs={}), TypeError, "incr_every_n_steps: expected an integer"),
    ):
        with pytest.raises(error, match=message):
            bad.check()


def test_what_is_let_go_cannot_be_read():
    made = shards(step(PARAMS[:2], world_size=2))[1]
    more = made.replace(main=[*made.main, reader("a.w", "forward")])
    with pytest.raises(ValueError, match=r"'a.w': expected a variable that is persistable or made before, got"):
        more.check()


@pytest.mark.parametrize("backend", ["cpu", "gpu"])
@pytest.mark.parametrize(("dtype", "total"), [
    ("float16", "float32"), ("bfloat16", "float32"), ("float32", "float32"), ("float16", "float16"),
    ("bfloat16", "bfloat16")])
def test_sum_is_one_addition(dtype, total, backend):
    """In fp32, and rounded to the dtype of the sum, -0 kept, whatever the size."""
    x, y = values(dtype, (300,), 1), values(total, (300,), 2)
    x[:2], y[:2] = -0.0, -0.0
    expected = (y.astype(np.float32) + x.astype(np.float32)).astype(y.dtype)
    vars = [Var("x", (300,), dtype, persistable=True), Var("y", (300,), total, persistable=True)]
    vars += [Var("e", (0,), "float32", persistable=True)]
    ops = [Op("sum", {"x": ["x", "e"], "out": ["y", "f"]}, {"out": ["y", "f"]}, {}, "backward")]
    vars += [Var("f", (0,), "float32", persistable=True)]
    arrays = {"x": x, "y": y, "e": np.zeros(0, np.float32), "f": np.zeros(0, np.float32)}
    bound = started(Program({var.name: var for var in vars}, (), ops), put(backend, arrays), backend=backend)
    bound.step()
    assert bound.read("y").tobytes() == expected.tobytes()


@pytest.mark.parametrize(("dtype", "total"), [("int32", "int32"), ("float16", "bfloat16"), ("float32", "float16")])
def test_sums_of_other_dtypes_are_refused(dtype, total):
    vars = {"x": Var("x", (3,), dtype, persistable=True), "y": Var("y", (3,), total, persistable=True)}
    op = Op("sum", {"x": ["x"], "out": ["y"]}, {"out": ["y"]}, {}, "backward")
    with pytest.raises(TypeError, match=rf"sum: out\[0\]: expected float32 or float64 that {dtype} widens to, got"):
        Program(vars, (), [op]).check()


@pytest.mark.parametrize("backend", ["cpu", "gpu"])
def test_all_ranks_take_the_numbers_of_a_step(backend):
    """Those that own nothing, too, or nothing of a routine; and all refuse what one would refuse."""
    params = [("a", (4,)), ("b", (4,)), ("c", (9,))]
    optimizer = {"a": "sgd", "b": "adam", "c": "adam"}
    program = amp_program(params, optimizer, world_size=3, l2_decay=0.25, **numbers_of("adam"))
    made = [passes.shard(program, rank, 3).program for rank in range(3)]
    kinds = [[op.type for op in each.main if "params" in op.outputs] for each in made]
    assert [sorted(each) for each in kinds] == [["adam", "sgd"], ["adam", "merged_sgd"], ["merged_adam", "merged_sgd"]]

    def end(programs):
        def rank(world):
            bound = bound_on(programs[world.rank], world, backend)
            with pytest.raises(ValueError, match=r"adam: beta1: expected a finite float32 .*, got -1.0"):
                bound.step(beta1=-1.0)
            bound.step(lr=0.125, beta1=0.5)
            bound.step()
            return bits(read(bound))

        return local.run(rank, 3)

    whole = end([program] * 3)
    for state in end(made):
        assert state.items() <= whole[0].items()
