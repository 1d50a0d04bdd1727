"""Steps on several devices: the same bits as on one, each parameter updated in one place, messages in order."""

from functools import partial

import numpy as np
import placement_cases as cases
import pytest
from hypothesis import given
from hypothesis import strategies as st
from program_cases import PARAMS, adam, arrays_of, few, gradients_of, numbers_of, programs, started

from refopt.comm import local, sums
from refopt.program import Config, Op, Program, Var, passes, placement, step_program
from refopt.program.passes import on_device

STRATEGIES = {
    "reduce": passes.reduce_to_owners, "send": cases.sent, "send balanced": partial(cases.sent, receiver="balanced"),
    "send after all_reduce": partial(cases.sent, strategy="all_reduce")}
MADE = pytest.mark.parametrize("strategy", STRATEGIES)


# Against the step that is the same everywhere.


@pytest.mark.parametrize("options", [
    {}, {"config": "amp"}, {"early": True}, {"sparse": ["a.w", "b.v"]}, {"sparse": ["a.w"], "config": "bf16"},
    {"config": {name: "fp64" if name[0] == "a" else "fp32" for name, _ in PARAMS}}])
@pytest.mark.parametrize("devices", [1, 2, 8])
def test_all_reduce_is_the_usual_step(devices, options):
    """What `step_program` makes for so many ranks, op for op."""
    params = [*PARAMS, ("none", (0, 2))]
    options = {key: {"none": "fp32", **value} if isinstance(value, dict) else value for key, value in options.items()}
    one, many = (adam(params, world_size=world, **options) for world in (1, devices))
    made = passes.all_reduce_gradients(one, devices)
    assert made.program == many and made.applied == (devices > 1)
    made.program.check()


def laws(made, program, devices, strategy):
    """What holds for every program that is placed."""
    cases.one_place_each(made)
    cases.one_update_each(made, program)
    if strategy != "reduce":
        cases.in_order(made)
        cases.messages_fit(made, devices)


@given(program=programs(max_tensors=4, ranks=1), devices=st.integers(1, 8), strategy=st.sampled_from([*STRATEGIES]),
       seed=st.integers(0, 99), turns=st.integers(0, 9))
@few(40)
def test_any_program(program, devices, strategy, seed, turns):
    """Any routine, dtype and shape; whichever rank gets its turn first."""
    made = STRATEGIES[strategy](program, devices).program
    made.check()
    cases.same_bits(made, program, devices, seed=seed, schedule="random")
    if devices > 1:
        laws(made, program, devices, strategy)


EVEN = [("a", (6,)), ("b", (6,)), ("c", (3, 2)), ("d", (6,))]  # where a mix-up shows in the values alone
EXAMPLES = {"even": (lambda: step_program(EVEN, "momentum", **numbers_of("momentum")), 2),
            "early": (lambda: adam([("w", (8, 3)), ("v", (12,))], early=True), 2),
            "sparse": (lambda: adam([("w", (8, 3)), ("v", (12,))], sparse=["w"]), 2),
            "mixed precision": (lambda: adam(PARAMS, config="amp"), 3)}


@MADE
@pytest.mark.parametrize("example", EXAMPLES)
def test_laws(example, strategy):
    make, devices = EXAMPLES[example]
    program = make()
    made = STRATEGIES[strategy](program, devices).program
    made.check()
    assert ("all_reduce" in made.counts()) == ("all_reduce" in strategy) != ("reduce" in made.counts())
    laws(made, program, devices, strategy)
    cases.same_bits(made, program, devices)


@MADE
def test_on_the_executor(strategy):
    program = adam(PARAMS[:4], config="amp", early=True, sparse=["a.w"])
    cases.same_bits(STRATEGIES[strategy](program, 2).program, program, 2, backend="gpu")


