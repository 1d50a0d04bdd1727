"""What a bound program saves: whole variables by their names, whatever passes have cut or shared out."""

import copy
import re

import numpy as np
import pytest
from compositions import Composition, applied_to, differing, on_ranks
from program_cases import adam, put, started, stepped
from sharding_cases import bound_on, brought, gradients_on

from refopt import state
from refopt.comm import local
from refopt.program import bind, passes, placement

PARAMS = [("a.w", (9, 4)), ("a.b", (7,)), ("b.w", (65,)), ("c", ())]
SAME = Composition("amp_program", PARAMS, "adam", {"lr": 0.5, "loss_scale": 8.0, "max_norm": 0.5}, 2)
SENT = "send_to_owners", {"min_block_size": 4}


def programs(*chain, ranks=2):
    made = [SAME.program(1 if chain and chain[0][0] == SENT[0] else ranks)] * ranks
    for name, arguments in chain:
        made = applied_to(made, name, arguments)[0]
    return on_ranks(made)


def on_each(made, function, backend="cpu"):
    """What a function of a bound program, started, gives on each rank."""

    return local.run(lambda world: function(bound_on(made[world.rank], world, backend)), len(made))


SAVED = on_each(programs(("shard", {}), ranks=4), lambda bound: stepped(bound).state_dict())[0]


@pytest.mark.clause("N11")
@pytest.mark.parametrize("chain", [
    (), (("shard", {"rule": "greedy"}), ("optimize_cast", {}), ("fold_casts", {})), (SENT,), (("offload", {}),),
    (("fuse_optimizer", {}),), (("preset", {"name": "sharded"}),)], ids=str)
@pytest.mark.parametrize("backend", ["cpu", "gpu"])
def test_four_ranks_are_two_afterwards(chain, backend):
    """What four ranks have saved, two go on from, whatever passes have made of their steps: all with the same bits."""

    def resumed(bound):
        bound.load(SAVED)
        assert bound.steps == 2 and not differing(bound.state_dict(), SAVED)
        return stepped(bound, 1).state_dict()

    first, *others = on_each(programs(*chain), resumed, backend)
    (expected, *_) = on_each(programs(), resumed)
    assert not differing(first, expected) and not any(differing(first, other) for other in others)


def test_each_state_is_one_of_refopt_state():
    theirs = state.to_torch(SAVED["states"]["a.w"])
    assert theirs["state"][0]["step"] == 2 and theirs["state"][0]["exp_avg"].shape == (9, 4)
    assert sorted(SAVED["states"]) == sorted(SAVED["params"]) == sorted(name for name, _ in PARAMS)
    assert sorted(SAVED["others"]) == ["bad_steps", "good_steps", "loss_scaling"]


def without(*path):
    def change(saved):
        for key in path[:-1]:
            saved = saved[key]
        del saved[path[-1]]
    return change


def with_entry(value, *path):
    def change(saved):
        for key in path[:-1]:
            saved = saved[key]
        saved[path[-1]] = value
    return change


@pytest.mark.parametrize(("change", "error", "message"), [
    (without("states", "b.w", "slots", "beta2_pow"), ValueError, "'b.w': 'beta2_pow': expected an array, got none"),
    (with_entry([], "states", "a.b", "slots", "moment1"), ValueError, "moment1.: expected one array, got 0"),
    (without("params", "c"), ValueError, "'params': 'c': expected an array, got none"),
    (without("others"), ValueError, "saved: expected version, steps, .*, got version, .*, states$"),
    (with_entry(1, "more"), ValueError, "saved: expected version, steps, .*, got .*, more$"),
    (with_entry("lamb", "states", "c", "routine"), ValueError, "'c': routine: expected adam, .*got 'lamb'"),
    (with_entry("uncorrected", "states", "c", "hypers", "epsilon_at"), ValueError, "epsilon_at: expected cor"),
    (with_entry(np.zeros(3, np.float32), "params", "d"), ValueError, "expected what the program has, got 'd', too"),
    (with_entry([np.zeros(7)], "states", "a.b", "slots", "moment1"), ValueError, r"moment1.: expected float32 .* got"),
    (with_entry(np.zeros(3, np.float32), "params", "a.b"), ValueError, r"'a.b': expected float32 of shape \(7"),
    (with_entry(2, "version"), ValueError, "version: expected .*, got 2"),
    (with_entry(-1, "steps"), ValueError, "steps: expected an integer of at least 0, got -1"),
    (with_entry({"beta3": 0.5}, "numbers"), TypeError, "beta3: expected one of"),
    (with_entry([], "params"), TypeError, "'params': expected a mapping"),
])
def test_what_does_not_fit_is_refused(change, error, message):
    """By all ranks alike, and nothing is changed."""
    saved = copy.deepcopy(SAVED)
    change(saved)

    def refused(bound):
        before = bound.state_dict()
        with pytest.raises(error, match=message):
            bound.load(saved)
        assert not differing(before, bound.state_dict())

    on_each(programs(("shard", {})), refused)


