"""Gradients summed in 16 bits: half the bytes, the bits of casts by hand, and no step that an overflow changes."""

from functools import partial

import numpy as np
import program_cases as cases
import pytest
import sharding_cases as sharding
from hypothesis import given
from hypothesis import strategies as st

from refopt.comm import local
from refopt.program import counts, passes
from refopt.program.passes import narrow_sums

HALVES = "float16", "bfloat16"
GROUPED = passes.coalesce_gradients, passes.fuse_all_reduce
FUSED = *GROUPED, passes.fuse_optimizer


@pytest.mark.clause("N10")
@given(program=cases.programs(ranks=4, max_tensors=4), dtype=st.sampled_from(HALVES),
       average=st.sampled_from(["before", "after"]), backend=st.sampled_from(["cpu", "cpu", "gpu"]))
@cases.few(40)
def test_groups_change_no_bit(program, dtype, average, backend):
    """One cast there and one back for each all-reduce, with the bits of a cast for each gradient."""
    narrow = partial(narrow_sums, dtype=dtype, average=average)
    alone = narrow(program)
    for law in (cases.idempotent, cases.untouched):
        law(narrow, program)
    expected = cases.outcome(alone.program)
    for others in (GROUPED, FUSED):
        made = passes.pipeline(program, *others).program
        grouped = narrow(made)
        assert grouped.applied == alone.applied
        got = cases.outcome(grouped.program, backend=backend)
        assert {name: got[name] for name in expected} == expected
        cases.idempotent(narrow, made)
        sums = sum(op.type == "all_reduce" and op.reads[0] not in program.vars for op in grouped.program.main)
        assert grouped.program.counts().get("cast", 0) - made.counts().get("cast", 0) == 2 * sums


@pytest.mark.parametrize("others", [(), GROUPED, FUSED])
@pytest.mark.parametrize("backend", ["cpu", "gpu"])
def test_bytes_are_half(others, backend):
    """As counted before and while it runs, padding included."""
    program = passes.pipeline(cases.adam(world_size=2), *others).program
    made = narrow_sums(program).program
    chunk = {"cpu": 4096, "gpu": 256}[backend]

    def rank(world):
        bound = cases.bound_on(made, world, backend)
        world.reset_counts()
        bound.step()
        return world.counts

    assert local.run(rank, 2) == [counts.communicated(made, chunk)] * 2
    (calls, nbytes), (same, half) = (counts.communicated(each)["all_reduce"] for each in (program, made))
    assert (calls, nbytes) == (same, 2 * half) and half == 2 * (15 + 7 + 70 + 1 + 8 + 64)


@pytest.mark.parametrize("backend", ["cpu", "gpu"])
@pytest.mark.parametrize(("average", "given", "skipped"), [
    ("before", [60000.0, 60000.0], False), ("after", [60000.0, 60000.0], True), ("after", [30000.0, 30000.0], False),
    ("before", [1.0, np.inf], True), ("after", [np.nan, 1.0], True), ("before", [65519.0, 0.0], False),
    ("before", [0.0, 2.0**17], True)])
def test_a_sum_that_overflows_skips_the_step_on_all_ranks(average, given, skipped, backend):
    """Two gradients of 60000 overflow fp16, their halves do not; after a skipped step the loss scale is halved."""
    program = sharding.step([("a", (5,))], world_size=2, fp32=["a"], loss_scale=8.0)
    made = passes.pipeline(program, *GROUPED, partial(narrow_sums, average=average)).program
    assert made.counts()["cast"] == 2

    def rank(world):
        gradient = np.full(5, given[world.rank], np.float32)
        bound = cases.started(made, cases.put(backend, {"a": np.ones(5, np.float32)}), backend=backend, comm=world,
                              gradients=lambda name, step: gradient)
        bound.step()
        return bound.read("a").tobytes(), float(bound.read("loss_scaling")[0])

    (param, scale), other = local.run(rank, 2)
    assert other == (param, scale)
    assert (param == np.ones(5, np.float32).tobytes(), scale) == (skipped, 4.0 if skipped else 8.0)


def ungated(program):
    """Updates without the gate."""
    return cases.edited(program, lambda op: [op.replace(inputs={
        slot: names for slot, names in op.inputs.items() if slot != "found_inf"})] if op.role == "optimize" else [op])


def scaled(program, scale):
    return cases.edited(program, lambda op: [op.replace(attrs={"scale": scale})] if op.type == "scale" else [op])


PLAIN, AMP = cases.adam(cases.PARAMS[:2], world_size=2), sharding.step(cases.PARAMS[:2], world_size=2)
FOLDED = passes.fold_averages(cases.adam(world_size=2, rescale_grad=1.0)).program
OVERFLOWS = "it may overflow float16 where no gradient does, and no gradient check would skip the step"
NO_AVERAGE = "no average of the same gradients follows, which could come first"
SHARED = "only all-reduces are narrowed: before shard; for shard_elements use amp_program(reduced='float16')"


@pytest.mark.parametrize(("program", "arguments", "reason"), [
    (PLAIN, {}, ""), (PLAIN, {"average": "after"}, OVERFLOWS), (AMP, {"average": "after"}, ""),
    (PLAIN, {"average": "after", "dtype": "bfloat16"}, ""), (scaled(PLAIN, 0.75), {}, OVERFLOWS),
    (scaled(PLAIN, -0.75), {}, OVERFLOWS), (scaled(AMP, 0.75), {}, ""), (ungated(AMP), {"average": "after"}, OVERFLOWS),
    (cases.edited(PLAIN, lambda op: [] if op.type == "scale" else [op]), {}, NO_AVERAGE),
    (FOLDED, {}, NO_AVERAGE), (FOLDED, {"average": "after", "dtype": "bfloat16"}, ""),
    (passes.shard(PLAIN, 0, 2).program, {}, SHARED), (passes.shard_elements(PLAIN, 0, 2).program, {}, SHARED),
    (passes.over_axes(cases.adam(world_size=4), {"a": 2, "b": 2}).program, {}, "it sums along the axis 'a' of a mesh"),
    (cases.adam(config="amp", world_size=2), {}, "no all-reduce sums gradients in float32"),
    (cases.adam(config="fp64", world_size=2), {}, "no all-reduce sums gradients in float32"),
    (cases.adam(), {}, "no all-reduce sums gradients in float32")])
def test_what_is_declined(program, arguments, reason):
    result = narrow_sums(program, **arguments)
    assert result.applied == (not reason) and (not reason or result.reasons[0].endswith(reason)), result.reasons


@pytest.mark.parametrize("wrong", [{"dtype": "float32"}, {"average": "never"}, {"dtype": None}])
def test_bad_arguments(wrong):
    ((name, value),) = wrong.items()
    with pytest.raises(ValueError, match=f"^narrow_sums: {name}: expected one of .*, got {value!r}"):
        narrow_sums(PLAIN, **wrong)
