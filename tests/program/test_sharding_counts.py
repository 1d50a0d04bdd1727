"""Casts, collectives, bytes and memory: formulae, met by programs and by runs."""

import math

import pytest
import sharding_cases as cases
from hypothesis import given
from hypothesis import strategies as st
from program_cases import few, numbers_of

from refopt.comm import local
from refopt.cpu import layout
from refopt.program import UNKNOWN, amp_program, counts, passes
from refopt.program.mixed_precision import copy_of

SCALING = {"loss_scaling", "good_steps", "bad_steps"}


def about(program, rule="paddle"):
    """Sizes, who is eligible, and owners, in the order of the updates."""
    owners = cases.owners_of(program, rule)
    names = list(owners)
    sizes = [math.prod(program.vars[name].shape) for name in names]
    return sizes, [copy_of(name) in program.vars for name in names], list(owners.values())


def measured(programs):
    """For each rank: calls and bytes of startup, then of a step; and the bytes of what it holds then, by kind."""

    def rank(world):
        bound = cases.bound_on(programs[world.rank], world)
        startup = world.counts
        world.reset_counts()
        bound.step()
        return startup, world.counts, held(bound)

    return local.run(rank, len(programs))


def held(bound):
    """Bytes of arrays that live from step to step. State is what is neither a parameter nor its copy."""
    found = {"fp16": 0, "fp32": 0, "state": 0}
    params = {name for op in bound.program.main if op.type == "forward" for name in op.reads}
    params |= {name.removesuffix(".cast_fp16") for name in params}
    for name, array in bound.arrays.items():
        var = bound.program.vars[name]
        if var.persistable and name not in SCALING and var.shape != UNKNOWN:
            found["fp16" if var.dtype == "float16" else "fp32" if name in params else "state"] += array.nbytes
    return found


# Casts.


@given(program=cases.steps(), rule=cases.RULES)
@few(40)
def test_casts(program, rule):
    """C (1 + R) A on every rank; C; then c_r, and C of all ranks together. Gradients' casts stay C A."""
    _, good, owners = about(program, rule)
    accumulate = sum(op.type == "forward" for op in program.main) // len(good)
    recompute = any("subprog" in name for name in program.vars)
    ranks = cases.ranks_of(program)
    before = sum(good) * (2 if recompute else 1) * accumulate
    assert counts.param_casts(program) == before
    assert counts.param_casts(passes.optimize_cast(program).program) == sum(good)
    total = 0
    for rank, made in enumerate(cases.shards(program, rule)):
        own = sum(one and owner == rank for one, owner in zip(good, owners, strict=True))
        assert counts.param_casts(made) == own
        total += own
        assert made.counts().get("cast", 0) - own == sum(good) * accumulate  # of gradients
    assert total == sum(good)
    assert [counts.param_casts(made) for made in cases.shards(program, rule, cast=False)] == [before] * ranks


def ops_of(routine, params, good, *, ranks, accumulate, recompute, clip, cast, owned=None):
    """Ops of a step by type: of so many parameters, and so many of them with copies; in shards, of which so many own.
    """
    ours, own = (params, good) if owned is None else owned
    found = {
        "forward": params * accumulate, "backward": params * accumulate,
        "cast": (own if cast else good * (1 + recompute) * accumulate) + good * accumulate,
        "sum": params * (accumulate - 1), "reduce": 0 if owned is None else params,
        "all_reduce": params * (ranks > 1) if owned is None else 1 + clip, "scale": ours * (ranks * accumulate > 1),
        "check_gradients": 1, "finish_check": 1, "update_loss_scaling": 1, routine: ours,
        f"merged_{routine}": int(ours == 0 and owned is not None), "broadcast": 0 if owned is None else params}
    return {kind: count for kind, count in found.items() if count}


