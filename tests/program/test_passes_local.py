"""Ranks that train alone, and average their parameters every k steps: the bits of a loop by hand, and checkpoints."""

from functools import partial

import numpy as np
import program_cases as cases
import pytest
import sharding_cases as sharding

from refopt import cpu
from refopt.comm import local
from refopt.comm.sums import rank_order
from refopt.program import Config, counts, passes, placement
from refopt.program.passes import local_steps

PARAMS = cases.PARAMS[:3]
RANKS, STEPS = 3, 5
FUSED = passes.coalesce_gradients, passes.fuse_all_reduce, passes.fuse_optimizer


def program_of(ranks=RANKS, **options):
    return cases.adam(PARAMS, world_size=ranks, **options)


def states_of(program, world, backend="cpu", steps=STEPS, saved=None):
    """What a rank has after each step, of which the first ones may have been taken before it was saved."""
    bound = cases.bound_on(program, world, backend)
    if saved is not None:
        bound.load(saved[world.rank])
    return [cases.read(cases.stepped(bound, 1)) for _ in range(steps)], bound.state_dict()


@pytest.mark.clause("N11")
@pytest.mark.parametrize("backend", ["cpu", "gpu"])
@pytest.mark.parametrize("others", [(), FUSED])
@pytest.mark.parametrize("every", [1, 2, 7])
@pytest.mark.parametrize("config", ["fp32", "amp"])
def test_it_is_a_loop_by_hand(config, every, others, backend):
    """Adam of each rank by itself, by `refopt.cpu`; then sums in rank order, times 1 / W, of parameters or masters."""
    alone = program_of(1, config=config)
    made = local_steps(passes.pipeline(program_of(config=config), *others).program, every)
    assert made.applied, made.reasons
    got = [states for states, _ in local.run(partial(states_of, made.program, backend=backend), RANKS)]
    ranks = [{name: alone.vars[name].initial for name in alone.vars} for _ in range(RANKS)]
    for values in ranks:
        given = cases.arrays_of(alone)
        for name, first in values.items():
            var = alone.vars[name]
            values[name] = given[name].copy() if name in given else np.zeros(var.shape, "f4") if first is None else (
                given[first].astype("f4") if isinstance(first, str) else np.full(var.shape, first, "f4"))
    updates = [op for op in alone.main if op.type == "adam"]
    exact = {op.inputs["params"][0]: op.inputs.get("master_params", op.inputs["params"])[0] for op in updates}
    for step in range(STEPS):
        for rank, values in enumerate(ranks):
            for op in updates:
                slots = {slot: [values[name] for name in names] for slot, names in op.inputs.items()}
                grad = cases.gradients_of(alone, rank)(op.inputs["grads"][0], step)
                cpu.merged_adam(**slots | {"grads": [grad]}, **op.attrs)
        for param, name in exact.items() if (step + 1) % every == 0 else ():
            mean = rank_order([values[name] for values in ranks]) * np.float32(1 / RANKS)
            for values in ranks:
                values[name][...] = mean
                values[param][...] = mean.astype(values[param].dtype)
        for states, values in zip(got, ranks, strict=True):
            there = {name: bits for name, bits in states[step].items() if name in values}
            differing = [name for name, bits in there.items() if bits != values[name].tobytes()]
            assert not differing, f"{differing} after step {step}"
    assert any(state != got[0][0] for states in got for state in states), "ranks are alone"


@pytest.mark.parametrize("every", [2, 3])
@pytest.mark.parametrize("taken", [1, 2, 3, 4])
def test_a_run_resumes_between_two_averages(taken, every):
    """With the parameters and states of each rank, and the number of steps."""
    made = local_steps(program_of(), every).program
    expected = local.run(partial(states_of, made), RANKS)
    saved = [each for _, each in local.run(partial(states_of, made, steps=taken), RANKS)]
    assert [each["steps"] for each in saved] == [taken] * RANKS
    resumed = local.run(partial(states_of, made, steps=STEPS - taken, saved=saved), RANKS)
    assert [states for states, _ in resumed] == [states[taken:] for states, _ in expected]


def test_a_checkpoint_of_a_rank_is_that_of_a_plain_step():
    """It continues a run of any number of ranks, and local steps continue a plain one, with the phase of its steps."""
    made, plain = local_steps(program_of(), 2).program, program_of()
    saved = [each for _, each in local.run(partial(states_of, made, steps=4), RANKS)]
    assert [{**each["params"]}.keys() for each in saved] == [{name for name, _ in PARAMS}] * RANKS
    local.run(partial(states_of, program_of(2), saved=saved[:1] * 2), 2)
    begun = local.run(partial(states_of, plain, steps=1), RANKS)[0][1]
    first, second = zip(*(states for states, _ in local.run(
        partial(states_of, made, steps=2, saved=[begun] * RANKS), RANKS)), strict=True)
    params = [[{name: state[name] for name, _ in PARAMS} for state in states] for states in (first, second)]
    assert params[0][0] == params[0][1] == params[0][2] and params[1][0] != params[1][1]


@pytest.mark.parametrize(("ranks", "wrong", "message"), [
    (RANKS, lambda saved: [saved[0], saved[1] | {"steps": 4}, saved[2]], "'steps': expected 3, as rank 0 has, got 4 "),
    (RANKS, lambda saved: saved[:1] * RANKS, r"'rank': expected \[[12], 3\], this rank .*, got \[0, 3\]"),
    (2, lambda saved: saved, r"'rank': expected \[[01], 2\], this rank and their number, got \[[01], 3\]"),
    (RANKS, lambda saved: [saved[0] | {"rank": None}, *saved[1:]], r"'rank': expected \[0, 3\], this rank .* None")])
