"""`Plan.move`: other addresses, and nothing else looked at. The results are those of a plan over the other arrays."""

import gc
import weakref

import numpy as np
import pytest

from refopt import gpu, simt
from refopt.catalog import ROUTINES
from refopt.gpu.cuda import address
from refopt.oracle.exact.build import SIGNATURES, make, step_of
from refopt.oracle.exact.cases import assert_same
from refopt.oracle.exact.laws import reference
from refopt.oracle.exact.placed import Placed, PlacedCase

F = np.float32
KINDS = [("adamw", "merged"), ("lars_momentum", "two_launches"), ("lars_momentum", "carried_norm"),
         ("lars_momentum", "separate"), ("novograd", "merged")]
kinds = pytest.mark.parametrize(("name", "form"), KINDS)
SIZES = [5, 0, 2049, 300]


def at(arrays):
    """Their addresses, 0 for None."""
    return [0 if x is None else address(x) for x in arrays]


def in_int64(arrays):
    return np.array(at(arrays), np.int64)


def planned(machine, name, form, sizes=SIZES, seed=0, **options):
    """A case of a routine, its arrays on the machine, and a plan with numbers."""
    routine = ROUTINES[name]
    case = make(routine, sizes, steps=[step_of(routine)], seed=seed)
    placed = PlacedCase(machine, case)
    return case, placed, placed.plan(form, **step_of(routine), **options)


def after(case, grads):
    """The case, once it has taken a step with some gradients."""
    outcome = reference(case.replace(grads=grads))
    return case.replace(**{name: case.slots[name] and values for name, values in outcome.items()})


@kinds
@pytest.mark.parametrize("shift", [0, 2])
@pytest.mark.parametrize("given", [lambda arrays: (at(arrays), arrays), lambda arrays: (in_int64(arrays),)],
                         ids=["arrays", "int64"])
def test_gradients_move(machine, name, form, shift, given):
    """There and back; a shift makes them unaligned, and so takes other tables."""
    case, placed, plan = planned(machine, name, form)
    others = [g + F(1) for g in case.grads]
    moved = [Placed(machine, g, shift).array for g in others]
    now = case
    for grads, arrays in ((case.grads, placed.grads), (others, moved), (others, moved), (case.grads, placed.grads)):
        plan.move("grads", *given(arrays))
        plan()
        now = after(now, grads)
        assert_same(now.outcome(), placed.outcome(), "move")


@kinds
@pytest.mark.parametrize("given", [lambda arrays: (at(arrays), arrays), lambda arrays: (at(arrays),),
                                   lambda arrays: (in_int64(arrays),)], ids=["arrays", "list", "int64"])
def test_gradients_come_and_go(machine, name, form, given):
    """Whether or not the arrays are given beside the addresses."""
    case, placed, plan = planned(machine, name, form, [5, 2049, 300])
    now = case
    for absent in ([], [1], [0, 1, 2], [2], []):
        there = [None if i in absent else g for i, g in enumerate(placed.grads)]
        plan.move("grads", *given(there))
        plan()
        now = after(now, [None if i in absent else g for i, g in enumerate(case.grads)])
        assert_same(now.outcome(), placed.outcome(), f"without {absent}")


@pytest.mark.parametrize("create", [list, np.array])
def test_a_caller_may_write_its_addresses_again(executor, create):
    params, grads, others = ([gpu.to_device(np.full(3, k, F)) for _ in range(2)] for k in (5, 1, 2))
    plan, addresses = gpu.plan("sgd", params, grads, lr=1.0), create(at(grads))
    for arrays, expected in ((grads, 4), (others, 2), (grads, 1)):
        addresses[:] = at(arrays)
        plan.move("grads", addresses)
        plan()
        assert [x.copy_to_host().tolist() for x in params] == [[expected] * 3] * 2


def test_gradients_of_another_dtype_keep_it_beside_one_that_is_gone(machine):
    routine = ROUTINES["sgd"]
    case = make(routine, [5, 300], SIGNATURES[1], steps=[step_of(routine)])
    placed = PlacedCase(machine, case)
    plan = placed.plan("merged", **step_of(routine))
    plan.move("grads", [0, address(placed.grads[1])])
    plan()
    assert_same(after(case, [None, case.grads[1]]).outcome(), placed.outcome(), "without the first")


