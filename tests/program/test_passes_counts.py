"""How many ops passes leave, by formula; what they put together, what they do not, and why."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from program_cases import GROUPINGS, PARAMS, adam, everything, few, numbers_of, programs, ranks_of, same_bits

from refopt.catalog import ROUTINES, workloads
from refopt.program import Config, Op, Var, passes, step_program

RESNET = workloads.load("resnet50")

# Op counts.


def ops_of(routine, tensors, groups, *, ranks, early, units=1, sparse=0, fused="", folded=False):
    """Ops of a step by type: tensors, some of them with sparse gradients; groups of dense ones that are summed at once,
    and units that are updated at once."""
    found = {
        "backward": tensors, "all_reduce": groups * (ranks > 1), "all_gather": sparse * (ranks > 1),
        "scatter_add": sparse, "scale": (groups + sparse) * (ranks > 1 and not folded)
        + early * len(routine.scalars) * (units + sparse), routine.name: sparse}
    fused = fused or routine.name
    found[fused] = found.get(fused, 0) + units
    return {kind: count for kind, count in found.items() if count}


@pytest.mark.parametrize("early", [False, True])
@pytest.mark.parametrize("sparse", [(), ("a.w", "b.w")])
@pytest.mark.parametrize("ranks", [1, 3])
@pytest.mark.parametrize("optimizer", ["adam", "sgd", "momentum"])
def test_op_counts_of_a_step(optimizer, ranks, sparse, early):
    program = step_program(PARAMS, optimizer, world_size=ranks, sparse=sparse, early=early, **numbers_of(optimizer))
    dense = 6 - len(sparse)
    assert program.counts() == ops_of(
        ROUTINES[optimizer], 6, dense, ranks=ranks, early=early, units=dense, sparse=len(sparse))


@pytest.mark.parametrize("config", ["fp32", "amp"])
@pytest.mark.parametrize("ranks", [1, 8])
@pytest.mark.parametrize(("optimizer", "early"), [("adam", True), ("adam", False), ("momentum", False), ("sgd", False)])
def test_op_counts_of_resnet50(optimizer, early, ranks, config):
    """The formulae, for 161 tensors."""
    routine, more = ROUTINES[optimizer], {"early": early, "ranks": ranks}
    program = step_program(
        RESNET.tensors, optimizer, config=config, world_size=ranks, early=early, **numbers_of(optimizer))
    assert program.counts() == ops_of(routine, 161, 161, units=161, **more)
    for form in ("flat", "merged"):
        made = everything(form)(program).program
        fused = routine.name if form == "flat" else routine.merged_name
        expected = ops_of(routine, 161, 7, fused=fused, **more)  # conv1, bn1, four stages, fc
        assert made.counts() == expected
        folded = passes.fold_averages(made, exact=False).program.counts()
        assert folded == ops_of(routine, 161, 7, fused=fused, folded=True, **more)
        slots = sum(not slot.optional for slot in routine.slots) + (config == "amp")
        startup = slots if form == "flat" else ranks > 1
        assert made.counts(part="startup").get("coalesce_tensor", 0) == startup


@given(
    program=programs(mixed=False, optimizers=("adam",)), grouping=GROUPINGS, form=st.sampled_from(["flat", "merged"]))
@few(25)
def test_op_counts(program, grouping, form):
    """The formulae, for any number of tensors, ranks and groups."""
    name, flags = grouping
    lr = {op.attrs["lr"] for op in program.main if op.type == "adam"}
    sizes = [program.vars[op.inputs["params"][0]].shape for op in program.main if op.type == "adam"]
    sparse = sum(var.sparse for var in program.vars.values() if var.name.endswith("@GRAD"))
    if len(lr) > 1 or any(0 in shape for shape in sizes) or len(sizes) - sparse < 2:
        return
    early = any(op.type == "scale" and op.role == "optimize" for op in program.main)
    ranks = ranks_of(program)
    coalesced = passes.coalesce_gradients(program, name, **flags).program
    made = passes.fuse_optimizer(passes.fuse_all_reduce(coalesced).program, form=form).program
    makers = [op for op in coalesced.startup if op.type == "coalesce_tensor"]
    buffers = [op.outputs["output"] for op in makers]
    lone = len(sizes) - sparse - sum(map(len, buffers))
    groups = lone + sum(len(op.attrs["groups"]) for op in makers)
    units = [len(views) for views in buffers] + [lone] if form == "flat" else [len(sizes) - sparse]
    fused = sum(unit > 1 for unit in units)
    single = sum(unit == 1 for unit in units)
    adam = ROUTINES["adam"]
    expected = ops_of(adam, len(sizes), groups, sparse=sparse, ranks=ranks, early=early, units=fused,
                      fused=adam.name if form == "flat" else adam.merged_name)
    assert made.counts()["backward"] == len(sizes)
    assert made.counts().get("adam", 0) == expected.get("adam", 0) + single
    assert made.counts().get("all_reduce", 0) == expected.get("all_reduce", 0)
    assert made.counts().get("scale", 0) == expected.get("scale", 0) + early * len(adam.scalars) * single


# What is put together, and what is not.


def test_mixed_dtypes_make_an_op_for_each_signature():
    config = {name: "amp" if len(shape) > 1 else "fp32" for name, shape in PARAMS}
    program = adam(config=config, world_size=2)
    made = everything(memory_size=0)(program).program
    assert made.counts()["adam"] == 2 and made.counts()["all_reduce"] == 2
    assert passes.fuse_optimizer(program).program.counts()["adam"] == 2
    layered = everything()(program)
    assert layered.program.counts()["merged_adam"] == 2
    assert any("merged, not flat: the gradients are in" in reason for reason in layered.reasons)
    same_bits(everything(memory_size=0), program)
    same_bits(everything(), program)


def test_two_optimizers_are_each_one():
    optimizer = {name: "adam" if len(shape) > 1 else "sgd" for name, shape in PARAMS}
    program = step_program(PARAMS, optimizer, world_size=2, **numbers_of("adam") | numbers_of("sgd"))
    alone = passes.fuse_optimizer(program).program
    assert (alone.counts()["adam"], alone.counts()["sgd"]) == (1, 1)
    made = everything()(program)
    assert (made.program.counts()["merged_adam"], made.program.counts()["merged_sgd"]) == (1, 1)
    only = passes.fuse_optimizer(program, "sgd").program
    assert (only.counts()["adam"], only.counts()["sgd"]) == (2, 1)
    for apply in (passes.fuse_optimizer, everything()):
        same_bits(apply, program)


def test_updates_of_nothing_stay_out():
    made = passes.fuse_optimizer(adam([*PARAMS[:3], ("none", (0, 2))]), form="flat")
    assert made.program.counts()["adam"] == 2
    assert made.reasons == ("adam of 'none': the only one of its kind",)


def test_sparse_gradients_stay_out():
    made = everything()(adam(sparse=["a.w", "b.v"], world_size=2))
    counts = made.program.counts()
    assert (counts["all_gather"], counts["scatter_add"], counts["adam"], counts["all_reduce"]) == (2, 2, 3, 4)
    assert "coalesce_gradients: 'a.w@GRAD' is sparse and stays out" in made.reasons
    assert "fuse_optimizer: adam of 'a.w': its gradient is sparse" in made.reasons


def test_order_is_that_of_the_gradients():
    """Whatever the order of the optimizer's ops: parameters and states lie as their gradients do."""
    made = everything(memory_size=0)(adam(world_size=2)).program
    views = list(made.views.values())
    assert views[0] == ("a.b@GRAD", "a.w@GRAD", "b.v@GRAD", "b.w@GRAD", "c@GRAD", "d.e.f@GRAD")
    names = [name.removesuffix("@GRAD") for name in views[0]]
    assert ["@FUSEDVAR@@GRAD@a.b@GRAD", *(f"@FUSEDVAR@_adam_{role}_{name}" for role, name in (
        ("Param", "a.b"), ("Moment1", "a.b_moment1_0"), ("Moment2", "a.b_moment2_0"),
        ("Beta1Pow", "a.b_beta1_pow_acc_0"), ("Beta2Pow", "a.b_beta2_pow_acc_0"),
    ))] == list(made.views)
    assert [tuple(names), tuple(f"{name}_moment1_0" for name in names)] == views[1:3]
    alone = passes.fuse_optimizer(adam()).program
    assert [name.removesuffix("@GRAD") for name in list(alone.views.values())[1]] == [n for n, _ in PARAMS][::-1]