def test_a_rank_loads_its_own_checkpoint(ranks, wrong, message):
    """Of the step that all load; nothing is modified."""
    made = local_steps(program_of(), 2).program
    saved = wrong([each for _, each in local.run(partial(states_of, made, steps=3), RANKS)])

    def rank(world):
        bound = cases.stepped(cases.bound_on(local_steps(program_of(ranks), 2).program, world), 1)
        before = cases.read(bound)
        with pytest.raises(ValueError, match=rf"^Bound.load: saved: (refused .*: Bound.load: saved: )?{message}"):
            bound.load(saved[world.rank])
        assert cases.read(bound) == before

    local.run(rank, ranks)


@pytest.mark.parametrize("every", [1, 2, 3])
def test_calls_and_bytes(every):
    """Of so many steps, as communicators count them."""
    made = local_steps(program_of(), every).program

    def rank(world):
        bound = cases.bound_on(made, world)
        world.reset_counts()
        return [(cases.stepped(bound, 1), world.counts)[1] for _ in range(6)]

    expected = [counts.communicated(made, 4096, steps) for steps in range(1, 7)]
    assert local.run(rank, RANKS) == [expected] * RANKS
    assert [each.get("all_reduce", (0, 0))[0] for each in expected] == [k // every for k in range(1, 7)]
    assert counts.communicated(made, steps=6)["all_reduce"] == (6 // every, 6 // every * 4 * (15 + 7 + 70))


@pytest.mark.parametrize("apply", [partial(local_steps, every=2), lambda program: passes.narrow_sums(
    passes.pipeline(program, *FUSED).program)])
def test_on_streams(apply):
    """Steps of a schedule count, too."""
    made = apply(program_of()).program
    assert not placement.on_streams(made).races()

    def rank(world):
        bound = placement.run_schedule(
            placement.on_streams(made), cases.put("gpu", cases.arrays_of(made)), comm=world, steps=3,
            gradients=lambda name, step: cases.put("gpu", {name: cases.gradients_of(made, world.rank)(name, 0)})[name])
        return cases.read(bound)

    def plain(world):
        bound = cases.started(made, cases.arrays_of(made), comm=world,
                              gradients=lambda name, step: cases.gradients_of(made, world.rank)(name, 0))
        return cases.read(cases.stepped(bound, 3))

    assert local.run(rank, RANKS) == local.run(plain, RANKS)


def test_ranks_agree_on_when():
    made = [local_steps(program_of(), every).program for every in (2, 2, 3)]
    with pytest.raises(Exception, match=r"all_reduce in each 2 steps of a.w: .* all_reduce in each 3 steps of a.w"):
        local.run(lambda world: cases.bound_on(made[world.rank], world), RANKS)


def test_each_rank_skips_its_own_steps():
    """An inf on one rank; micro-steps are still averaged."""
    program = sharding.step([("a", (4,))], world_size=2, accumulate=4)
    made = local_steps(program, 2).program
    assert [op.attrs["scale"] for op in made.main if op.type == "scale"] == [0.25, 0.5]
    one, two = ([state["loss_scaling"].item() for state in states] for states in sharding.history(
        [made] * 2, odd=[(0, 1)]))
    assert (one, two) == ([8, 8, 16], [8, 4, 4])


REMAINDER = Config("bfloat16", "bfloat16", "float32", "uint16")
ALONE = "expected all-reduces of gradients over all ranks, and nothing else"


@pytest.mark.parametrize(("program", "reason"), [
    (program_of(1), "no gradients are summed over ranks"),
    (passes.shard(program_of(2), 0, 2).program, ALONE), (passes.shard_elements(program_of(2), 0, 2).program, ALONE),
    (passes.over_axes(program_of(4), {"a": 2, "b": 2}).program, ALONE), (program_of(sparse=["a.w"]), ALONE),
    (local_steps(program_of(), 2).program, ALONE),
    (passes.narrow_sums(program_of()).program, "is summed over ranks, and no scale op averages it"),
    (passes.fold_averages(program_of(rescale_grad=1.0)).program, "is summed over ranks, and no scale op averages it"),
    (passes.offload(program_of()).program, "states are in host memory; apply offload afterwards"),
    (cases.adam(PARAMS[:1], config=REMAINDER, world_size=2), "is a remainder, which has no average"),
    *((cases.edited(program_of(), lambda op, x=x: [op.replace(attrs={"scale": x})] if op.type == "scale" else [op]),
       f"{x!r} is not an average over 3 ranks") for x in (0.3, 0.25, 0.0, -1 / 3, 1e-320))])
def test_what_is_declined(program, reason):
    result = local_steps(program, 2)
    assert result.program is program and any(why.endswith(reason) for why in result.reasons), result.reasons


@pytest.mark.parametrize(("every", "error"), [(0, ValueError), (-1, ValueError), (1.5, TypeError), (None, TypeError)])
def test_bad_arguments(every, error):
    with pytest.raises(error, match=f"^local_steps: every: expected an integer.*, got {every}"):
        local_steps(program_of(), every)
    op = program_of().main[1].replace(attrs={"ranks": RANKS, "every": every})
    with pytest.raises(error, match=r"main\[1\] all_reduce: every: expected an integer"):
        program_of().replace(main=[program_of().main[0], op, *program_of().main[2:]]).check()