@pytest.mark.clause("N10")
@MADE
@pytest.mark.parametrize("devices", [1, 2, 3, *(pytest.param(n, marks=pytest.mark.slow) for n in range(4, 9))])
def test_one_device_with_the_same_reduced_gradients(devices, strategy):
    """No rank, no message: gradients added in rank order, averaged once, and the step of one device."""
    program = step_program(PARAMS, "momentum", **numbers_of("momentum"))
    (got, *_) = cases.ends(STRATEGIES[strategy](program, devices).program, devices, steps=1)

    def reduced(name, step):
        total = sums.rank_order([gradients_of(program, rank)(name, step) for rank in range(devices)])
        return total * np.float32(1 / devices) if devices > 1 else total

    one = cases.started(program, arrays_of(program), gradients=reduced)
    one.step()
    assert {n: got[n] for n in cases.params_of(program)} == {n: one.read(n).tobytes() for n in cases.params_of(program)}


@pytest.mark.parametrize("order", ["master copy other", "other copy master"])
def test_a_device_has_what_its_variables_start_from(order):
    """Whatever that starts from, too, though no op names it; of another device's variables none."""
    first = {"master": None, "copy": "master", "own": "copy", "other": "master", "last": "other"}
    names = [*order.split(), "own", "last"]
    ops = [Op("scale", {"x": [x]}, {"out": [x]}, {"scale": 0.5}, "optimize", device=k)
           for k, x in enumerate(("own", "last"))]
    program = Program({x: Var(x, (3,), "float32", True, initial=first[x]) for x in names}, main=ops)
    program.check()
    for device, used in enumerate(({"master", "copy", "own"}, {"master", "other", "last"})):
        mine = on_device(program, device)
        mine.check()
        assert mine.vars.keys() == used


# Where things are.


def test_where_reduce_puts_things():
    """The balancer's rule by hand: gradients come from the last to the first, of 64, 8, 1, 70, 7, 15 elements."""
    made = passes.reduce_to_owners(adam(), 3).program
    assert passes.owners(made) == {"d.e.f": 0, "a.b": 1, "a.w": 1, "b.v": 1, "b.w": 2, "c": 2}
    assert list(passes.owners(made)) == ["d.e.f", "a.b", "a.w", "b.v", "b.w", "c"], "device by device, then by name"
    assert made.counts() == {"backward": 6, "reduce": 6, "scale": 6, "adam": 6, "broadcast": 6}
    own = [on_device(made, rank).counts() for rank in range(3)]
    assert [c["adam"] for c in own] == [1, 3, 2] and all(c["reduce"] == c["broadcast"] == 6 for c in own)


def test_a_state_is_where_its_parameter_is():
    """So that what else an optimizer does with it is done there, and the other ranks have no need of it."""
    program = step_program(PARAMS[:2], "momentum", **numbers_of("momentum"))
    states = ["a.w_velocity_0", "a.b_velocity_0"]
    after = [Op("scale", {"x": [name]}, {"out": [name]}, {"scale": 0.5}, "optimize") for name in states]
    made = passes.reduce_to_owners(program.replace(main=[*program.main, *after]), 2).program
    assert [(op.type, op.device) for op in made.main if op.role == "optimize"] == [
        ("momentum", 1), ("momentum", 0), ("scale", 1), ("scale", 0)]
    assert [[name for name in states if name in on_device(made, rank).vars] for rank in (1, 0)] == [[x] for x in states]


def test_copies_of_copies_of_a_state_are_where_it_is():
    made, last = step_program([("a", (2,)), ("b", (3,))], "momentum", lr=0.5, mu=0.5), "b_velocity_0"
    chain = [Op("scale", {"x": [x]}, {"out": [y]}, {"scale": 1.0}, "optimize") for x, y in (("t", "u"), ("u", last))]
    at = next(i for i, op in enumerate(made.main) if op.type == "momentum")
    made = made.with_vars([Var(name, (3,), "float32", True, initial=0.0) for name in "tu"])
    made = passes.reduce_to_owners(made.replace(main=[*made.main[:at], *chain, *made.main[at:]]), 2).program
    of = {op.inputs["x"]: op.device for op in made.main if op.type == "scale"}
    homes = {op.inputs["params"]: op.device for op in made.main if op.type == "momentum"}
    assert of["t",] == of["u",] == homes["b",] != homes["a",]


