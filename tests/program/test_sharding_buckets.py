"""Shards in buckets: fused reductions, averages, updates and broadcasts. No bit changes, and calls are few."""

from collections import Counter
from functools import partial

import numpy as np
import pytest
import sharding_cases as cases
from hypothesis import given
from program_cases import edited, few, idempotent, started

from refopt.comm import local
from refopt.cpu.coalesce import CHUNK
from refopt.program import Op, counts, passes, step_program
from refopt.program.ops import collectives

# No bit changes.


def test_gradients_that_stay_keep_what_is_in_them():
    """Gradients that the caller writes in place, and that no op makes, move into buffers with what they hold."""
    program = step_program([("a", (3,)), ("b", (5,))], "sgd", world_size=2, lr=1.0)
    vars = {name: var if "@GRAD" not in name else kept(var) for name, var in program.vars.items()}
    program = program.replace(vars=vars, main=[op for op in program.main if op.role != "backward"])
    made = cases.in_buckets(program)
    assert made[0].counts()["reduce"] == 1 and all(made[0].vars[buffer].persistable for buffer in made[0].views)

    def rank(world):
        bound = started(made[world.rank], {"a": np.zeros(3, "f4"), "b": np.zeros(5, "f4"),
                                           "a@GRAD": np.full(3, 2 + world.rank, "f4"), "b@GRAD": np.full(5, 4.0, "f4")},
                        comm=world)
        bound.step()
        return bound.read("a").tolist(), bound.read("b").tolist()

    assert local.run(rank, 2) == [([-2.5] * 3, [-4.0] * 5)] * 2


def kept(var):
    return type(var)(var.name, var.shape, var.dtype, persistable=True)


# What is made.


def test_a_step_in_buckets_in_order():
    """Reductions as gradients come; then, bucket by bucket, average and update; then what was updated first is sent."""
    params = [(name, (100,)) for name in "abcdefgh"]
    program = step_program(params, "adam", config="amp", grad_dtype="float32", world_size=2, lr=0.1)
    main = [op for op in cases.in_buckets(program, "greedy", 801 / 2**20)[0].main if op.role != "backward"]
    assert [(op.type, [name[0] for name in op.writes if "_" not in name]) for op in main] == [
        ("reduce", ["h", "f"]), ("reduce", ["g", "e"]), ("reduce", ["d", "b"]), ("reduce", ["c", "a"]),
        ("scale", ["g", "e"]), ("merged_adam", ["g", "e"]), ("scale", ["c", "a"]), ("merged_adam", ["c", "a"]),
        ("broadcast", ["h", "f"]), ("broadcast", ["g", "e"]), ("broadcast", ["d", "b"]), ("broadcast", ["c", "a"])]


def about_call(op):
    return op.type, op.attrs.get("root", -1), op.reads, len(op.inputs.get("x", ())) > 1 and op.attrs.get("use_align")


@given(program=cases.steps(), rule=cases.RULES, limit=cases.LIMITS)
@few(25)
def test_ops_and_casts(program, rule, limit):
    """An average for each sum of the rank; no op casts a parameter; what batches make is what was there before them."""
    forms = [cases.in_buckets(program, rule, limit, batched) for batched in (False, True)]
    for rank, both in enumerate(zip(*forms, strict=True)):
        for made in both:
            single = [each for op in made.main for each in collectives.calls(op)]
            own = [each for each in single if each.type == "reduce" and each.attrs["root"] == rank]
            assert counts.param_casts(made) == 0 and made.counts().get("scale", 0) == len(own)
        for kind in ("reduce", "broadcast"):
            roots = Counter(each.attrs["root"] for each in single if each.type == kind)
            most, second, *_ = *sorted(roots.values(), reverse=True), 0, 0
            assert made.counts().get(kind, 0) == most - second, "what has no counterpart stays single"
        calls = [sorted(about_call(each) for op in made.main for each in collectives.calls(op)) for made in both]
        assert calls[0] == calls[1]


@given(program=cases.steps(ranks=4), rule=cases.RULES, limit=cases.LIMITS)
@few(10)
def test_collectives_and_bytes(program, rule, limit):
    """Calls and bytes that ranks have counted."""
    made = cases.in_buckets(program, rule, limit)

    def rank(world):
        bound = cases.bound_on(made[world.rank], world)
        world.reset_counts()
        bound.step()
        return world.counts

    assert local.run(rank, len(made)) == [counts.communicated(each, CHUNK["bytes"]) for each in made]