UNEVEN = {"a.w": 0.5, "a.b": 0.5, "b.w": 0.25, "c": 0.5, "b.v": 0.5, "d.e.f": 0.5}


@pytest.mark.parametrize("name", ["rescale_grad", "epsilon_at", "rounding", "decay", "maximize"])
def test_attributes_are_all_compared(name):
    """What there is one of in a merged op must be the same, or nothing is done. The reason names the first update, that
    of the gradient made first, and the one that differs, whichever lie between."""
    choices = {"epsilon_at": "uncorrected", "rounding": "stochastic", "decay": "decoupled", "maximize": True}
    value = choices.get(name, 0.37251)
    program = adam(PARAMS[:3])
    given = program.main[-1].attrs[name]
    program = program.replace(main=[op.replace(attrs={**op.attrs, name: value}) if op.writes[0] == "a.w" else op
                                    for op in program.main])
    for form in ("auto", "flat", "merged"):
        result = passes.fuse_optimizer(program, form=form)
        assert not result.applied
        assert f"{name} differs: {given!r} for adam of 'b.w', {value!r} for adam of 'a.w'" in result.reasons[0]


@pytest.mark.parametrize(("optimizer", "name"), [
    (routine.name, hyper.name) for routine in ROUTINES.values() for hyper in routine.hypers
    if hyper.per_tensor and hyper.name != "seed"
])
def test_numbers_of_their_own_are_kept(optimizer, name):
    """Of each number that may differ between tensors, every tensor keeps its own; flat, it is refused."""
    program = step_program(PARAMS, optimizer, **numbers_of(optimizer, **{name: UNEVEN}))
    (op,) = (op for op in passes.fuse_optimizer(program).program.main if op.type == f"merged_{optimizer}")
    assert sorted(op.attrs[name]) == sorted(UNEVEN.values())
    declined = passes.fuse_optimizer(program, form="flat")
    assert not declined.applied
    if ROUTINES[optimizer].elementwise:
        assert f"not flat: {name} differs: 0.5 for {optimizer} of 'd.e.f', 0.25 for" in declined.reasons[0]
    same_bits(passes.fuse_optimizer, program)