def test_gradients_of_no_elements_come_and_go(machine):
    """Nothing is at address 0 either way, so the arrays say which; powers of beta advance with a gradient alone."""
    case, placed, plan = planned(machine, "adamw", "merged", [0, 5, 0])
    now, zeros = case, [0, address(placed.grads[1]), 0]
    for absent in ([], [0], [0, 2], [2], []):
        plan.move("grads", zeros, [None if i in absent else g for i, g in enumerate(placed.grads)])
        plan.move("grads", zeros)  # as they were
        plan()
        now = after(now, [None if i in absent else g for i, g in enumerate(case.grads)])
        assert_same(now.outcome(), placed.outcome(), f"without {absent}")


@pytest.mark.parametrize(("name", "form"), KINDS)
def test_what_a_step_carries_over_is_dropped(machine, name, form):
    """Parameters, scalars and states at other addresses: norms and powers are those of the arrays there."""
    case, placed, plan = planned(machine, name, form)
    other, others, _ = planned(machine, name, form, seed=1)
    plan()
    now = after(case, case.grads)
    for slot in case.routine.slot_names:
        if case.slots[slot]:
            plan.move(slot, at(others.slots[slot]), others.slots[slot])
            now = now.replace(**{slot: other.slots[slot]})
            placed.placed[slot], others.placed[slot] = others.placed[slot], placed.placed[slot]
            plan()
            now = after(now.replace(**{slot: other.slots[slot]}), now.grads)
            got = {x: [p.read() for p in placed.placed[x]] for x in now.outcome() if now.slots[x]}
            machine.synchronize()
            assert_same({x: now.outcome()[x] for x in got}, got, slot)
    saved = plan.state_dict()["slots"]
    for slot in saved:
        assert [x.tobytes() for x in saved[slot] if x is not None] == [
            y.tobytes() for y in now.lists()[slot] if y is not None]


def test_a_norm_of_masters_is_not_carried_to_others(machine):
    routine = ROUTINES["lars_momentum"]
    cases = [make(routine, [300], SIGNATURES[2], steps=[step_of(routine)], seed=k, norm_of="master") for k in (0, 1)]
    placed, others = (PlacedCase(machine, case) for case in cases)
    plan = placed.plan("carried_norm", **step_of(routine))
    plan()
    now = after(cases[0], cases[0].grads).replace(master_params=cases[1].master_params)
    plan.move("master_params", at(others.slots["master_params"]), others.slots["master_params"])
    plan()
    machine.synchronize()
    got = others.placed["master_params"][0].read()
    assert got.tobytes() == after(now, now.grads).master_params[0].tobytes()


def test_what_goes_up(executor):
    """Nothing where nothing has changed; else what lies between the first change and the last, in stream order."""
    stream = simt.cuda.stream()
    params, grads, others = ([gpu.to_device(np.ones(n, F)) for n in (5, 3, 7, 2)] for _ in range(3))
    plan = gpu.plan("sgd", params, grads, lr=0.1, stream=stream)
    for now, nbytes in ((grads, []), ([grads[0], *others[1:3], grads[3]], [32]), (others, [32]), (tuple(others), [])):
        for addresses in (at(now), np.array(at(now), np.uint64)):
            with simt.observe(count=()) as log:
                plan.move("grads", addresses, now)
            assert [copy.nbytes for copy in log.copies] == nbytes
            assert {copy.stream for copy in log.copies} <= {stream} and not log.launches
            nbytes = []


def test_what_is_kept_alive(executor):
    """Arrays that are given are; those before are let go."""
    params, grads = ([gpu.to_device(np.ones(3, F))] for _ in range(2))
    plan = gpu.plan("sgd", params, grads, lr=0.5)
    plan.move("grads", at(grads), grads)
    gc.collect()  # what other tests have left in cycles
    before = simt.memory.live_allocations()
    for value in (2, 3, 4):
        new = [gpu.to_device(np.full(3, value, F))]
        plan.move("grads", at(new), new)
        grads = None
        del new
        plan()
    assert simt.memory.live_allocations() == before and params[0].copy_to_host()[0] == 1 - (2 + 3 + 4) / 2


def test_what_is_at_the_same_address_is_kept_alive(executor):
    """The last arrays that were given are, and no others, though nothing is to be done for them."""
    params, grads = ([gpu.to_device(np.ones(3, F))] for _ in range(2))
    plan = gpu.plan("sgd", params, grads, lr=0.5)
    seen = [weakref.ref(grads[0])]
    for _ in range(2):
        grads = [grads[0][:]]
        seen.append(weakref.ref(grads[0]))
        plan.move("grads", at(grads), grads)
    grads = None
    gc.collect()
    assert [one() is None for one in seen] == [True, True, False]