@pytest.mark.parametrize(("more", "calls"), [(0, 1), (1, 2)])
def test_runs_are_of_32_megabytes(more, calls):
    """If not asked for otherwise: two tensors of 16 fit, and one with an element more does not."""
    sizes = [2**22, 2**22 + more]
    made = passes.shard(step_program([("a", sizes[:1]), ("b", sizes[1:])], "sgd", world_size=2, lr=0.5), 0, 2)
    for fuse, kind in ((passes.fuse_reduces, "reduce"), (passes.fuse_broadcasts, "broadcast")):
        assert fuse(made.program).program.counts()[kind] == calls


# Passes.


def listed(program, *kinds):
    """Type and first variable of ops."""
    return [(op.type, (op.writes or op.reads)[0]) for op in program.main if op.type in kinds]


def test_averages_come_right_before_the_check():
    """Which needs all of them; until then the backward pass waits for none."""
    program = cases.step([("a", (4,)), ("b", (4,)), ("c", (4,))], world_size=2, max_norm=0.5)
    one = passes.fuse_reduces(passes.shard(program, 0, 2, "greedy").program, 1e-5).program
    kinds = [op.type for op in one.main]
    assert kinds[kinds.index("check_gradients") - 2 :][:2] == ["scale", "scale"]
    assert {op.role for op in one.main if op.type == "scale"} == {"optimize"}
    last = max(k for k, kind in enumerate(kinds) if kind == "backward")
    assert kinds.index("scale") > last and kinds.count("reduce") == 3
    assert not any(op.type == "coalesce_tensor" for op in one.startup)


def test_averages_that_nobody_needs_stay():
    """One in place of several, after their reductions."""
    program = step_program([("a", (3,)), ("b", (3,))], "sgd", world_size=2, lr=0.5)
    main = [op for op in passes.shard(program, 0, 2).program.main if op.type not in ("sgd", "merged_sgd", "broadcast")]
    scales = [Op("scale", {"x": [g]}, {"out": [g]}, {"scale": 0.5}, "communicate") for g in ("b@GRAD", "a@GRAD")]
    main = [op for op in main if op.type != "scale"]
    main = [op.replace(attrs={**op.attrs, "root": 0}) if op.type == "reduce" else op for op in main]
    program = program.replace(main=[*main, *scales])
    made = passes.fuse_reduces(program).program
    assert listed(made, "reduce", "scale") == [("reduce", "b@GRAD"), ("scale", "b@GRAD")]
    assert not passes.fuse_reduces(program, 1e-6).applied, "each is by itself"
    assert made.main[-1].role == "communicate"


def scaled_twice(op):
    return [op, op] if op.type == "scale" else [op]


def scaled_apart(op):
    return [op.replace(attrs={"scale": 0.25}) if op.type == "scale" and op.writes == ("a@GRAD",) else op]


def read_between(op):
    """The second reduction reads what the first has reduced."""
    if op.type != "backward" or op.outputs["grads"] != ("a@GRAD",):
        return [op]
    return [Op("scale", {"x": ["b@GRAD"]}, {"out": ["b@GRAD"]}, {"scale": 0.5}, "backward"), op]


@pytest.mark.parametrize(("change", "reason"), [
    (scaled_twice, "to rank 1, 'd@GRAD' to 'a@GRAD': expected one scale op after each reduce, or none, got 2"),
    (scaled_apart, "scale differs: 0.5 for scale of 'd@GRAD', 0.25 for scale of 'a@GRAD'"),
    (read_between, "scale of 'b@GRAD' in between needs 'b@GRAD', which scale of 'b@GRAD' changes")])
def test_reductions_that_cannot_be_one(change, reason):
    program = step_program([("a", (3,)), ("b", (3,)), ("d", (2,)), ("c", (9,))], "sgd", world_size=2, lr=0.5)
    assert cases.owners_of(program, "greedy") == {"a": 1, "b": 1, "c": 0, "d": 1}
    result = passes.fuse_reduces(edited(passes.shard(program, 1, 2, "greedy").program, change))
    assert any(reason in why for why in result.reasons), result.reasons
    assert result.program.counts()["reduce"] == 4


def test_what_is_in_no_run():
    """Without elements, or in a buffer already."""
    program = step_program([("a", (3,)), ("b", (0, 2)), ("c", (9,)), ("d", (3,))], "sgd", world_size=2, lr=0.5)
    assert "'b@GRAD' has no elements" in passes.fuse_reduces(passes.shard(program, 0, 2).program).reasons
    buffers = passes.coalesce_gradients(program, "by_count", count=2).program
    again = passes.fuse_reduces(passes.shard(buffers, 0, 2).program)
    assert "'d@GRAD' is already in a buffer, 'FusedOutput_d@GRAD'" in again.reasons