@pytest.mark.clause("N16", "N21")
@pytest.mark.parametrize(("optimizer", "options", "reason"), [
    ("adam", dict(config=Config("bfloat16", "bfloat16", "bfloat16"), rounding="stochastic", seed=5), "stochastic roun"),
    ("adam", dict(state_dtype="uint8"), "'b.w_moment1_0' is in 8 bits, in groups of 32 elements of its tensor"),
    ("lars_momentum", {}, "lars_momentum has norms of tensors"),
], ids=["stochastic", "8 bits", "norms"])
def test_what_is_about_elements_of_one_tensor_is_not_flat(optimizer, options, reason):
    program = step_program(PARAMS[:3], optimizer, **numbers_of(optimizer), **options)
    declined, made = passes.fuse_optimizer(program, form="flat"), passes.fuse_optimizer(program).program
    assert not declined.applied and f"not flat: {reason}" in declined.reasons[0]
    assert made.counts()[f"merged_{optimizer}"] == 1 and not made.startup
    same_bits(passes.fuse_optimizer, program)


def test_ops_that_depend_on_each_other_are_left_alone():
    """One of them reads what another changes; or what is in between reads it, such as a cast of a new parameter."""
    program = step_program(PARAMS[:2], "sgd", lr=0.5)
    *backward, first, second = program.main
    reads = second.replace(inputs={**second.inputs, "grad_factor": first.inputs["params"]})
    result = passes.fuse_optimizer(program.replace(main=(*backward, first, reads)))
    assert not result.applied
    result = passes.fuse_optimizer(program.replace(main=(*backward, first, second, first)), form="merged")
    assert "sgd of 'a.w' changes 'a.w', which sgd of 'a.w' changes" in result.reasons[0]
    copy = Var("copy", (5, 3), "float16", persistable=True, initial=0.0)
    cast = first.replace(type="cast", inputs={"x": ("a.w",)}, outputs={"out": ("copy",)}, attrs={})
    between = program.with_vars([copy]).replace(main=(*backward, first, cast, second))
    result = passes.fuse_optimizer(between)
    assert "cast of 'copy' in between needs 'a.w', which sgd of 'a.w' changes" in result.reasons[0]
    scale = Op("scale", {"x": ["a.w@GRAD"]}, {"out": ["a.w@GRAD"]}, {"scale": 0.5}, role="optimize")
    result = passes.fuse_optimizer(program.replace(main=(*backward, first, scale, second)))
    assert "scale of 'a.w@GRAD' in between changes 'a.w@GRAD', which sgd of 'a.w' reads" in result.reasons[0]
    behind = between.replace(main=(*backward, first, second, cast))
    assert passes.fuse_optimizer(behind).applied
    same_bits(passes.fuse_optimizer, behind)


def test_reduction_in_use_is_left_alone():
    """A gradient that is needed before the last of its group is there cannot wait for it."""
    program = step_program(PARAMS[:2], "sgd", lr=0.5, world_size=2)
    ops = list(program.main)
    update = ops.pop()  # of a.b, whose gradient is there first
    ops.insert(3, update)
    early = program.replace(main=ops)
    early.check()
    made = passes.pipeline(early, passes.coalesce_gradients, passes.fuse_all_reduce)
    assert "sgd of 'a.b' in between needs 'a.b@GRAD', which" in made.reasons[0]
    same_bits(lambda p: passes.pipeline(p, passes.coalesce_gradients, passes.fuse_all_reduce), early)