def test_states_are_where_updates_are():
    """No rank has room for states that it does not update, as in any optimizer that is sharded."""
    made, whole = passes.reduce_to_owners(adam(), 3).program, adam()
    held = [
        {name for name, var in on_device(made, rank).vars.items() if var.persistable} - {n for n, _ in PARAMS}
        for rank in range(3)
    ]
    every = {name for name, var in whole.vars.items() if var.persistable} - {n for n, _ in PARAMS}
    assert set.union(*held) == every and sum(map(len, held)) == len(every)


def test_blocks_of_states_are_where_updates_are():
    """The whole of a state is let go once startup has cut it; the parameter stays."""
    made = cases.sent(adam([("w", (8, 3))]), 2, min_block_size=12).program

    def rank(world):
        bound = cases.on_rank(made, world)
        return sorted(set(bound.arrays) - {"w@GRAD"}), bound.arrays[f"w.block{world.rank}_moment1_0"].shape

    for number, (names, shape) in enumerate(local.run(rank, 2)):
        block = f"w.block{number}"
        own = [block + suffix for suffix in ("", "_beta1_pow_acc_0", "_beta2_pow_acc_0", "_moment1_0", "_moment2_0")]
        others = {"w", "w.block0", "w.block1", "w@GRAD.block0", "w@GRAD.block1"}
        assert set(own) <= set(names) <= {*own, *others} and shape == (4, 3)


def test_states_that_the_caller_brings_are_cut():
    """States as of a step before, whole, make up the blocks' states."""
    program, start = adam([("w", (8, 3))]), {}
    one = cases.started(program, arrays_of(program), gradients=gradients_of(program, 0))
    one.step()
    start = {name: one.read(name) for name, var in program.vars.items() if var.persistable}
    made = cases.sent(program, 2, min_block_size=12).program
    given = gradients_of(program, 0)

    def rank(world):
        mine = on_device(made, world.rank)
        arrays = {name: array.copy() for name, array in start.items() if name in mine.vars}
        bound = cases.started(mine, arrays, comm=world, gradients=lambda name, step: given(name, 1))
        bound.step()
        return bound.read("w").tobytes()

    one.step()
    assert local.run(rank, 2) == [one.read("w").tobytes()] * 2


def test_gradients_are_cut_without_a_copy():
    """On the device that has reduced the gradient; on others a block has memory of its own."""
    made = cases.sent(adam([("w", (8, 3))]), 2, min_block_size=12).program
    (cut,) = (op for op in made.main if op.type == "split_by_ref")

    def rank(world):
        arrays = cases.on_rank(made, world).arrays
        return [np.shares_memory(arrays["w@GRAD"], arrays[name]) for name in cut.outputs["out"] if name in arrays]

    found = local.run(rank, 2)
    assert found[cut.device] == [True, True] and found[1 - cut.device] == [False]


def test_blocks_are_dealt_in_turn():
    blocks = [(name, op.device) for op in cases.updates(cases.sent(adam(), 3).program) for name in op.outputs["params"]]
    assert [device for _, device in blocks] == [k % 3 for k in range(len(blocks))]


def test_receivers():
    """The gradient's device; or drawn again from all pieces, from the loads that there are, which is another one."""
    program = adam([("a", (6,)), ("b", (6,)), ("c", (3,))])
    made = {receiver: cases.sent(program, 2, receiver=receiver).program for receiver in ("gradient", "balanced")}
    assert passes.owners(made["gradient"]) == {"a": 0, "c": 0, "b": 1}
    assert passes.owners(made["balanced"]) == {"b": 0, "a": 1, "c": 1}
    balancer = passes.Balancer(2, {"a": 6, "b": 6, "c": 3})
    assert [balancer.get_appropriate_dev([name]) for name in ("c", "b", "a", "a", "b", "c")] == [0, 1, 0, 1, 0, 1]


# What cannot be placed, or cut.


@pytest.mark.parametrize(("program", "why"), [
    (lambda: adam(PARAMS, world_size=2), "all_reduce already has devices or ranks; expected the step of one device"),
    (lambda: passes.reduce_to_owners(adam(), 2).program, "reduce already has devices or ranks"),
    (lambda: passes.fuse_optimizer(adam()).program, "updates a buffer of several parameters; apply fuse_opt")])
