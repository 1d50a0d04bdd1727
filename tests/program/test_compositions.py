"""Any pass may follow any other: what they make of a step has the bits of the plain step, on every rank."""

from dataclasses import replace
from functools import partial

import compositions as cases
import pytest
from hypothesis import given
from hypothesis import strategies as st
from program_cases import few, idempotent, untouched

from refopt.catalog import workloads
from refopt.program import Op, Var, amp_program, passes, step_program

PRESETS = "data_parallel", "sharded", "sharded_by_element", "parameter_server", "offloaded"
PARAMS = [("a.w", (9, 4)), ("a.b", (7,)), ("b.w", (65,)), ("c", ())]
ADAM = {"lr": 0.5, "beta1": 0.75, "weight_decay": 0.125}


@pytest.mark.clause("N11")
@given(case=cases.compositions())
@few(250)
def test_any_composition(case):
    """Parameters on every rank, states where they are, what is saved, and runs that go on from a checkpoint."""
    assert not cases.violation(case), case


@given(case=cases.compositions())
@few(190)
def test_a_pass_does_nothing_twice_and_leaves_what_it_is_given(case):
    """Each of a composition, on the first rank and the last."""
    programs = [case.program(1 if case.placed else case.ranks)] * case.ranks
    for name, arguments in case.passes:
        for rank in {0, case.ranks - 1} if name != "on_device" else ():
            where = {"rank": rank, "degree": case.ranks} if name in cases.SHARDING else {}
            where |= {"devices": case.ranks} if name in cases.PLACED else {}
            for law in (idempotent, untouched):
                law(partial(getattr(passes, name), **where, **arguments), programs[rank])
        programs, _, _ = cases.applied_to(programs, name, arguments)


@given(case=cases.compositions(), axes=st.sampled_from([{"a": 2, "b": 2}, {"a": 4, "b": 1}, {"a": 4}]))
@few(60)
def test_a_pass_does_nothing_twice_on_a_mesh(case, axes):
    program = case.program(4)
    chain = ("over_axes", {"axes": axes}), ("check_over", {"axes": {"m": 2}}), *case.passes, ("shard", {}), (
        "fuse_reduces", {}), ("check_over", {"axes": {"m": 2, "n": 2}}), ("batch_owners", {})
    for name, arguments in chain:
        if name not in (*cases.PLACED, "on_device"):
            where = {"rank": 1, "degree": axes["a"], "axis": "a"} if name in cases.SHARDING else {}
            apply = partial(getattr(passes, name), **where, **arguments)
            for law in (idempotent, untouched):
                law(apply, program)
            program = apply(program).program


@pytest.mark.parametrize("name", [*cases.PLACED, *PRESETS])
def test_an_empty_step_stays_as_it_is(name):
    chain = passes.preset(name, 0, 2) if name in PRESETS else [partial(getattr(passes, name), devices=2)]
    program = step_program([], "sgd", lr=0.5)
    for apply in chain:
        untouched(apply, program)


@pytest.mark.clause("N11")
@given(case=cases.compositions(cases.FEW))
@few(20)
def test_any_composition_on_devices(case):
    assert not cases.violation(case, "gpu"), case


def mixed(*chain, optimizer="adam", ranks=2, **options):
    options = {"loss_scale": 8.0, "max_norm": 0.5, **(ADAM if optimizer == "adam" else {"lr": 0.5}), **options}
    return cases.Composition("amp_program", PARAMS, optimizer, options, ranks, passes=chain)


def plain(*chain, ranks=2, tied=(), **options):
    return cases.Composition("step_program", PARAMS, "adam", {**ADAM, **options}, ranks, tied, passes=chain)


SENT = "send_to_owners", {"min_block_size": 4}
OWNED = "reduce_to_owners", {}
COALESCED = ("coalesce_gradients", {}), ("fuse_all_reduce", {})


