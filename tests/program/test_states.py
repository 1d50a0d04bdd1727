"""What a bound program saves: whole variables by their names, whatever passes have cut or shared out."""

import copy
import re

import numpy as np
import pytest
from compositions import Composition, applied_to, differing, on_ranks
from program_cases import adam, put, started, stepped
from sharding_cases import bound_on, brought, gradients_on
from state.cases import GONE, changed

from refopt import state
from refopt.comm import local
from refopt.program import bind, passes, placement, step_program

PARAMS = [("a.w", (9, 4)), ("a.b", (7,)), ("b.w", (65,)), ("c", ())]
CODED = {name: "uint8" if name == "a.b" else None for name, _ in PARAMS}
SAME = Composition("amp_program", PARAMS, "adam", {"lr": 0.5, "loss_scale": 8.0, "max_norm": 0.5, "state_dtype": CODED},
                   2)
SENT = "send_to_owners", {"min_block_size": 4}


def programs(*chain, ranks=2):
    made = [SAME.program(1 if chain and chain[0][0] == SENT[0] else ranks)] * ranks
    for name, arguments in chain:
        made = applied_to(made, name, arguments)[0]
    return on_ranks(made)


def on_each(made, function, backend="cpu"):
    """What a function of a bound program, started, gives on each rank."""

    return local.run(lambda world: function(bound_on(made[world.rank], world, backend)), len(made))


SAVED = on_each(programs(("shard", {}), ranks=4), lambda bound: stepped(bound, lr=0.25).state_dict())[0]


@pytest.mark.clause("N11")
@pytest.mark.parametrize("chain", [
    (), (("shard", {"rule": "greedy"}), ("optimize_cast", {}), ("fold_casts", {})), (SENT,), (("offload", {}),),
    (("fuse_optimizer", {}),), (("preset", {"name": "sharded"}),)], ids=str)
@pytest.mark.parametrize("backend", ["cpu", "gpu"])
def test_four_ranks_are_two_afterwards(chain, backend):
    """What four ranks have saved, two go on from, whatever passes have made of their steps: all with the same bits."""

    def resumed(bound):
        bound.step(beta1=0.5)
        bound.load(SAVED)
        assert bound.steps == 2 and not differing(bound.state_dict(), SAVED)
        return stepped(bound, 1).state_dict()

    first, *others = on_each(programs(*chain), resumed, backend)
    (expected, *_) = on_each(programs(), resumed)
    assert not differing(first, expected) and not any(differing(first, other) for other in others)


def test_each_state_is_one_of_refopt_state():
    assert SAVED["states"]["a.w"]["hypers"]["lr"] == SAVED["numbers"]["lr"] == 0.25
    theirs = state.to_torch(SAVED["states"]["a.w"])
    assert theirs["state"][0]["step"] == 2 and theirs["state"][0]["exp_avg"].shape == (9, 4)
    assert sorted(SAVED["states"]) == sorted(SAVED["params"]) == sorted(name for name, _ in PARAMS)
    assert sorted(SAVED["others"]) == ["bad_steps", "good_steps", "loss_scaling"]


@pytest.mark.parametrize("norm_of", ["param", "master"])
def test_a_norm_of_parameters_that_have_no_masters(norm_of):
    """Whether casts are folded into the updates or not, either loads what the other has saved."""
    numbers = {"lr": 0.5, "mu": 0.75, "loss_scale": 8.0, "norm_of": norm_of}
    program = Composition("amp_program", PARAMS, "lars_momentum", numbers, 1).program(1)
    folded = passes.fold_casts(passes.optimize_cast(program).program).program
    assert {op.attrs.get("norm_of") for op in folded.main} == {None, "master"}
    saved = [on_each([one], lambda bound: stepped(bound).state_dict())[0] for one in (program, folded)]
    assert not differing(*saved)
    for one, theirs in zip((folded, program), saved, strict=True):
        on_each([one], lambda bound, theirs=theirs: bound.load(theirs))


