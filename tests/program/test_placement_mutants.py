"""Placements that are wrong in one thing each, Paddle's defects among them: some law notices every one of them."""

import random
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from placement_cases import in_order, messages_fit, on_rank, one_place_each, one_update_each, same_bits, sent
from program_cases import PARAMS, adam, numbers_of

from refopt.comm import CommError, local
from refopt.program import Program, passes, placement, step_program
from refopt.program.blocks import Block, slice_variable
from refopt.program.ops import TYPES, messages
from refopt.program.passes import Balancer, on_device, pieces, place, send

EVEN = [("a", (6,)), ("b", (6,)), ("c", (3, 2)), ("d", (6,))]  # where a mix-up shows in the values alone
EXAMPLES = {
    "plain": (lambda: adam(PARAMS, config="amp"), 3),
    "even": (lambda: step_program(EVEN, "momentum", **numbers_of("momentum")), 2),
    "early": (lambda: adam([("w", (8, 3)), ("v", (12,))], early=True), 2),
    "sparse": (lambda: adam([("w", (8, 3)), ("v", (12,))], sparse=["w"]), 2),
}


def laws(make, only=()):
    """Every law on every example."""
    for name, (example, devices) in EXAMPLES.items():
        if only and name not in only:
            continue
        program = example()
        try:
            made = make(program, devices).program
            made.check()
            one_place_each(made)
            one_update_each(made, program)
            if "send_barrier" in made.counts():
                in_order(made)
                messages_fit(made, devices)
            same_bits(made, program, devices)
        except (AssertionError, ValueError, TypeError, CommError) as error:
            raise AssertionError(f"{name}: {error}") from None


def bits(make, only=()):
    """The law of bits alone."""
    for name, (example, devices) in EXAMPLES.items():
        if not only or name in only:
            program = example()
            try:
                same_bits(make(program, devices).program, program, devices)
            except (ValueError, TypeError, CommError) as error:
                raise AssertionError(f"{name}: {error}") from None


BALANCED = partial(sent, receiver="balanced")
EVERYWHERE = partial(sent, strategy="all_reduce")


@pytest.mark.parametrize("make", [passes.reduce_to_owners, sent, BALANCED, EVERYWHERE])
def test_right_placements_keep_the_laws(make):
    laws(make)


def edited(make, edit):
    """A placement whose ops are edited one by one: to another, to none, or to several."""

    def wrong(program, devices):
        result = make(program, devices)
        main = []
        for op in result.program.main:
            other = edit(op, devices)
            main += [other] if not isinstance(other, list) else other
        return send.Result(result.program.replace(main=main), True, result.reasons)

    return wrong


def dropped(kind, **attrs):
    return lambda op, _: [] if op.type == kind and all(op.attrs.get(k) == v for k, v in attrs.items()) else op


def root_0(op, _):
    """Paddle's issue 11728: broadcasts from device 0, whatever device has updated."""
    return op.replace(attrs={**op.attrs, "root": 0}) if op.type == "broadcast" else op


def next_root(op, devices):
    return op.replace(attrs={**op.attrs, "root": (op.attrs["root"] + 1) % devices}) if op.type == "broadcast" else op


def reduced_to_0(op, _):
    return op.replace(attrs={**op.attrs, "root": 0}) if op.type == "reduce" else op


def averaged_on_0(op, _):
    return op.replace(device=0) if op.type == "scale" and op.device is not None else op


def averaged_twice(op, _):
    return [op, op] if op.type == "scale" and op.role == "communicate" else op


def updated_everywhere(op, _):
    return op.replace(device=None) if op.role == "optimize" else op


def updated_on_0(op, _):
    return op.replace(device=0) if op.role == "optimize" else op


def gathered_by_one(op, _):
    return op.replace(device=0) if op.type == "all_gather" else op