@pytest.mark.clause("N11")
@pytest.mark.parametrize("case", [
    mixed(OWNED, optimizer="sgd"), mixed(OWNED, accumulate=3, ranks=3), mixed(SENT, accumulate=2), mixed(*COALESCED),
    *(mixed(*chain, reduced="float16", fp32=["c"]) for chain in (
        [("shard", {})], COALESCED[:1], [*COALESCED[:1], ("shard", {})])),
    mixed(("fuse_optimizer", {"form": "merged"}), ("optimize_cast", {}), ("fold_casts", {})),
    mixed(OWNED, ("optimize_cast", {})), mixed(("optimize_cast", {}), SENT),
    mixed(("optimize_cast", {}), ("fold_casts", {}), ("shard", {})), mixed(("offload", {}), ("shard", {})),
    mixed(("offload", {}), OWNED, ranks=4), plain(("offload", {}), OWNED),
    plain(OWNED, tied=("a.w",)), plain(SENT, tied=("b.w",)), plain(OWNED, tied=("a.w",), config="bf16"),
    plain(SENT, config=cases.REMAINDERS[1], state_dtype="uint8"),
    plain(SENT, ("on_device", {}), ("fuse_optimizer", {})),
    plain(SENT, ("fuse_optimizer", {})), plain(OWNED, ("fuse_optimizer", {}), ranks=3),
    plain(("fuse_optimizer", {"form": "merged"}), SENT), plain(*COALESCED, ("shard", {"rule": "greedy"})),
    plain(("fuse_optimizer", {"form": "merged"}), ("offload", {}), ("shard", {}), ranks=3),
], ids=lambda case: " ".join([case.make[:4], *(name for name, _ in case.passes)]))
def test_passes_that_meet(case):
    """None of these declines."""
    assert not cases.violation(case), case
    assert all(applied for _, applied, _ in case.reasons), case.reasons


@pytest.mark.clause("N11")
@given(case=cases.steps(), name=st.sampled_from(PRESETS))
@few(95)
def test_presets(case, name):
    case = replace(case, passes=(("preset", {"name": name}),))
    assert not cases.violation(case), case


def test_shards_in_batches_are_not_shared_out_again():
    """Where each rank has one parameter, all reductions are in batches."""
    case = replace(mixed(("shard", {"rule": "greedy"}), ("batch_owners", {}), ("shard", {})), params=PARAMS[:2])
    assert not cases.violation(case) and "gradients are already reduced to owners" in case.reasons[-1][2][0]
    assert {op.type for op in case.rewritten()[0].main}.isdisjoint(("reduce", "broadcast"))


def test_parameters_that_come_in_messages_stay_fp32():
    """On ranks, too, that neither update nor receive them."""
    case = mixed(("send_to_owners", {}), ("on_device", {}), ("optimize_cast", {}), ranks=3)
    programs = case.rewritten()
    assert not cases.violation(case)
    assert all("'a.b' stays fp32: parameters are received in messages" in passes.optimize_cast(p).reasons
               for p in programs)


def test_offloaded_states_are_not_sent():
    case = mixed(("offload", {}), SENT)
    case.rewritten()
    assert case.reasons[-1][2][0].endswith("its states are in host memory; apply offload afterwards")


@pytest.mark.clause("N11")
def test_states_are_offloaded_before_masters():
    """SGD's, which has no states; the second ring is another one."""
    optimizer = {"a.w": "momentum", "a.b": "momentum", "b.w": "sgd", "c": "sgd"}
    case = replace(plain(("offload", {}), ("offload", {"masters": True}), ranks=1), optimizer=optimizer,
                   options={"lr": 0.5, "mu": 0.75, "config": "bf16"})
    assert not cases.violation(case), case
    assert [applied for _, applied, _ in case.reasons] == [True, True]


def test_what_is_about_two_owners_is_declined():
    program = mixed().program(1)
    look = Op("look", {"x": ("a.w@GRAD", "b.w@GRAD")}, {}, {}, "communicate")
    place = next(i for i, op in enumerate(program.main) if op.type == "check_gradients")
    program = program.replace(main=[*program.main[:place], look, *program.main[place:]])
    made = passes.reduce_to_owners(mixed().program(1), 2).program
    one, two = (passes.owners(made)[name] for name in ("a.w", "b.w"))
    (reason,) = passes.reduce_to_owners(program, 2).reasons
    assert reason == f"look of 'a.w@GRAD': 'a.w@GRAD' is on rank {one}, and 'b.w@GRAD' on rank {two}"
    main = [op.replace(inputs={"x": ("b.w@GRAD",)}) if op.type == "look" else op for op in program.main]
    made = passes.reduce_to_owners(program.replace(main=main), 2).program
    assert [op.device for op in made.main if op.type == "look"] == [two]


def test_what_is_made_of_gradients_otherwise_is_no_gradient():
    program = mixed().program(1).with_vars([Var("seen", (7,), "float32")])
    look = Op("look", {"x": ("a.b@GRAD",)}, {"out": ("seen",)}, {}, "communicate")
    place = next(i for i, op in enumerate(program.main) if op.type == "check_gradients")
    made = passes.all_reduce_gradients(program.replace(main=[*program.main[:place], look, *program.main[place:]]), 2)
    summed = [name for op in made.program.main if op.type == "all_reduce" for name in op.reads]
    assert sorted(summed) == sorted(f"{name}@GRAD" for name, _ in PARAMS)