def test_a_norm_of_masters_is_not_one_of_parameters():
    def of(norm_of):
        program = step_program(PARAMS, "lars_momentum", config="amp", lr=0.5, mu=0.75, norm_of=norm_of)
        return bound_on(program, None)

    saved = of("master").state_dict()
    assert saved["states"]["a.w"]["hypers"]["norm_of"] == "master"
    of("master").load(saved)
    with pytest.raises(ValueError, match="norm_of: expected param, as planned, got master"):
        of("param").load(saved)


def test_numbers_of_a_step_are_in_the_states_of_the_updates_that_take_them():
    """Adam leaves its powers, and so its betas, to other ops; of a list, each state has its tensor's number."""
    program = step_program(PARAMS, {"a.w": "adam", "a.b": "adam", "b.w": "lion", "c": "lion"}, early=True, lr=0.5)
    bound = bound_on(passes.fuse_optimizer(program, form="merged").program, None)
    bound.step(beta1=0.5, lr=[np.float32(0.25), 0.125])
    hypers = {name: each["hypers"] for name, each in bound.state_dict()["states"].items()}
    assert [hypers[name]["beta1"] for name, _ in PARAMS] == [0.9, 0.9, 0.5, 0.5]
    for op in (op for op in bound.program.main if "lr" in op.attrs):
        assert [hypers[name]["lr"] for name in op.outputs["params"]] == [0.25, 0.125]


def test_a_checkpoint_is_nobodys_afterwards():
    """Steps of those that have saved and loaded it change neither each other's arrays nor it."""
    first, second = (stepped(bound_on(*programs(ranks=1), None), 1) for _ in range(2))
    saved = first.state_dict()
    kept = copy.deepcopy(saved)
    second.load(saved)
    stepped(second, 2)
    assert not differing(first.state_dict(), kept) and not differing(saved, kept)


def entry(*path):
    """The place of an entry of a state of the parameter b.w."""
    return "states", "b.w", *path


def slot(name, *index):
    return entry("slots", name, *index)


FITS_NOT = [
    (slot("beta2_pow"), GONE, TypeError, "'b.w': merged_adam: state: slots: .* got none of beta2_pow"),
    *((slot("moment1"), [np.zeros(65, np.float32)] * k, ValueError, f"moment[12]: expected . entries, .* got {n}")
      for k, n in ((0, 1), (2, 1))),
    (("params", "c"), GONE, ValueError, "'params': 'c': expected an entry, got none"),
    (("states", "c"), GONE, ValueError, "'states': 'c': expected an entry, got none"),
    (("others",), GONE, TypeError, "saved: expected a dictionary with version, .*, got none of others$"),
    (("more",), 1, TypeError, "saved: expected no more than version, .*, got 'more'$"),
    (entry("routine"), "lamb", ValueError, "'b.w': merged_adam: state: routine: expected adam, got lamb"),
    (entry("hypers", "epsilon_at"), "uncorrected", ValueError, "epsilon_at: expected cor"),
    (("params", "d"), np.zeros(3, np.float32), ValueError, "expected variables of the program, got 'd'"),
    (slot("moment1", 0), np.zeros(65), ValueError, r"moment1.0.: expected float32 .* got"),
    (("params", "a.b"), np.zeros(3, np.float32), ValueError, r"'a.b': expected float32 of shape \(7"),
    (("version",), 2, ValueError, "version: expected 1, got 2"),
    (("steps",), -1, ValueError, "steps': expected an integer of at least 0, got -1"),
    (("numbers",), {"beta3": 0.5}, TypeError, "beta3: expected one of"),
    (("numbers", "lr"), "0.5", TypeError, "lr: expected a number, got '0.5'"),
    (("params",), [], TypeError, "'params': expected a dictionary"),
    (entry("version"), 2, ValueError, "'b.w': merged_adam: state: version: expected 1, got 2"),
    (entry("version"), GONE, TypeError, "got none of version"), (entry("more"), 1, TypeError, "got 'more'"),
    (entry("hypers", "lr"), "0.5", TypeError, "lr: expected a number, got '0.5'"),
    (entry("hypers", "beta1"), 1.5, ValueError, "beta1: expected a finite float32 at least 0 and below 1, got 1.5"),
    (("states", "a.b", "slots", "moment1", 0, 35), 191, ValueError, r"moment1\[0\]: expected no value below 0, got -"),
    (slot("moment2", 0, 3), -1, ValueError, r"moment2\[0\]: expected no value below 0, got -1.0 at \(3,\)"),
    *((slot("beta1_pow", 0, 0), value, ValueError, r"beta1_pow\[0\]: expected a finite number at least 0 and below 1")
      for value in (1, np.nan, -0.5)),
    (slot("beta2_pow", 0, 0), 1.5, ValueError, r"beta2_pow\[0\]: expected a finite number .* got 1.5"),
    *((("others", "loss_scaling", 0), value, ValueError, "'loss_scaling': expected a finite number above 0, got")
      for value in (np.nan, np.inf, 0, -1)),
    *((("others", name, 0), -1, ValueError, f"{name}': expected an integer of at least 0, got -1")
      for name in ("good_steps", "bad_steps"))]