@MADE
def test_declined(program, why, strategy):
    result = STRATEGIES[strategy](program(), 2)
    assert not result.applied and why in result.reasons[0]


@MADE
def test_merged_updates_become_those_of_each_device(strategy):
    program = adam(lr={name: 0.5 / k for k, (name, _) in enumerate(PARAMS, 1)})
    merged = passes.fuse_optimizer(program, form="merged").program
    assert merged.counts()["merged_adam"] == 1
    cases.same_bits(STRATEGIES[strategy](merged, 2).program, program, 2)


def test_updates_among_gradients_are_declined():
    program = step_program(PARAMS[:2], "sgd", lr=0.5)
    mixed = program.replace(main=[program.main[k] for k in (0, 3, 1, 2)])
    mixed.check()
    (why,) = cases.sent(mixed, 2).reasons
    assert why == "backward comes after sgd; expected all updates after all gradients"
    cases.same_bits(passes.reduce_to_owners(mixed, 2).program, mixed, 2)


def test_updates_that_share_are_declined_by_servers():
    """Or that nobody makes a gradient for, or that advance what is none's."""
    program = step_program(PARAMS[:2], "momentum", **numbers_of("momentum"))
    first, second = program.main[2:]
    both = second.replace(inputs={**second.inputs, "velocities": ["other"]}, outputs={"params": ["a.b"], "velocities":
                          ["other"]})
    lone = Op("scale", {"x": ["other"]}, {"out": ["other"]}, {"scale": 0.5}, "optimize")
    known = ["a.w_velocity_0", "a.b_velocity_0"]
    more = program.with_vars([Var("other", (7,), "float32", True, initial=0.0)])
    for main, why in (
        ((*program.main, first), "momentum of 'a.w': the update of 'a.w' uses 'a.w', too"),
        ((*program.main, lone), "scale of 'other': expected updates, scale ops of scalars, or casts"),
        ((*program.main, lone.replace(inputs={"x": known}, outputs={"out": known})),
         "scale of 'a.w_velocity_0': expected updates, scale ops of scalars, or casts"),
        ((program.main[1], first, both), "momentum of 'a.b': no backward op makes 'a.b@GRAD'"),
    ):
        assert cases.sent(more.replace(main=main), 2).reasons == (why,)


def test_gates_go_along():
    program = adam(PARAMS[:2])
    main = [op.replace(inputs={**op.inputs, "found_inf": ["flag"]}) if op.type == "adam" else op for op in program.main]
    gated = program.with_vars([Var("flag", (1,), "float32", persistable=True)]).replace(main=main)
    for made in (cases.sent(gated, 2), passes.reduce_to_owners(gated, 2)):
        cases.same_bits(made.program, gated, 2)


@pytest.mark.clause("N11")
@pytest.mark.parametrize(("optimizer", "numbers", "why"), [
    ("lars_momentum", {}, "'b.w' is not cut: lars_momentum has norms of tensors"),
    ("lamb", {}, "'b.w' is not cut: lamb has norms of tensors"),
    ("sgd", {"rounding": "stochastic", "config": Config("bfloat16", "bfloat16", "float32")},
     "'b.w' is not cut: stochastic rounding counts the elements")])
def test_what_is_not_cut(optimizer, numbers, why):
    """A norm of a block is none of the tensor."""
    program = step_program(PARAMS, optimizer, **{**numbers_of(optimizer), **numbers})
    result = cases.sent(program, 3)
    assert any(why in reason for reason in result.reasons), result.reasons
    assert "split_by_ref" not in result.program.counts()
    cases.same_bits(result.program, program, 3)


def test_parameters_without_elements_stay_everywhere():
    program = adam([("none", (0, 2)), ("w", (3,))])
    for make in STRATEGIES.values():
        result = make(program, 2)
        assert [op.device for op in cases.updates(result.program) if op.inputs["params"] == ("none",)] == [None]
        cases.same_bits(result.program, program, 2)
    assert passes.reduce_to_owners(program, 2).reasons == ("'none@GRAD' has no elements and stays on all devices",)