def test_what_one_rank_refuses_all_refuse():
    """The others have the right one, and would go on from it alone."""
    def refused(bound):
        saved = copy.deepcopy(SAVED)
        if bound.comm.rank == 1:
            del saved["params"]["a.b"]
        before = bound.state_dict()
        with pytest.raises(ValueError, match=r"'params': 'a\.b': expected an array, got none") as caught:
            bound.load(saved)
        assert ("refused by rank 1" in str(caught.value)) == (bound.comm.rank == 0)
        assert not differing(before, bound.state_dict())

    on_each(programs(("shard", {})), refused)


@pytest.mark.parametrize("change", [
    lambda saved: saved["params"]["a.b"].__setitem__(0, 7), lambda saved: saved.update(steps=5),
    lambda saved: saved["numbers"].update(lr=0.5)], ids=["values", "steps", "numbers"])
def test_ranks_that_bring_two_checkpoints_refuse_both(change):
    """Each is right by itself."""
    def refused(bound):
        saved, before = copy.deepcopy(SAVED), bound.state_dict()
        if bound.comm.rank == 1:
            change(saved)
        with pytest.raises(ValueError, match="saved: expected what rank 0 has on all ranks, got another on rank 1"):
            bound.load(saved)
        assert not differing(before, bound.state_dict())

    on_each(programs(("shard", {})), refused)


def test_order_of_calls():
    bound = bind(adam(PARAMS), {name: np.ones(shape, np.float32) for name, shape in PARAMS})
    for call in (bound.state_dict, lambda: bound.load(SAVED)):
        with pytest.raises(RuntimeError, match=r"expected startup\(\) before it, got none"):
            call()


def test_blocks_that_are_brought_stay():
    """As those of a run that goes on; the others are cut from the whole."""
    made = programs(SENT)
    program = next(p for p in made if "a.w.block0_moment1_0" in p.vars)
    rank, name = made.index(program), "a.w.block0_moment1_0"

    def blocks(world):
        mine = made[world.rank]
        more = {name: np.full(mine.vars[name].shape, 5, np.float32)} if world.rank == rank else {}
        bound = started(mine, brought(mine, 0) | more, comm=world, gradients=gradients_on([], mine, 0))
        read = [bound.read(each) for each in mine.vars if re.fullmatch(r".*block\d_moment1_0", each)]
        return read, bound.arrays.get(name), more

    for read, array, more in local.run(blocks, 2):
        assert array is more.get(name) or not more
        assert sum(bool((x == 5).all()) for x in read) == len(more)


def test_wholes_are_read_from_their_blocks():
    """Where all of these are; elsewhere the error says what has them."""

    def read(world):
        mine = passes.on_device(passes.send_to_owners(adam(PARAMS), 2, min_block_size=4).program, world.rank)
        bound = started(mine, brought(mine, 0), comm=world, gradients=gradients_on([], mine, 0))
        with pytest.raises(ValueError, match=r"a variable that is on this rank as a whole, got 'a\.w_moment1_0'"):
            bound.read("a.w_moment1_0")
        return bound.state_dict()["states"]["a.w"]["slots"]["moment1"][0].shape

    assert local.run(read, 2) == [(9, 4)] * 2


@pytest.mark.clause("N11")
@pytest.mark.parametrize("chain", [
    (("offload", {"masters": True}),), (("preset", {"name": "sharded_by_element"}),)], ids=str)
def test_schedules_save_and_load(chain):
    """Between steps on streams: the checkpoint of `Bound`, and the bits of a run that goes on from one."""
    made = programs(*chain)

    def rank(world):
        program = made[world.rank]
        bounds = []
        gradient = gradients_on(bounds, program, world.rank)
        arrays, plan = put("gpu", brought(program, world.rank)), placement.on_streams(program)
        run = placement.bind_schedule(plan, arrays, comm=world, gradients=gradient)
        bounds.append(run.bound)
        run.set(lr=0.25)
        run.step()
        early = run.state_dict()
        run.load(SAVED)
        assert not differing(run.state_dict(), SAVED)
        run.step(lr=0.125)
        return early, run.state_dict()

    def expected(bound):
        bound.step(lr=0.25)
        early = bound.state_dict()
        bound.load(SAVED)
        bound.step(lr=0.125)
        return early, bound.state_dict()

    for found, right in zip(local.run(rank, 2), on_each(programs(), expected), strict=True):
        assert not any(differing(a, b) for a, b in zip(found, right, strict=True))