def test_a_reduction_may_be_the_first_op():
    """The gradients are there before the step."""
    program = step_program(PARAMS[:2], "sgd", lr=0.5, world_size=2)
    grads = {name: replace(program.vars[name], persistable=True, initial=0.5) for name in ("a.w@GRAD", "a.b@GRAD")}
    program = program.replace(vars={**program.vars, **grads}, main=program.main[1:3] + program.main[4:])
    made = passes.pipeline(program, passes.coalesce_gradients, passes.fuse_all_reduce)
    assert made.program.counts() == {"all_reduce": 1, "scale": 1, "sgd": 2}
    same_bits(lambda p: passes.pipeline(p, passes.coalesce_gradients, passes.fuse_all_reduce), program)


def test_reasons_of_nothing_to_do():
    one = adam(PARAMS[:1], world_size=2)
    result = passes.fuse_optimizer(one)
    assert result.reasons == ("adam of 'a.w': the only one of its kind", "no two ops of all can be fused")
    assert passes.fuse_optimizer(one, "sgd").reasons == ("no two ops of sgd can be fused",)
    assert "apply coalesce_gradients first" in passes.fuse_all_reduce(one).reasons[0]
    assert passes.coalesce_gradients(adam()).reasons == ("no reduced gradient is dense and outside of buffers",)
    dtypes = {"a": "float16", "b": "float32"}
    mixed = step_program([("a", (3,)), ("b", (3,))], "sgd", grad_dtype=dtypes, world_size=2, lr=1)
    assert passes.coalesce_gradients(mixed, "early").reasons == (
        "the rule 'early' is for one dtype; 'b@GRAD' is float32, 'a@GRAD' float16",)
    assert passes.coalesce_gradients(one, "fuse_size").reasons == ("the rule puts no two gradients together",)
    some = passes.coalesce_gradients(adam(world_size=2), "fuse_size", limit=1e-4).program
    assert passes.coalesce_gradients(some, "by_count").reasons == ("gradients are already in buffers",)
    whole = passes.coalesce_gradients(adam(PARAMS[:3], world_size=2)).program
    gone = ("all_reduce", "a.w@GRAD")
    less = whole.replace(main=[op for op in whole.main if (op.type, *op.inputs.get("x", ())) != gone])
    assert "'a.w@GRAD' has no all_reduce of its own" in passes.fuse_all_reduce(less).reasons[0]
    alone = passes.coalesce_gradients(adam(world_size=2), "by_count", count=1).program
    assert passes.fuse_all_reduce(alone).reasons == (
        "no group has two or more gradients that are reduced separately",)
    flat = everything("flat", grouping="by_count", count=2)(adam(world_size=2)).program
    assert flat.counts()["adam"] == 3
    lasting = replace(adam().vars["a.w@GRAD"], persistable=True, initial=0.0)
    mixed = adam().replace(vars={**adam().vars, lasting.name: lasting})
    reasons = passes.fuse_optimizer(mixed, form="flat").reasons
    assert "not flat: only some gradients live from step to step" in reasons[0]
    for form in ("auto", "flat", "merged"):
        assert passes.fuse_optimizer(flat, form=form).reasons == ("no two ops of all can be fused",)


def test_bad_arguments():
    with pytest.raises(TypeError, match=r"early: 'b.w': expected float16, as 'a.w' has, got float32"):
        passes.grouping.early(["a.w", "b.w"], [(1,), (1,)], ["float16", "float32"])
    taken = adam(world_size=2)
    var = Var("@FUSEDVAR@@GRAD@d.e.f@GRAD", (1,), "float32", True, initial=0.0)
    with pytest.raises(ValueError, match=r"'@FUSEDVAR@@GRAD@d.e.f@GRAD': expected a new name"):
        passes.coalesce_gradients(taken.with_vars([var]))


def test_a_report_shows_both_programs():
    report = everything()(step_program(RESNET.tensors, "adam", early=True, world_size=2, lr=0.1))
    text = str(report)
    assert max(map(len, text.splitlines())) <= 120
    assert "... 159 more adam" in text and "... 159 more of backward all_reduce scale" in text
    assert [name for name, _ in report.steps] == ["coalesce_gradients", "fuse_all_reduce", "fuse_optimizer"]
    assert report.before.counts()["adam"] == 161 and "fuse_optimizer: applied" in text
    alone = passes.pipeline(step_program(RESNET.tensors, "adam", lr=0.1), passes.fuse_all_reduce, passes.fuse_optimizer)
    assert {"fuse_all_reduce: not applied", "fuse_optimizer: applied"} <= {*str(alone).splitlines()}


@pytest.mark.parametrize("form", ["flat", "merged"])
@pytest.mark.parametrize(("names", "layer"), [(("a.w", "b.w"), None), (("a.w", "a.b"), "a")])
def test_an_update_of_several_layers_is_of_none(form, names, layer):
    made = passes.fuse_optimizer(adam([(name, (2,)) for name in names], early=True), form=form).program
    assert {op.layer for op in made.main if op.role == "optimize"} == {layer}