REDUCE = {
    "root 0": root_0, "next root": next_root, "reduced to 0": reduced_to_0, "averaged on 0": averaged_on_0,
    "averaged twice": averaged_twice, "updated everywhere": updated_everywhere, "updated on 0": updated_on_0,
    "no broadcast": dropped("broadcast"), "no broadcast from 1": dropped("broadcast", root=1),
    "no average": dropped("scale"), "no reduction": dropped("reduce"), "gathered by one": gathered_by_one,
}  # fmt: skip


@pytest.mark.parametrize("mutant", REDUCE)
def test_laws_kill_mutants_of_reduce(mutant):
    with pytest.raises(AssertionError):
        laws(edited(passes.reduce_to_owners, REDUCE[mutant]))


@pytest.mark.parametrize("mutant", ["root 0", "reduced to 0", "no broadcast", "no average", "no reduction"])
def test_bits_alone_kill_mutants_of_reduce(mutant):
    """What no listing shows."""
    with pytest.raises(AssertionError):
        bits(edited(passes.reduce_to_owners, REDUCE[mutant]), ["even"])


def test_root_0_is_noticed_on_the_executor():
    """Paddle's copies between CPU tensors came from device 0, too, after those between GPUs had been mended."""
    program, devices = EXAMPLES["even"][0](), 2
    same_bits(passes.reduce_to_owners(program, devices).program, program, devices, backend="gpu")
    with pytest.raises(AssertionError, match="N11"):
        same_bits(edited(passes.reduce_to_owners, root_0)(program, devices).program, program, devices, backend="gpu")


# Of messages.


def to_next(op, devices):
    """Sends a gradient to another server than the one that receives it."""
    return op.replace(attrs={**op.attrs, "to": (op.attrs["to"] + 1) % devices}) if op.type == "send" else op


def blocks_turned(op, _):
    """Puts the blocks together the wrong way round."""
    return op.replace(inputs={"x": op.inputs["x"][::-1]}) if op.type == "concat" else op


def cut_turned(op, _):
    return op.replace(outputs={"out": op.outputs["out"][::-1]}) if op.type == "split_by_ref" else op


def barrier_without_messages(op, _):
    return op.replace(inputs={"x": []}, outputs={"out": []}) if op.type == "send_barrier" else op


SEND = {
    "no send_barrier": dropped("send_barrier"), "no fetch_barrier": dropped("fetch_barrier"),
    "no concat": dropped("concat"), "no split": dropped("split_by_ref"), "to the next": to_next,
    "no send": dropped("send"), "no recv": dropped("recv"), "blocks turned": blocks_turned, "cut turned": cut_turned,
    "root 0": root_0, "no broadcast": dropped("broadcast"), "averaged on 0": averaged_on_0,
    "no average": dropped("scale"), "updated on 0": updated_on_0,
}  # fmt: skip


@pytest.mark.parametrize("mutant", SEND)
def test_laws_kill_mutants_of_send_to_owners(mutant):
    with pytest.raises(AssertionError):
        laws(edited(sent, SEND[mutant]), ["plain", "even", "early"])


def moved(make, kind, behind):
    """A placement with an op of one type put behind the last of another."""

    def wrong(program, devices):
        result = make(program, devices)
        main = list(result.program.main)
        (place,) = (i for i, op in enumerate(main) if op.type == kind)
        op = main.pop(place)
        last = max((i for i, other in enumerate(main) if behind(other)), default=place - 1)
        main.insert(last + 1, op)
        return send.Result(result.program.replace(main=main), True)

    return wrong


MOVED = {
    "send_barrier after updates": ("send_barrier", lambda op: op.role == "optimize"),
    "fetch_barrier after concat": ("fetch_barrier", lambda op: op.type == "concat"),
    "fetch_barrier at the end": ("fetch_barrier", lambda op: True),
}


@pytest.mark.parametrize("mutant", MOVED)
@pytest.mark.parametrize("law", [laws, bits])
def test_laws_kill_barriers_in_the_wrong_place(mutant, law):
    with pytest.raises(AssertionError):
        law(moved(sent, *MOVED[mutant]), ["early"])


