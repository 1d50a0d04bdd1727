"""Updates that write the fp16 copies themselves: no cast is left, and no bit changes."""

import pytest
from program_cases import adam, edited
from sharding_cases import PARAMS, step

from refopt.program import Op, Var, passes
from refopt.program.ops.updates import routine_of


def test_an_update_that_casts():
    """Of the copy, with the parameter for a master; the norms of LARS are of masters."""
    program = passes.optimize_cast(step(PARAMS[:1], "lars_momentum")).program
    (op,) = (op for op in passes.fold_casts(program).program.main if routine_of(op))
    assert op.inputs["params"] == op.outputs["params"] == ("a.w.cast_fp16",)
    assert op.inputs["master_params"] == op.outputs["master_params"] == ("a.w",)
    assert op.attrs["norm_of"] == "master"


def no_start(program):
    return program.replace(startup=[])


def changed_too(program):
    return edited(program, lambda op: [op, Op("scale", {"x": ["a.w"]}, {"out": ["a.w"]}, {"scale": 0.5}, "optimize")]
                  if op is program.main[-1] else [op])


def to_bf16(program):
    vars = dict(program.vars)
    vars["a.w.cast_fp16"] = type(vars["a.w"])("a.w.cast_fp16", (5, 3), "bfloat16", True, initial=0.0)
    return program.replace(vars=vars)


def cast_early(program):
    """Before the update."""
    main = list(program.main)
    i = next(i for i, op in enumerate(main) if op.type == "cast" and op.role == "optimize")
    return program.replace(main=[*main[: i - 1], main[i], main[i - 1], *main[i + 1 :]])


def read_in_between(program):
    """Somebody wants the copy as it was."""
    main = list(program.main)
    i = next(i for i, op in enumerate(main) if op.type == "cast" and op.role == "optimize")
    return program.replace(main=[*main[:i], Op("forward", {"params": ["a.w"]}, {}, {}, "optimize"), *main[i:]])


@pytest.mark.parametrize(("edit", "reason"), [
    (no_start, "'a.w.cast_fp16' is not made at startup"), (changed_too, "scale of 'a.w' changes 'a.w', too"),
    (to_bf16, "'a.w.cast_fp16', the cast of 'a.w', is bfloat16, and the parameter float32"),
    (cast_early, "expected exactly one cast of 'a.w' alone, after it"),
    (read_in_between, "forward of 'a.w' in between needs 'a.w', which adam of 'a.w' changes")])
def test_casts_that_stay(edit, reason):
    result = passes.fold_casts(edit(passes.optimize_cast(step(PARAMS[:1])).program))
    assert not result.applied and any(reason in why for why in result.reasons), result.reasons


def test_updates_of_buffers_or_with_masters_do_not_cast():
    one = passes.fold_casts(passes.optimize_cast(step(PARAMS[:2], fp32=["a.b"])).program).program
    again = edited(one, lambda op: [op, Op("cast", {"x": ["a.w.cast_fp16"]}, {"out": ["a.w@GRAD"]}, {}, "optimize")]
                   if routine_of(op) and "master_params" in op.inputs else [op])
    assert "adam of 'a.w.cast_fp16': it already has masters" in passes.fold_casts(again).reasons
    flat = passes.fuse_optimizer(adam(PARAMS[:2]), form="flat").program
    (buffer,) = next(op for op in flat.main if routine_of(op)).inputs["params"]
    cast = Op("cast", {"x": [buffer]}, {"out": ["copy"]}, {}, "optimize")
    copy = Var("copy", flat.vars[buffer].shape, "float16", True, initial=0.0)
    flat = flat.with_vars([copy]).replace(main=(*flat.main, cast))
    assert passes.fold_casts(flat).reasons[0].endswith(": it updates buffers")