@given(program=cases.steps(), rule=cases.RULES)
@few(25)
def test_ops(program, rule):
    """All ops of a step, by type: as it is, with casts in the optimizer's stage, in shards, and both."""
    _, good, owners = about(program, rule)
    known = dict(
        ranks=cases.ranks_of(program), accumulate=program.counts()["forward"] // len(good),
        recompute=any("subprog" in name for name in program.vars), clip="grad_norm" in program.vars)
    routine = cases.updates(program)[0].type
    for cast in (False, True):
        whole = passes.optimize_cast(program).program if cast else program
        assert whole.counts() == ops_of(routine, len(good), sum(good), cast=cast, **known)
        for rank, made in enumerate(cases.shards(program, rule, cast)):
            own = [one for one, owner in zip(good, owners, strict=True) if owner == rank]
            owned = (len(own), sum(own)) if known["ranks"] > 1 else None
            assert made.counts() == ops_of(routine, len(good), sum(good), cast=cast, owned=owned, **known)


def test_the_lists_of_the_original():
    """``test_opt_sharding_with_pp_amp_ckp_fuse_gm_optcast``, of its second stage, seen from rank 1.

    Three layers of 64 and one of 2, with momentum. That the bias which stays fp32 is the last one, its lists do not
    say; with it, all of them come out.
    """
    shapes = [(64, 64), (64,)] * 3 + [(64, 2), (2,)]
    params = [(f"fc_{k // 2}.{'wb'[k % 2]}_0", shape) for k, shape in enumerate(shapes, 6)]
    program = amp_program(params, "momentum", lr=0.01, mu=0.9, world_size=2, accumulate=4, recompute=True,
                                   fp32=[params[-1][0]])
    made = cases.shards(program, fuse=32.0)[1]
    count = made.counts()
    assert (count["momentum"], counts.param_casts(made), count["broadcast"]) == (5, 4, 3)
    started = made.counts(part="startup")
    assert (started["broadcast"], started["cast"], started["coalesce_tensor"]) == (8, 7, 2)


# Collectives.


@given(program=cases.steps(ranks=5), rule=cases.RULES, cast=st.booleans())
@few(25)
def test_collectives_and_bytes(program, rule, cast):
    """Calls and bytes that ranks have counted, without shards and with them, the same on each."""
    sizes, good, _ = about(program, rule)
    clip = "grad_norm" in program.vars
    expected = {"all_reduce": (len(sizes), 4 * sum(sizes))}
    for _, counted, _ in measured([program] * cases.ranks_of(program)):
        assert counted == counts.communicated(program) == expected
    half = sum(size for size, one in zip(sizes, good, strict=True) if one and cast)
    expected = {"reduce": expected["all_reduce"], "all_reduce": (1 + clip, 4 + 4 * clip * len(sizes)),
                "broadcast": (len(sizes), 4 * sum(sizes) - 2 * half)}
    made = cases.shards(program, rule, cast)
    for each, (startup, counted, _) in zip(made, measured(made), strict=True):
        assert counted == counts.communicated(each) == expected
        assert startup == {"broadcast": (len(sizes), 4 * sum(sizes))}
        assert each.counts(part="startup").get("cast", 0) == sum(good) * cast


@pytest.mark.parametrize("limit", [1e-4, 32.0])
@pytest.mark.parametrize("rule", ["paddle", "greedy"])
def test_fused_broadcasts(rule, limit):
    """One for each run of an owner and dtype below the limit, with padding."""
    program = cases.step(world_size=3, fp32=["c"])
    made = cases.shards(program, rule, fuse=limit)
    owners, vars = cases.owners_of(program, rule), made[0].vars
    sent = [name if name == "c" else copy_of(name) for name in owners]
    expected = calls = 0
    for rank in range(3):
        own = [vars[name] for name, owner in zip(sent, owners.values(), strict=True) if owner == rank]
        run = []
        for var in [*own, None]:
            size = sum(2 * math.prod(x.shape) for x in [*run, var] if x and x.dtype == "float16") / 2**20
            if run and (var is None or var.dtype != run[0].dtype or size > limit):
                sizes = [math.prod(x.shape) for x in run]
                item = 2 if run[0].dtype == "float16" else 4
                expected += item * (layout(sizes, item, 4096).total if len(run) > 1 else sizes[0])
                calls += 1
                run = []
            run.append(var)
    for _, counted, _ in measured(made):
        assert counted["broadcast"] == (calls, expected)
    assert calls < len(owners)