def test_what_has_become_aligned(machine):
    """Slot by slot: once all arrays of a tensor are, it is accessed so."""
    host = np.ones(300, F)
    off, on = ([Placed(machine, host, shift).array for _ in range(2)] for shift in (3, 0))
    plan = gpu.plan("sgd", off[:1], off[1:], lr=0.5)
    aligned = []
    for slot, k in (("grads", 1), ("params", 0)):
        plan.move(slot, at(on[k : k + 1]), on[k : k + 1])
        aligned += plan._groups[0].aligned
    assert aligned == [False, True]
    plan.move("grads", at(off[1:]), off[1:])
    assert plan._groups[0].aligned == [False]
    scalars = [Placed(machine, host[:1], 3).array for _ in range(2)]  # each is read by itself
    moments = [machine.to_device(host) for _ in range(2)]
    plan = gpu.plan("adam", on[:1], on[1:], *([x] for x in (*moments, *scalars)), lr=0.5)
    assert plan._groups[0].aligned == [True]


def test_rebind_after_move(executor):
    """What is known of moved gradients is enough for later checks of others."""
    params, grads, others, more = ([gpu.to_device(np.full(3, k, F))] for k in range(4))
    plan = gpu.plan("sgd", params, grads, lr=1.0)
    for _ in range(2):  # the second time to where they are
        plan.move("grads", at(others))
        with pytest.raises(ValueError, match=r"^merged_sgd: .*expected memory of its own, got an overlap with"):
            plan.rebind(params=others)
    plan.rebind(params=more)
    plan()
    assert more[0].copy_to_host()[0] == 3 - 2 and params[0].copy_to_host()[0] == 0
    plan.rebind(params=params, grads=others)
    plan.rebind(params=more)
    plan()
    assert more[0].copy_to_host()[0] == 3 - 2 - 2


def test_arrays_that_are_rebound_share_no_memory_that_is_written(executor):
    params, grads = ([gpu.to_device(np.full(3, k, F)) for _ in range(2)] for k in (5, 1))
    plan, (x, g) = gpu.plan("sgd", params, grads, lr=1.0), (gpu.to_device(np.full(6, k, F)) for k in (9, 2))
    with pytest.raises(ValueError, match=r"params\[1\]: expected memory of its own, got an overlap with params\[0\]"):
        plan.rebind(params=[x[:3], x[2:5]], grads=[g[:3], g[3:]])
    plan.rebind(params=[x[:3], x[3:]], grads=[g[:3], g[1:4]])
    plan()
    assert x.copy_to_host().tolist() == [7] * 6


@pytest.mark.parametrize("observed", ["a step", "an upload"])
def test_a_stream_follows_the_former_one(executor, observed):
    """What comes on the other stream is ordered after what has been enqueued on the one before: there is no race."""
    streams = [simt.cuda.stream() for _ in range(2)]
    params, grads, others = ([gpu.to_device(np.ones(300, F))] for _ in range(3))
    plan = gpu.plan("lars_momentum", params, grads, others, lr=0.1, mu=0.9, stream=streams[0])
    more = [gpu.to_device(np.ones(300, F))]
    simt.cuda.synchronize()
    with simt.observe(watch=True) as log:
        plan()
        plan.stream = streams[1]
        assert plan.stream is streams[1]
        if observed == "an upload":
            plan.move("grads", at(more), more)
        plan()
        plan.stream = streams[0].handle
        plan(lr=0.5)
    assert [x.stream for x in log.launches[:: plan.launches]] == [streams[0], streams[1], streams[0]]


def test_the_order_of_a_captured_stream_is_the_callers(executor, monkeypatch):
    plan = gpu.plan("sgd", *([gpu.to_device(np.ones(3, F))] for _ in range(2)), lr=0.1)
    stream = simt.cuda.stream()
    monkeypatch.setattr(type(executor), "new_event", None)
    for captured in (0, stream):
        monkeypatch.setattr(type(executor), "capturing", lambda self, asked, captured=captured: asked == captured)
        for now in (stream, 0):
            plan.stream = now


