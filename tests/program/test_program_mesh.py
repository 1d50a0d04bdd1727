"""Meshes of ranks: sharding along one axis and replicas along another, and ranks that have other parameters."""

from functools import partial

import numpy as np
import pytest
from compositions import differing, same
from hypothesis import given
from hypothesis import strategies as st
from program_cases import few, stepped
from sharding_cases import bound_on, read

from refopt.comm import CommError, Mesh, local
from refopt.program import amp_program, passes, step_program

PARAMS = [("a.w", (17, 64)), ("a.b", (7,)), ("b.w", (1025,)), ("c", ())]
AMP = {"lr": 0.5, "loss_scale": 8.0, "max_norm": 0.5}
GRID = {"dp": 2, "shard": 2}
FOLDED = passes.optimize_cast, passes.fold_casts


def run(program_of, axes, model=(), backend="cpu", odd=()):
    """By rank, what lives from step to step after two steps, and a checkpoint."""
    def rank(world):
        mesh = Mesh(world, axes, model)
        bound = stepped(bound_on(program_of(mesh), world, backend, odd, mesh))
        return {name: x for name, x in read(bound).items() if name != "grad_norm"}, bound.state_dict()

    return local.run(rank, int(np.prod([*axes.values()])))


def agree(found, expected):
    for (mine, saved), (theirs, whole) in zip(found, expected, strict=True):
        assert not differing(saved, whole)
        assert all(same(mine[name], theirs[name]) for name in mine.keys() & theirs.keys())


def by_element(program, mesh):
    return passes.shard_elements(program, mesh.coordinates["shard"], 2, axis="shard", limit=0.006).program


def by_tensor(program, mesh):
    one = passes.shard(program, mesh.coordinates["shard"], 2, rule="greedy", axis="shard").program
    return passes.batch_owners(passes.fuse_broadcasts(passes.fuse_reduces(one).program).program).program


@pytest.mark.clause("N11")
@pytest.mark.parametrize("backend", ["cpu", "gpu"])
@pytest.mark.parametrize("shared", [by_element, by_tensor])
@pytest.mark.parametrize("make", [amp_program, step_program])
def test_shards_and_their_replicas(make, shared, backend):
    """Sums go along the shards first, and of what a rank has along the replicas."""
    base = make(PARAMS, "adam", world_size=4, **(AMP if make is amp_program else {"lr": 0.5}))
    plain = passes.over_axes(base, {"shard": 2, "dp": 2}).program
    folded = passes.pipeline(plain, *FOLDED).program
    expected = run(lambda mesh: plain, GRID)
    agree(run(lambda mesh: shared(folded, mesh), GRID, backend=backend), expected)
    one = shared(folded, type("", (), {"coordinates": {"shard": 0}}))
    kinds = {(op.type, op.attrs.get("axis")) for op in one.main if "ranks" in op.attrs}
    assert ("all_reduce", "dp") in kinds and all(axis for _, axis in kinds)


AFTER = (passes.fuse_reduces, passes.fuse_broadcasts, passes.batch_owners, passes.fuse_all_reduce,
         passes.coalesce_gradients, passes.optimize_cast, passes.fold_casts, passes.offload, passes.fuse_optimizer,
         partial(passes.fuse_optimizer, form="merged", per_buffer=True))


@pytest.mark.clause("N11")
@given(make=st.sampled_from([amp_program, step_program]), pods=st.sampled_from([1, 2]), element=st.booleans(),
       chain=st.lists(st.sampled_from(AFTER), min_size=1, max_size=4, unique=True), first=st.booleans(),
       optimizer=st.sampled_from(["adam", "lamb", {name: "muon" if name == "a.w" else "adam" for name, _ in PARAMS}]))
@few(57)
def test_any_passes_after_shards_on_a_mesh(make, pods, element, chain, first, optimizer):
    """All ranks find what fits together, whatever an owner alone sums along one further axis or two."""
    grid = {"pod": pods, **GRID}
    base = make(PARAMS, optimizer, world_size=4 * pods, **(AMP if make is amp_program else {"lr": 0.5}))
    plain = passes.over_axes(base, {"shard": 2, "dp": 2, "pod": pods}).program
    begun = passes.pipeline(plain, *FOLDED).program if first else plain

    def made(mesh):
        shared = partial(passes.shard_elements if element else passes.shard, axis="shard")
        return passes.pipeline(shared(begun, mesh.coordinates["shard"], 2).program, *chain).program

    agree(run(made, grid), run(lambda mesh: plain, grid))


@pytest.mark.clause("N11")
def test_groups_are_summed_along_each_axis():
    """One all-reduce for each axis and group."""
    base = amp_program(PARAMS, "adam", world_size=4, **AMP)
    plain = passes.over_axes(base, {"shard": 2, "dp": 2}).program
    grouped = passes.coalesce_gradients(plain, "fuse_size", limit=0.006)
    made = passes.fuse_all_reduce(grouped.program).program
    sums = [(op.attrs["axis"], len(op.reads)) for op in made.main if op.type == "all_reduce"]
    assert sums == [("shard", 3), ("dp", 3), ("shard", 1), ("dp", 1)]
    agree(run(lambda mesh: made, GRID), run(lambda mesh: plain, GRID))