def test_messages_at_once_are_noticed(monkeypatch):
    """A send that does not wait for its barrier, with a receiver that does: nobody can go on."""

    def at_once(bound, op):
        return lambda: bound.comm.send(bound.arrays[op.reads[0]], op.attrs["to"])

    monkeypatch.setitem(TYPES, "send", replace(TYPES["send"], bind=at_once))
    with pytest.raises(AssertionError, match="no rank can go on"):
        bits(sent, ["early"])


def test_a_barrier_that_does_not_meet_is_noticed(monkeypatch):
    """Messages alone let ranks go on that neither send nor receive."""
    made = sent(adam([("w", (8, 3))]), 3, min_block_size=24).program

    def calls(world):
        bound = on_rank(made, world)
        world.reset_counts()
        bound.step()
        return world.counts["barrier"].calls if "barrier" in world.counts else 0

    assert local.run(calls, 3) == [2, 2, 2]

    def exchange(comm, messages):
        with comm.batch():
            for kind, array, peer in messages:
                getattr(comm, kind)(array, peer)

    monkeypatch.setattr(messages, "exchange", exchange)
    assert local.run(calls, 3) == [0, 0, 0]


# Of what the passes ask.


def drawn_again(self, name):
    """A place is drawn whenever it is asked for, as where reduce, split and send each draw: the reviewer's demand."""
    device = self.get_appropriate_dev([name])
    self._places[name] = device
    return device


def offset_by_number(shapes, count, least=8192):
    """Paddle's offset, taken for an element."""
    cuts = slice_variable(shapes, count, least)
    return [tuple(block._replace(first=block.number * 6) for block in cut) for cut in cuts]


def always_elementwise(program, ops, count, least):
    """Cuts tensors whose norm is needed."""
    name = ops[0].inputs["params"][0]
    return slice_variable([program.vars[name].shape], count, least)[0], ""


def first_block_for_all(program, p):
    """Startup gives every server the first rows."""
    made = _states(program, p)
    return [
        op.replace(attrs={**op.attrs, "blocks": [Block(0, 0, Block(*b).size) for b in op.attrs["blocks"]]})
        for op in made
    ]


_states = send._states


def no_states(program, p):
    """Servers start from zeros."""
    return [op for op in _states(program, p) if program.vars[op.reads[0]].shape == (1,)]


def all_to_server_0(*args):
    return [op.replace(device=0) for op in _updates(*args)]


_updates = send._updates
ASKED = {
    "drawn again": (Balancer, "place", drawn_again, sent),
    "offset by number": (pieces, "slice_variable", offset_by_number, sent),
    "first rows for all": (send, "_states", first_block_for_all, sent),
    "no states": (send, "_states", no_states, sent),
    "server 0": (send, "_updates", all_to_server_0, sent),
    "nothing sparse gathered": (place, "communicated", None, passes.reduce_to_owners),
}


@pytest.mark.parametrize("mutant", ASKED)
def test_laws_kill_what_is_asked_wrongly(monkeypatch, mutant):
    where, name, wrong, make = ASKED[mutant]
    if wrong is None:
        real = place.communicated

        def wrong(*args):
            step = real(*args)
            step.main = [op for op in step.main if op.type != "all_gather"]
            return step

    monkeypatch.setattr(where, name, wrong)
    with pytest.raises(AssertionError):
        laws(make)


def test_laws_kill_norms_of_blocks(monkeypatch):
    program = step_program([("w", (8, 3))], "lars_momentum", **numbers_of("lars_momentum"))
    same_bits(sent(program, 2).program, program, 2)
    monkeypatch.setattr(pieces, "_cut", always_elementwise)
    with pytest.raises(AssertionError, match="N11"):
        same_bits(sent(program, 2).program, program, 2)


# State kept between builds, and orders that are none.


def keeping(stale):
    """Balancers that go on from what the last one has left."""
    last = []

    def made(devices, sizes):
        balancer = Balancer(devices, sizes)
        for name in stale if last else ():
            setattr(balancer, name, getattr(last[-1], name))
        last.append(balancer)
        return balancer

    return made