def test_in_a_capture(executor, monkeypatch):
    """Addresses that a captured step brings are there again after each replay, so others are put back by each step."""
    params, grads, others = ([gpu.to_device(np.full(3, k, dtype)) for dtype in ("f4", "f8")] for k in range(3))
    plan = gpu.plan("sgd", params, grads, lr=1.0)
    monkeypatch.setattr(type(executor), "capturing", lambda self, stream: True)
    with pytest.raises(RuntimeError, match=r"^merged_sgd: expected gradients present and aligned as in the previous"):
        plan.move("grads", [0, 0])
    with pytest.raises(RuntimeError, match=r"^merged_sgd: l2_decay: expected no new value during a capture"):
        plan.set(lr=1.0, l2_decay=0.5)
    plan.move("grads", at(others), others)
    monkeypatch.undo()
    plan.move("grads", at(grads), grads)
    for group, x, y in zip(plan._groups, at(params), at(others), strict=True):
        group.table.array.copy_to_device(np.array([[x], [y], [0]], np.int64))  # as a replay does
    plan()
    assert [x.copy_to_host()[0] for x in params] == [-1, -1]
    assert plan.state_dict()["hypers"]["l2_decay"] == 0  # not what was refused
    plan(l2_decay=0.5)
    assert [x.copy_to_host()[0] for x in params] == [-1.5, -1.5]


@pytest.mark.parametrize(("values", "error", "message"), [
    (("grad", [1, 1]), TypeError, "slot: expected one of params, grads, master_params, got 'grad'"),
    (("grads", [16]), TypeError, "addresses: expected 2 integers, as many as planned, got [16]"),
    (("grads", [16, 1.5]), TypeError, "addresses: expected 2 integers, as many as planned, got [16, 1.5]"),
    *((("grads", places), ValueError, "addresses[1]: expected an address from 0 to 2**63 - 1, got -16")
      for places in ([16, -16], [0, -16], np.array([16, -16]))),
    (("grads", np.array([16, 2**63], np.uint64)), ValueError, "addresses[1]: expected an address from 0 to 2**63 - 1, "
                                                              f"got {2**63}"),
    (("grads", [16, 18]), ValueError, "addresses[1]: expected an address divisible by 4, as float32 needs, got one "
                                      "with remainder 2"),
    (("grads", [16, 32], [None]), ValueError, "arrays: expected 2 entries, as planned, got 1"),
    (("params", [16, 32]), TypeError,
     "arrays: expected the arrays of params, since states are read from them, got None"),
    (lambda params, grads: ("params", at([params[0], None]), [params[0], None]), TypeError,
     "params[1]: expected an array, got None"),
    (lambda params, grads: ("master_params", at(grads), grads), TypeError,
     "master_params[0]: expected no master for a float32 parameter, got float32")])
def test_refused(executor, values, error, message):
    """A refused move leaves the plan with the arrays it had; parameters do not come and go."""
    params, grads = ([gpu.to_device(np.ones(3, F)) for _ in range(2)] for _ in range(2))
    plan = gpu.plan("sgd", params, grads, lr=0.5)
    with pytest.raises(error) as caught:
        plan.move(*(values(params, grads) if callable(values) else values))
    assert str(caught.value) == f"merged_sgd: {'' if callable(values) else 'move: '}{message}"
    plan()
    assert [x.copy_to_host()[0] for x in params] == [0.5, 0.5]


def test_numbers_go_up_by_runs(executor):
    """Only what has changed of a list, and few runs of equal ones as such."""
    count = 40
    params, grads = ([gpu.to_device(np.ones(2, F)) for _ in range(count)] for _ in range(2))
    plan = gpu.plan("sgd", params, grads, lr=0.5)
    now = [0.5] * count
    for change, nbytes in (({}, []), ({3: 0.25}, [4]), ({k: 0.125 for k in range(10, 20)}, [40]),
                           ({0: 2.0, 3: 0.5}, [4, 12]), ({k: float(k) + 3 for k in range(20)}, [80]),
                           ({k: float(k) for k in range(30, 40)}, [40]), ({k: k + 5.0 for k in range(8)}, [4] * 8),
                           ({k: k + 7.0 for k in range(9)}, [36])):
        now = [change.get(k, x) for k, x in enumerate(now)]
        with simt.observe(count=()) as log:
            plan.set(lr=now)
        assert [copy.nbytes for copy in log.copies] == nbytes
        before = [x.copy_to_host()[0] for x in params]
        plan()
        assert [x.copy_to_host()[0] for x in params] == [F(b) - F(lr) for b, lr in zip(before, now, strict=True)]
    for given, rates in ((1.0, [1.0] * count), (now, now), (1.0, [1.0] * count), ([1.0] * count, [1.0] * count),
                         ([1.0] * (count - 1) + [0.0],) * 2):
        before = [x.copy_to_host()[0] for x in params]
        plan(lr=given)
        assert [x.copy_to_host()[0] for x in params] == [b - F(lr) for b, lr in zip(before, rates, strict=True)]


def test_nothing_to_move():
    """A plan of no tensors has nothing to be moved."""
    plan = gpu.plan("sgd", [], [], lr=0.5)
    plan.move("grads", [])
    plan.move("grads", [], [])
    plan()