X = {"inputs": {"x": ["w"]}, "outputs": {"out": ["a", "b"]}}
JOIN = {"inputs": {"x": ["a", "b"]}, "outputs": {"out": ["w"]}}


@pytest.mark.parametrize(("shapes", "op", "message"), [
    ({"a": (2, 3), "b": (1, 3)}, Op("split_by_ref", **X), r"out: expected 4 rows in all, as 'w' has, got 3"),
    ({"a": (2, 3), "b": (2, 2)}, Op("concat", **JOIN), r"x\[1\] 'b': expected rows of 'w', \(4, 3\), got \(2, 2\)"),
    ({"a": (2, 3), "b": (4,)}, Op("split_by_ref", **X), r"out\[1\] 'b': expected rows of 'w', \(4, 3\), got \(4,\)"),
    ({"a": (2, 3)}, Op("send", {"x": ["a"]}, {}, {"ranks": 2, "to": 2}), "to: expected an integer from 0 to 1, got 2"),
    ({"a": (2, 3)}, Op("send", {"x": ["a"]}, {}, {"ranks": 2, "to": 1}, device=1), "to: expected another rank, got 1"),
    ({"a": (2, 3)}, Op("recv", {}, {"out": ["a"]}, {"ranks": 2}), "source: expected an integer from 0 to 1, got None"),
    ({"a": (2, 3)}, Op("recv", {}, {"out": ["a"]}, {"source": 1}), "ranks: expected an integer from 1 to 1048576, g"),
    ({"a": (2, 3)}, Op("send", {"x": ["a", "w"]}, {}, {"ranks": 2, "to": 1}), "x: expected one variable, got 2"),
    ({"a": (2, 3)}, Op("send_barrier", {"x": ["a"]}), "out: expected variables, got none"),
    ({"a": (2, 3), "b": (2, 3)}, Op("split", attrs={"blocks": ((0, 0, 6), (1, 6, 6))}, **X), "expected it in startup"),
    ({"a": (4, 3)}, Op("split", {"x": ["w", "w"]}, {"out": ["a"]}, {"blocks": ((0, 0, 12),)}, "startup"),
     "x: expected one variable, got 2")])
def test_bad_ops(shapes, op, message):
    program = step_program([("w", (4, 3))], "sgd", lr=1.0)
    made = program.with_vars(Var(name, shape, "float32", True) for name, shape in shapes.items())
    with pytest.raises((ValueError, TypeError), match=message):
        made.replace(**{"startup" if op.role == "startup" else "main": [op]}).check()


@pytest.mark.parametrize(("attrs", "kept"), [({}, True), ({"keep": True}, True), ({"keep": False}, False)])
def test_what_is_split_stays_unless_it_says_so(attrs, kept):
    cut = Op("split", {"x": ["v"]}, {"out": ["a", "b"]}, {"blocks": ((0, 0, 6), (1, 6, 6)), **attrs}, "startup")
    parts = (Var(name, (2, 3), "float32", True, initial=0.0) for name in "ab")
    new = [Var("v", (4, 3), "float32", True, initial=2.0), *parts]
    made = step_program([("w", (4, 3))], "sgd", lr=0.5).with_vars(new)
    bound = started(made.replace(startup=[*made.startup, cut]), {"w": np.ones((4, 3), np.float32)})
    assert bound.read("b").tolist() == [[2.0] * 3] * 2 and ("v" in bound.arrays) is kept


# Parameters from their owners.


def test_broadcast_params():
    """Before the first step from rank 0, then each from its own; ranks may have them in any order."""

    def rank(world):
        names = [f"p{k}" for k in range(6)]
        arrays = {name: np.full(2, world.rank, np.float32) for name in names}
        turned = names[world.rank :] + names[: world.rank]
        placement.broadcast_params(world, arrays, {name: int(name[1]) % 4 for name in turned})
        first = [int(arrays[name][0]) for name in names]
        again = {name: np.full(2, 10 * world.rank + int(name[1]), np.float32) for name in names}
        placement.broadcast_params(world, again)
        assert [int(again[name][0]) for name in names] == [0, 1, 2, 3, 4, 5]
        with pytest.raises(ValueError, match="broadcast_params: owners: expected names of arrays, got 'x'"):
            placement.broadcast_params(world, arrays, {"p0": 1, "x": 0})
        world.barrier()
        return first, world.counts["broadcast"].calls

    assert local.run(rank, 4) == [([0, 1, 2, 3, 0, 1], 12)] * 4