def test_the_setting_of_pr_35878():
    """2 by 2 by 2: tensor parallel, pipeline parallel and sharded ranks. A step is skipped by all or by none."""
    grid, model = {"mp": 2, "pp": 2, "shard": 2}, ("mp", "pp")

    def stage(mesh):
        own = PARAMS[2 * mesh.coordinates["pp"] :][:2]  # two for each stage
        program = amp_program(own, "adam", world_size=2, **AMP, scaling={"decr_every_n_nan_or_inf": 1})
        return passes.check_over(program, {"mp": 2, "pp": 2}).program

    def sharded(mesh):
        rank = mesh.coordinates["shard"]
        return passes.pipeline(stage(mesh), lambda p: passes.shard(p, rank, 2), *FOLDED).program

    def cut(mesh):
        rank = mesh.coordinates["shard"]
        return passes.pipeline(stage(mesh), *FOLDED, lambda p: passes.shard_elements(p, rank, 2)).program

    plain = run(stage, grid, model)
    for made in (sharded, cut):
        agree(run(made, grid, model), plain)
        agree(run(made, grid, model, odd=[(1, 5)]), run(stage, grid, model, odd=[(1, 5)]))
    skipped = run(stage, grid, model, odd=[(1, 5)])
    assert {float(saved["others"]["loss_scaling"][0]) for _, saved in skipped} == {4.0}
    assert {float(saved["others"]["loss_scaling"][0]) for _, saved in plain} == {8.0}


def test_what_an_owner_sums_along_another_axis_is_in_no_buffer():
    over = passes.over_axes(step_program(PARAMS, "adam", lr=0.5, world_size=4), {"shard": 2, "dp": 2}).program
    for rank in range(2):
        result = passes.coalesce_gradients(passes.shard(over, rank, 2, axis="shard", rule="greedy").program)
        assert not result.applied and any("is reduced to one rank, or sent from one" in why for why in result.reasons)


@pytest.mark.parametrize(("call", "error", "message"), [
    (lambda p: passes.over_axes(p, {"dp": 3}), ValueError, "over_axes: axes: expected 4 ranks, as the program has, g"),
    (lambda p: passes.over_axes(p, {}), TypeError, "over_axes: axes: expected sizes by name, got {}"),
    (lambda p: passes.over_axes(p, {"dp": 0}), ValueError, "over_axes: axes: 'dp': expected an integer from 1 to 104"),
    (lambda p: passes.over_axes(p, {3: 4}), TypeError, "over_axes: axes"),
    (lambda p: passes.over_axes(p.main, {"dp": 4}), TypeError, "over_axes: program: expected a Program, got "),
    (lambda p: passes.check_over(p, [4]), TypeError, r"check_over: axes: expected sizes by name, got \[4\]")])
def test_axes_that_are_none(call, error, message):
    with pytest.raises(error, match=f"^{message}"):
        call(amp_program(PARAMS, "adam", world_size=4, **AMP))


def test_nothing_to_do():
    program = step_program(PARAMS, "adam", lr=0.5)
    assert passes.over_axes(program, {"dp": 2}).reasons == ("nothing is summed over all ranks at once",)
    assert passes.check_over(program, {"mp": 2}).reasons == ("no gradients are checked",)
    over = passes.over_axes(step_program(PARAMS, "adam", lr=0.5, world_size=4), {"shard": 2, "dp": 2}).program
    assert not passes.over_axes(over, {"shard": 2, "dp": 2}).applied
    assert passes.shard(over, 0, 2, axis="mp").reasons == ("no gradient is reduced along 'mp'",)


@pytest.mark.parametrize(("axes", "got"), [({"dp": 4}, "None, among the axes dp"), ({"dp": 1, "shard": 4}, "one of 4")])
def test_a_mesh_of_another_shape(axes, got):
    program = passes.over_axes(step_program(PARAMS, "adam", lr=0.5, world_size=4), {"shard": 2, "dp": 2}).program
    expected = "bind: comm: expected a communicator of 2 ranks along 'shard', as all_reduce needs"
    with pytest.raises(ValueError, match=f"^{expected}, got {got}\n"):
        run(lambda mesh: program, axes)


def test_ranks_that_differ_along_an_axis():
    """Each line of ranks agrees for itself."""
    base = step_program(PARAMS, "adam", lr=0.5, world_size=4)
    over = passes.over_axes(base, {"shard": 2, "dp": 2}).program
    fewer = over.replace(main=[op for op in over.main if (op.type, op.reads) != ("all_reduce", ("a.b@GRAD",))])
    with pytest.raises(CommError, match=r"agree: call 2: rank 0 has main all_reduce of a.w@.*, rank 1 has main all"):
        run(lambda mesh: over if mesh.coordinates["shard"] else fewer, GRID)