def refused(brought, error, messages):
    """Each of two ranks refuses what they bring, in words of its own, and nothing is changed."""

    def load(bound):
        before = bound.state_dict()
        with pytest.raises(error, match=messages[bound.comm.rank]):
            bound.load(brought[bound.comm.rank])
        assert not differing(before, bound.state_dict())

    on_each(programs(("shard", {})), load)


@pytest.mark.parametrize(("place", "value", "error", "message"), FITS_NOT)
def test_what_does_not_fit_is_refused(place, value, error, message):
    refused([changed(copy.deepcopy(SAVED), place, value)] * 2, error, [message] * 2)


ANOTHER = "saved: expected what rank 0 has on all ranks, got another on rank 1"
LACKING = "Bound.load: saved: 'params': 'a.b': expected an entry, got none"


@pytest.mark.parametrize(("place", "value", "messages"), [
    (("params", "a.b"), GONE, [f"refused by rank 1: {LACKING}", f"^{LACKING}"]),
    (("params", "b.w"), lambda old: old + 1, [ANOTHER] * 2), (("steps",), 5, ["'steps': expected 2, as rank 0"] * 2),
    (("numbers", "lr"), 0.5, [ANOTHER] * 2),
], ids=["lacking", "values", "steps", "numbers"])
def test_what_one_rank_brings_beside_another(place, value, messages):
    """Neither goes on alone from what is right by itself."""
    refused([SAVED, changed(copy.deepcopy(SAVED), place, value)], ValueError, messages)


def test_numbers_may_come_in_another_order():
    numbers = {"lr": 0.25, "beta1": 0.5}, {"beta1": 0.5, "lr": 0.25}

    def load(bound):
        bound.load(changed(copy.deepcopy(SAVED), ("numbers",), numbers[bound.comm.rank]))
        return bound.steps

    assert on_each(programs(), load) == [2, 2]


def test_arrays_of_a_checkpoint_may_be_in_any_order_of_axes():
    turned = changed(copy.deepcopy(SAVED), ("params", "a.w"), np.asfortranarray(SAVED["params"]["a.w"]))

    def load(bound):
        bound.load(turned)
        return differing(bound.state_dict(), SAVED)

    assert not any(on_each(programs(("shard", {})), load))


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
        assert world.counts["barrier"].calls == 1, "no rank steps while another binds"
        bounds.append(run.bound)
        run.set(lr=0.25, beta1=0.5)
        run.step()
        early = run.state_dict()
        run.load(SAVED)
        assert not differing(run.state_dict(), SAVED)
        run.step()
        run.step(lr=0.125)
        return early, run.state_dict()

    def expected(bound):
        bound.step(lr=0.25, beta1=0.5)
        early = bound.state_dict()
        bound.load(SAVED)
        bound.step()
        bound.step(lr=0.125)
        return early, bound.state_dict()

    for found, right in zip(local.run(rank, 2), on_each(programs(), expected), strict=True):
        assert not any(differing(a, b) for a, b in zip(found, right, strict=True))