def test_what_fuse_broadcasts_leaves_alone():
    (made, _) = cases.shards(cases.step([("a", (2,)), ("b", (0,)), ("c", (3,))], world_size=2), "greedy")
    result = passes.fuse_broadcasts(made)
    assert not result.applied and result.reasons == (
        "'b.cast_fp16' has no elements", "no owner sends two consecutive variables of one dtype that fit together")
    assert passes.fuse_broadcasts(cases.step(world_size=2)).reasons == result.reasons[1:]


def test_steps_that_stay_as_they_are():
    """With one rank, or with no parameter, there is nothing to share, and no update of no tensors."""
    for params, ranks in (([], 1), ([], 3), (cases.PARAMS, 1)):
        program = cases.step(params, world_size=ranks)
        assert passes.shard(program, 0, ranks).program.counts() == program.counts()


# Memory.


@given(program=cases.steps(ranks=5, optimizers=("adam", "momentum", "sgd")), rule=cases.RULES)
@few(25)
def test_memory(program, rule):
    """What ranks hold after a step, by kind: as it is, with copies, in shards, and both."""
    sizes, good, owners = about(program, rule)
    tensors, scalars = {"adam": (2, 2), "momentum": (1, 0), "sgd": (0, 0)}[cases.updates(program)[0].type]

    def expected(cast, ours):
        found = {"fp16": 0, "fp32": 0, "state": 0}
        for size, one, own in zip(sizes, good, ours, strict=True):
            found["fp16"] += 2 * size * (one and cast)
            found["fp32"] += 4 * size * (own or not (one and cast))
            found["state"] += 4 * (tensors * size + scalars) * own
        return found

    for cast in (False, True):
        whole = passes.optimize_cast(program).program if cast else program
        found = measured([whole] * cases.ranks_of(program))[0][2]
        assert found == expected(cast, [True] * len(sizes)) and counts.kept(whole) == sum(found.values())
        made = cases.shards(program, rule, cast)
        for rank, (_, _, found) in enumerate(measured(made)):
            assert found == expected(cast, [owner == rank for owner in owners])
            assert counts.kept(made[rank]) == sum(found.values())


def test_numbers_of_the_clip_and_of_the_optimizer_are_apart():
    """Both have an epsilon."""
    program = cases.step(cases.PARAMS[:1], clip_epsilon=0.25, max_norm=1.0)
    assert next(op for op in program.main if op.type == "finish_check").attrs["epsilon"] == 0.25
    assert cases.updates(program)[0].attrs["epsilon"] == numbers_of("adam")["epsilon"]


@pytest.mark.parametrize(("optimizer", "dtype", "state"), [
    ("normuon", None, 4 * (36 + 15 + 9 + 5)), ("adam", "uint8", 2 * 36 * (2 + 1) + 4 * 4), ("lion", "bfloat16", 2 * 51),
])
def test_memory_of_other_states_than_one_fp32_number_for_each_element(optimizer, dtype, state):
    program = amp_program([("a", (9, 4)), ("b", (5, 3))], optimizer, lr=0.5, state_dtype=dtype)
    assert counts.kept(program) == 4 * 51 + state


@pytest.mark.parametrize(("chunk", "error"), [(12, ValueError), (0, ValueError), ("8", TypeError)])
def test_bad_arguments(chunk, error):
    with pytest.raises(error, match=f"^communicated: chunk: expected .*, got {chunk!r}"):
        counts.communicated(cases.step(world_size=2), chunk)