@pytest.mark.parametrize("make", [passes.reduce_to_owners, sent])
@pytest.mark.parametrize("stale", [("_loads",), ("_places",), ("_loads", "_places")])
def test_state_between_builds_is_noticed(monkeypatch, make, stale):
    """Paddle's first version kept the loads and the names in the builder, and did not clear them."""
    first, second = adam([("a", (6,)), ("b", (5,)), ("c", (1,))]), adam([("b", (5,)), ("a", (6,)), ("d", (9,))])

    def law(alone):
        make(first, 2)
        assert make(second, 2).program == alone, "a build depends on the builds before it"

    alone = make(second, 2).program
    law(alone)
    wrong = keeping(stale)
    for module in (place, send):
        monkeypatch.setattr(module, "Balancer", wrong)
    with pytest.raises(AssertionError, match="depends on the builds before"):
        law(alone)


def test_an_order_of_chance_is_noticed(monkeypatch):
    """Broadcasts in the order of a set, which each process has to itself (Paddle's was unordered)."""
    program, names = adam(PARAMS), [name for name, _ in PARAMS]

    def rank(world):
        return on_rank(passes.reduce_to_owners(program, 3).program, world) and None

    local.run(rank, 3)
    chance = iter(range(99))

    def shuffled(owners):
        items = list(owners.items())
        random.Random(next(chance)).shuffle(items)
        return items

    monkeypatch.setattr(place, "broadcast_order", shuffled)
    with pytest.raises(CommError, match="agree: call"):
        local.run(rank, 3)
    owners = {name: k % 3 for k, name in enumerate(names)}
    monkeypatch.undo()
    for seed in range(5):
        turned = list(owners.items())
        random.Random(seed).shuffle(turned)
        assert place.broadcast_order(dict(turned)) == sorted(owners.items(), key=lambda x: (x[1], x[0]))


def from_rank_0(world, arrays, owners=None):
    for name, _ in sorted(owners.items()):
        world.broadcast(arrays[name], 0)
    world.barrier()


def as_they_come(world, arrays, owners=None):
    for name, root in owners.items():
        world.broadcast(arrays[name], root)
    world.barrier()


def last_left_out(world, arrays, owners=None):
    for name, root in sorted(owners.items())[:-1]:
        world.broadcast(arrays[name], root)
    world.barrier()


def without_waiting(world, arrays, owners=None):
    for name, root in sorted(owners.items()):
        world.broadcast(arrays[name], root)


def from_owners(broadcast):
    """Every rank has what the owner has, and has waited, in whatever order the owners are told."""

    def rank(world):
        arrays = {name: np.full(3, 10 * world.rank + k, np.float32) for k, name in enumerate("abcd")}
        owners = dict(list({"a": 1, "b": 2, "c": 0, "d": 1}.items())[world.rank :] + list({"a": 1, "b": 2}.items()))
        owners = {name: {"a": 1, "b": 2, "c": 0, "d": 1}[name] for name in (*owners, *"abcd")}
        broadcast(world, arrays, owners)
        return [int(arrays[name][0]) for name in "abcd"], world.counts["barrier"].calls

    try:
        found = local.run(rank, 3)
    except (CommError, KeyError) as error:
        raise AssertionError(str(error)) from None
    assert found == [([10, 21, 2, 13], 1)] * 3


def test_laws_of_broadcast_params():
    from_owners(placement.broadcast_params)


@pytest.mark.parametrize("wrong", [from_rank_0, as_they_come, last_left_out, without_waiting], ids=lambda f: f.__name__)
def test_laws_kill_mutants_of_broadcast_params(wrong):
    with pytest.raises(AssertionError):
        from_owners(wrong)


def test_what_a_rank_gets_of_a_barrier(monkeypatch):
    """A rank that kept the messages of others would read what it never made."""
    made = sent(adam(PARAMS), 3).program

    def all_of(program, device):
        kept = [op for op in program.main if op.device in (None, device)]
        return Program(program.vars, program.startup, tuple(kept))

    on_device(made, 1).check()
    with pytest.raises(ValueError, match=r"send_barrier: .* expected a variable that is persistable or made before"):
        all_of(made, 1).check()