def test_averages_are_rounded_once():
    """Over micro-steps and ranks together, as in the step that begins with both."""
    one, plain = (mixed(accumulate=5).program(ranks) for ranks in (1, 7))
    made = passes.all_reduce_gradients(one, 7).program
    scales = [{op.attrs["scale"] for op in p.main if op.type == "scale"} for p in (made, plain)]
    assert scales[0] == scales[1] == {1 / 35} != {1 / 5 / 7}


@pytest.mark.clause("N11")
@pytest.mark.parametrize("fp32", [(), ("a.w", "a.b", "c")])
@pytest.mark.parametrize("limit", [1e-4, 32.0])
def test_reductions_of_micro_steps_and_dtypes_are_put_together_apart(limit, fp32):
    """What lies between two of them is done by owners alone, and others would find other runs."""
    chain = ("shard", {"rule": "greedy", "order": "reduced"}), ("fuse_reduces", {"limit": limit}), ("batch_owners", {})
    case = mixed(*chain, accumulate=2, reduced="float16", fp32=fp32, ranks=3)
    assert not cases.violation(case)
    assert case.reasons[-1][1]


@pytest.mark.parametrize(("name", "expected"), [
    ("data_parallel", {"all_reduce": 7, "scale": 7, "merged_adam": 1}),
    ("sharded", {"batch": 6, "scale": 2, "merged_adam": 2}),  # an update for each buffer, sent while others are made
    ("sharded_by_element", {"split_by_ref": 8, "reduce_scatter": 4, "scale": 4, "merged_adam": 4, "all_gather": 4})])
def test_presets_of_resnet_50(name, expected):
    program = step_program(workloads.load("resnet50").tensors, "adam", lr=0.1, world_size=2)
    assert passes.pipeline(program, *passes.preset(name, 0, 2)).program.counts() == {"backward": 161} | expected


def test_a_preset_sends_first_what_is_updated_first():
    program = step_program([(name, (2**21,)) for name in "abcdefgh"], "sgd", world_size=2, lr=0.5)
    made = passes.pipeline(program, *passes.preset("sharded", 0, 2)).program
    assert [op.reads[0] for op in made.main if op.type == "batch"] == ["g@GRAD", "g", "c"]


def test_offloaded_states_are_copied_in_pieces():
    program = step_program([(name, (2**23,)) for name in "abcd"], "adam", lr=0.5)
    made = passes.pipeline(program, *passes.preset("offloaded")).program.counts()
    assert (made["copy_in"], made["merged_adam"], made["copy_out"]) == (4, 4, 4)


def test_presets_of_another_number_of_ranks():
    program = amp_program(PARAMS, "adam", world_size=2, **ADAM)
    for name in ("data_parallel", "offloaded", "sharded"):
        with pytest.raises(ValueError, match="preset: ranks: expected 2, as the program has, got 4"):
            passes.pipeline(program, *passes.preset(name, ranks=4))
    for named, message in (({"ranks": 0}, "ranks: expected an integer from 1 to 1048576, got 0"),
                           ({"rank": 2, "ranks": 2}, "rank: expected an integer from 0 to 1, got 2")):
        with pytest.raises(ValueError, match=f"^preset: {message}$"):
            passes.preset("sharded", **named)


@pytest.mark.parametrize("reduced", ["float16", "float32"])
def test_one_rank_and_one_micro_step_have_nothing_to_average(reduced):
    kinds = amp_program(PARAMS, "adam", reduced=reduced, **ADAM).counts()
    assert "scale" not in kinds and "all_reduce" not in kinds


@pytest.mark.parametrize("reduced", ["float16", "float32"])
def test_gradients_that_are_cast_are_coalesced(reduced):
    """161 all-reduces of ResNet-50 in mixed precision become 7, before or after they are cast."""
    tensors = workloads.load("resnet50").tensors
    program = amp_program(tensors, "adam", lr=0.1, world_size=8, max_norm=1.0, reduced=reduced)
    made = passes.pipeline(program, passes.coalesce_gradients, passes.fuse_all_reduce).program
    assert (program.counts()["all_reduce"], made.counts()["all_reduce"]) == (161, 7)
    assert made.counts()["scale"] == {"float32": 7, "float16": 1}[reduced]
    assert {made.vars[name].dtype for name in made.buffer_of} == {reduced}