def test_broadcast_params_waits_for_the_last():
    """No rank goes on before all have called, whichever comes first."""
    for turns in range(4):
        seen = []

        def rank(world, seen=seen):
            arrays = {"a": np.full(1, world.rank, np.int32), "b": np.full(1, world.rank, np.int32)}
            seen.append("in")
            placement.broadcast_params(world, arrays, {"a": 0, "b": 1})
            seen.append("out")
            return arrays["a"][0], arrays["b"][0]

        assert local.run(rank, 3, schedule="random", seed=turns) == [(0, 1)] * 3
        assert seen == ["in"] * 3 + ["out"] * 3


@pytest.mark.parametrize(("owner", "error", "message"), [
    (2, ValueError, "expected a rank from 0 to 1, got 2"), (0.5, TypeError, "expected a rank, got 0.5")])
def test_broadcast_params_from_nobody(owner, error, message):
    """All owners are looked at before anything is sent."""

    def rank(world):
        arrays = {name: np.full(2, world.rank, np.float32) for name in "ab"}
        with pytest.raises(error, match=rf"^broadcast_params: owners\['b'\]: {message}$"):
            placement.broadcast_params(world, arrays, {"a": 0, "b": owner})
        return [int(array[0]) for array in arrays.values()], dict(world.counts)

    assert local.run(rank, 2) == [([0, 0], {}), ([1, 1], {})]


@pytest.mark.parametrize("device", [3, -1])
@pytest.mark.parametrize("make", [passes.reduce_to_owners, passes.all_reduce_gradients, passes.send_to_owners])
def test_on_a_device_that_is_none(make, device):
    with pytest.raises(ValueError, match=f"^on_device: device: expected a rank from 0 to 2, got {device}$"):
        on_device(make(adam(), 3).program, device)


def test_any_device_of_a_program_that_nothing_is_shared_in():
    program = adam([("w", (0,))])
    made = passes.reduce_to_owners(program, 3).program
    assert on_device(made, 2).counts() == made.counts() == program.counts()


# Messages.


class Log:
    """A communicator that keeps a list of what is called."""

    def __init__(self, comm, calls):
        self._comm, self._calls = comm, calls

    def __getattr__(self, name):
        value = getattr(self._comm, name)
        if name in ("barrier", "batch"):
            return lambda: (self._calls.append(name), value())[1]
        return value

    def prepared(self, name, *args):
        call = self._comm.prepared(name, *args)
        return lambda: (self._calls.append(name), call())[1]


def test_messages_move_at_their_barrier():
    """Until then none has been sent; all go at once, and then all ranks meet."""
    made = cases.sent(adam([("w", (8, 3))]), 2, min_block_size=12).program

    def rank(world):
        calls = []
        bound = cases.on_rank(made, world, wrap=lambda world: Log(world, calls))
        calls.clear()
        bound.step()
        return calls

    found = local.run(rank, 2)
    assert found[0] == ["reduce", "batch", "send", "barrier", "batch", "recv", "barrier", "broadcast"]
    assert found[1] == ["reduce", "batch", "recv", "barrier", "batch", "send", "barrier", "broadcast"]


def test_nothing_is_allocated_in_a_step():
    """All arrays are there before the first call (a Paddle hang was of memory made between calls)."""
    made = cases.sent(adam(), 3).program

    def rank(world):
        bound = cases.on_rank(made, world)
        before = dict(bound.arrays)
        bound.step()
        return all(bound.arrays[name] is array for name, array in before.items()) and len(before) == len(bound.arrays)

    assert local.run(rank, 3) == [True] * 3