def test_what_an_owner_updates_is_in_no_flat_op():
    """Before and after its broadcasts are one: other ranks would not know of its buffers."""
    program = step_program([("a", (3,)), ("b", (3,)), ("c", (9,)), ("d", (3,))], "sgd", world_size=2, lr=0.5)
    apart = passes.shard(program, 1, 2, "greedy").program
    for made in (apart, passes.fuse_broadcasts(apart).program):
        flat = passes.fuse_optimizer(made, form="flat")
        because = "sgd of 'd' to 'a': not flat: params: 'd' is reduced to one rank, or sent from one, and other "
        assert not flat.applied and any(reason.startswith(because) for reason in flat.reasons)


def test_orders():
    """Updates as gradients are reduced; where casts come in between, as in the program, on all ranks."""
    program = cases.step(cases.PARAMS, world_size=2)
    names = [name for name, _ in cases.PARAMS]
    for order, expected in (("program", names), ("reduced", names[::-1])):
        made = [passes.shard(program, rank, 2, "greedy", order).program for rank in range(2)]
        assert [op.reads[0].removesuffix(".cast_fp16") for op in made[0].main if op.type == "broadcast"] == expected
        updated = [[op.outputs["params"][0] for op in each.main if op.role == "optimize" and "params" in op.outputs]
                   for each in made]
        assert all(own == [name for name in expected if name in own] for own in updated)
        assert sorted(updated[0] + updated[1]) == sorted(names)
    cast = passes.optimize_cast(program).program
    result = passes.shard(cast, 0, 2, order="reduced")
    assert result.program == passes.shard(cast, 0, 2).program
    assert result.reasons[0].startswith("updates stay in the order of the program: cast of 'a.w.cast_fp16' in between")
    with pytest.raises(ValueError, match=r"^shard: order: expected one of program, reduced, got 'x'"):
        passes.shard(program, 0, 2, order="x")


def test_updates_of_each_buffer():
    """And of each gradient that is in none, by itself."""
    program = step_program([(name, (3,)) for name in "abcde"], "adam", world_size=2, lr=0.5)
    made = passes.coalesce_gradients(program, "by_count", count=2).program
    apart = passes.fuse_optimizer(made, form="merged", per_buffer=True).program
    assert [op.outputs["params"] for op in apart.main if op.role == "optimize"] == [("a",), ("c", "b"), ("e", "d")]
    assert passes.fuse_optimizer(made, form="merged").program.counts()["merged_adam"] == 1
    assert passes.fuse_optimizer(program, per_buffer=True).program is program


def test_what_has_been_fused_ends_a_run():
    """Of 6, 5, 5 and 2 elements, 10 fit: the second and third are one, and the first and last stay apart."""
    program = step_program([("a", (2,)), ("b", (5,)), ("c", (5,)), ("d", (6,))], "sgd", world_size=2, lr=0.5)
    main = [
        op.replace(type="reduce", attrs={**op.attrs, "root": 0}) if op.type == "all_reduce" else op
        for op in program.main
    ]
    sent = [Op("broadcast", {"x": [x]}, {"out": [x]}, {"ranks": 2, "root": 0}, "communicate") for x in "dcba"]
    program = program.replace(main=[*main, *sent])
    for fuse, kind in ((passes.fuse_reduces, "reduce"), (passes.fuse_broadcasts, "broadcast")):
        assert [len(op.reads) for op in fuse(program, 40 / 2**20).program.main if op.type == kind] == [1, 2, 1]
        idempotent(partial(fuse, limit=40 / 2**20), program)


def test_multiplications_before_reductions_stay():
    """Gradients that are averaged before they are summed."""
    program = passes.shard(step_program([("a", (3,)), ("b", (3,))], "sgd", world_size=2, lr=0.5), 1, 2).program
    early = [Op("scale", {"x": [x]}, {"out": [x]}, {"scale": 0.5}, "communicate") for x in ("b@GRAD", "a@GRAD")]
    main = [op for op in program.main if op.type != "scale"]
    place = next(i for i, op in enumerate(main) if op.type == "reduce")
    main = [op.replace(attrs={**op.attrs, "root": 0}) if op.type == "reduce" else op for op in main]
    first = [op for op in main if op.type == "backward"]
    rest = [op for op in main[place:] if op.type != "backward"]
    made = passes.fuse_reduces(program.replace(main=[*first, *early, *rest])).program
    assert [op for op in made.main if op.type == "scale"] == early
    assert [op.type for op in made.main if op.type in ("scale", "reduce")] == ["scale", "scale", "reduce"]
