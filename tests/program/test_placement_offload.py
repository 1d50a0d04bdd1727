"""States in the memory of the host: the same bits, no race unless a wait is missing, and how many bytes it takes."""

import math
import re
from dataclasses import replace
from functools import partial

import numpy as np
import program_cases as cases
import pytest
from hypothesis import given
from hypothesis import strategies as st
from placement_cases import elapsed, on, waits_of, without_wait

from refopt import gpu
from refopt.checks.dtypes import ITEM_SIZES
from refopt.program import Op, Program, Var, passes, placement
from refopt.program.placement.schedule import STREAMS
from refopt.simt import DataRace, observe

LOOSE = {"nbytes": 1024, "ring": 2}  # of PARAMS, four updates


def merged(program):
    return cases.everything("merged")(program).program


def ends(machine, plan, watch=False, brought=None):
    """The bits that two steps on streams leave behind, of gradients that stay."""
    program = plan.program
    grads = [name for op in program.main if op.type == "backward" for name in op.outputs["grads"]]
    ready = on(machine, {name: cases.gradients_of(program, 0)(name, 0) for name in grads})
    given = on(machine, cases.arrays_of(program) | (brought or {}))

    def run():
        bound = placement.bind_schedule(plan, given, gradients=ready, stream=machine.new_stream())
        for numbers in ({}, {"lr": 0.25}):
            bound.step(**numbers)
        return cases.read(bound.bound)

    if machine.name != "executor":
        return run()
    with observe(count=False, watch=watch):
        return run()


def expected(program, brought=None):
    given = cases.gradients_of(program, 0)
    bound = cases.started(program, cases.arrays_of(program) | (brought or {}), gradients=lambda name, _: given(name, 0))
    return cases.read(cases.stepped(bound, 2, lr=0.25))


def from_a_quarter(program):
    """Moments that are not 0 at first."""
    return program.replace(vars={
        name: replace(var, initial=0.25) if "moment" in name else var for name, var in program.vars.items()})


CASES = {
    "adam": (lambda: merged(cases.adam()), {}),
    "amp, masters": (lambda: merged(cases.adam(config="amp", early=True)), {"masters": True}),
    "bf16, masters, three": (lambda: merged(cases.adam(config="bf16")), {"masters": True, "ring": 3}),
    "one buffer": (lambda: merged(cases.adam()), {"ring": 1}),
    "one by one": (lambda: cases.adam(config={name: "fp64" if name < "b" else "amp" for name, _ in cases.PARAMS}), {}),
    "numbers": (lambda: merged(cases.adam(lr={name: 0.5**k for k, (name, _) in enumerate(cases.PARAMS)})), {}),
    "at once": (lambda: merged(cases.adam()), {"nbytes": None}),
    "other first values": (lambda: from_a_quarter(cases.adam(cases.PARAMS[:2])), {})}


@pytest.mark.parametrize("case", CASES)
def test_the_bits_of_states_on_the_device(machine, case):
    """In the order of the program; nothing races, on the executor."""
    program, options = CASES[case][0](), {**LOOSE, **CASES[case][1]}
    made = passes.offload(program, **options)
    assert made.applied and not made.reasons
    made.program.check()
    assert ends(machine, placement.on_streams(made.program), watch=True) == expected(program)


@given(program=cases.programs(max_tensors=4, ranks=1), nbytes=st.sampled_from([None, 1, 600, 2000]),
       ring=st.integers(1, 3), masters=st.booleans(), fuse=st.booleans())
@cases.few(20)
def test_any_program(program, nbytes, ring, masters, fuse):
    """By `bind`, too, where copies are ops as any others; and what is done the second time."""
    program = merged(program) if fuse else program
    apply = partial(passes.offload, nbytes=nbytes, ring=ring, masters=masters)
    made = apply(program)
    cases.idempotent(apply, program)
    cases.untouched(apply, program)
    made.program.check()
    before, after = cases.outcome(program), cases.outcome(made.program)
    assert {name: after[name] for name in before} == before
    if made.applied and cases.ranks_of(program) == 1 and not any(var.sparse for var in program.vars.values()):
        plan = placement.on_streams(made.program)
        assert not plan.races()
        assert ends(gpu.device("executor"), plan, watch=True) == expected(program)


def test_brought_states_go_on(machine):
    """What the caller brings is copied to the host's memory, and what it starts from otherwise."""
    program = merged(cases.adam(config="amp"))
    rng = np.random.default_rng(0)
    names = ["a.w_moment1_0", "c_fp32_master_0", "b.w_moment2_0"]
    brought = {name: rng.random(program.vars[name].shape, np.float32) for name in names}
    plan = placement.on_streams(passes.offload(program, masters=True, **LOOSE).program)
    assert ends(machine, plan, brought=brought) == expected(program, brought=brought)


# Waits.


@pytest.mark.parametrize("ring", [*(pytest.param(n, marks=pytest.mark.slow) for n in (1, 2)), 3])
def test_each_wait_that_is_missing_is_reported(executor, ring):
    """Of the update for its states, of the copy for the update, and of the next copy into the same buffer."""
    plan = placement.on_streams(passes.offload(merged(cases.adam()), nbytes=1024, ring=ring).program)
    waits = waits_of(plan)
    kinds = [tuple(plan.label(plan.tasks[number]).split()[0] for number in pair) for pair in waits]
    count = plan.program.counts()["copy_in"]
    assert kinds.count(("merged_adam", "copy_in")) == kinds.count(("copy_out", "merged_adam")) == count == 4
    assert kinds.count(("copy_in", "copy_out")) == count - ring
    for task, wait in waits:
        assert without_wait(plan, task, wait).races()
    for task, wait in dict(zip(kinds, waits, strict=True)).values():  # one of each kind
        with pytest.raises(DataRace):
            ends(executor, without_wait(plan, task, wait), watch=True)


def test_copies_run_beside_updates():
    """With stages of the same length: all three at a time with three buffers, two with two."""
    program = merged(cases.adam([(f"w{k}", (64,)) for k in range(8)]))
    program = program.replace(main=program.main[-1:], vars={
        name: replace(var, persistable=True) for name, var in program.vars.items()})
    for ring, turns in ((1, 24), (2, 13), (3, 10)):
        plan = placement.on_streams(passes.offload(program, nbytes=512, ring=ring).program)
        assert len(plan.streams) == 3 and {len(tasks) for tasks in plan.streams.values()} == {8, 10}
        assert elapsed(plan, lambda task: task.kind == "run") == turns
    one = placement.on_streams(plan.program, dict.fromkeys(STREAMS, "compute"))
    assert elapsed(one, lambda task: task.kind == "run") == 24


# Bytes.


@pytest.mark.parametrize(("nbytes", "ring"), [(None, 2), (1, 1), (1, 4), (1024, 2), (1024, 3), (1, 99)])
@pytest.mark.parametrize("masters", [False, True])
def test_memory(executor, nbytes, ring, masters):
    """By the formula, and as the allocations of a bound schedule."""
    made = passes.offload(merged(cases.adam(config="amp")), nbytes=nbytes, ring=ring, masters=masters).program
    slots = ["moment1", "moment2"] + ["master_params"] * masters
    groups = [[x for slot in slots for x in op.inputs[slot]] for op in made.main if op.type == "merged_adam"]
    s = [sum(-(-math.prod(made.vars[x].shape) * 4 // 256) * 256 for x in group) for group in groups]
    assert all(
        total <= (nbytes or math.inf) or len(group) == len(slots) for total, group in zip(s, groups, strict=True))
    device = sum(max(s[b] for b in range(len(s)) if b % ring == r) for r in range(min(ring, len(s))))
    rings = [var for var in made.vars.values() if var.name.startswith("@RING@")]
    assert sum(math.prod(var.shape) for var in rings) == device and len(rings) == min(ring, len(s))
    bound = placement.bind_schedule(placement.on_streams(made), on(executor, cases.arrays_of(made))).bound
    near = {bound.arrays[x].buffer.base: bound.arrays[x].buffer.nbytes for group in groups for x in group}
    far = {bound.arrays[x.removesuffix("@DEVICE")].buffer.base: bound.arrays[x.removesuffix("@DEVICE")].buffer.nbytes
           for group in groups for x in group}
    assert sum(near.values()) == device and sum(far.values()) == sum(s) and not near.keys() & far.keys()


def test_a_copy_is_in_one_piece(executor):
    """As many copies as updates, each way, of all bytes of its states."""
    made = passes.offload(merged(cases.adam()), **LOOSE).program
    with observe(count=()) as log:
        run = placement.bind_schedule(placement.on_streams(made), on(executor, cases.arrays_of(made)))
        before = len(log.copies)
        run.step()
    moved = [copy.nbytes for copy in log.copies[before:] if copy.kind == "DtoD"]
    sizes = [
        sum(-(-math.prod(made.vars[x].shape) * ITEM_SIZES[made.vars[x].dtype] // 256) * 256 for x in op.inputs["x"])
        for op in made.main if op.type in ("copy_in", "copy_out")
    ]
    assert moved == sizes and len(sizes) == 8


# What is left alone, and what is refused.


def flat():
    return cases.everything("flat", grouping="by_count", count=2)(cases.adam()).program


def cut():
    """Blocks of parameters, with states that are cut at startup."""
    return passes.on_device(passes.send_to_owners(cases.adam([("w", (8, 4))]), 2, min_block_size=4).program, 0)


def used():
    """A program that reads a state elsewhere."""
    program = cases.adam([("w", (3,))])
    copy = Op("cast", {"x": ["w_moment1_0"]}, {"out": ["m"]}, role="optimize")
    return program.with_vars([Var("m", (3,), "float32")]).replace(main=[*program.main, copy])


@pytest.mark.parametrize(("program", "reason"), [
    (flat, "adam of .*: it is flat"),
    (cut, "adam of 'w.block0': 'w.block0_moment1_0' is made at startup, on the device"),
    (used, "adam of 'w': other ops use 'w_moment1_0', too"),
    (lambda: passes.offload(cases.adam([("w", (3,))])).program, "'w_moment1_0@DEVICE' is not separate memory"),
    (lambda: passes.reduce_to_owners(cases.adam(), 2).program, "ops are placed on several devices"),
    (lambda: cases.adam([("w", (0, 3))]), "adam of 'w': it has no states"),
    (lambda: Program({}), "no update has states")])
def test_declined(program, reason):
    program = program()
    made = passes.offload(program)
    assert not made.applied and made.program is program and re.search(reason, " ".join(made.reasons))


def on_executor(**sizes):
    return {name: gpu.to_device(np.zeros(size, np.float32)) for name, size in sizes.items()}


ONE = passes.offload(cases.adam([("w", (3,))])).program


def changed(kind, **sides):
    """A copy in and a copy out, and one of them other than it must be."""
    return ONE.replace(main=[op.replace(**sides) if op.type == kind else op for op in ONE.main if op.type != "adam"])


STATES = ["w_moment1_0", "w_moment2_0"]
NEAR = [f"{name}@DEVICE" for name in STATES]
SHORT, FLOATS = (
    ONE.replace(vars={**ONE.vars, "@RING@0": Var("@RING@0", (count,), dtype)})
    for count, dtype in ((511, "uint8"), (512, "float32"))
)


@pytest.mark.parametrize(("call", "error", "message"), [
    (changed("copy_out", inputs={"x": NEAR}).check, TypeError, "copy_out: ring: expected variables, got none"),
    (changed("copy_in", inputs={"x": STATES[:1]}).check, ValueError, "copy_in: out: expected 1 variables, as x has, g"),
    (changed("copy_in", inputs={"x": ["w_moment1_0", "w_beta1_pow_acc_0"]}).check, ValueError,
     r"copy_in: out\[1\]: expected w_beta1_pow_acc_0: float32 \(1,\), as x has, got w_moment2_0@DEVICE: "),
    *((each.check, ValueError, "copy_in: ring: expected one variable of 512 bytes or more, got @RING@0")
      for each in (SHORT, FLOATS)),
    (changed("copy_in", outputs={"out": NEAR, "ring": ["@RING@0", "w"]}).check, ValueError,
     "copy_in: ring: expected one variable of 512 bytes or more, got @RING@0, w"),
    (lambda: placement.bind_schedule(placement.on_streams(ONE), on_executor(w=3, w_moment1_0=4)), ValueError,
     r"bind_schedule: arrays: 'w_moment1_0': expected float32 of shape \(3,\), got float32 of shape \(4,\)"),
    (lambda: placement.bind_schedule(placement.on_streams(ONE.replace(vars={
        **ONE.vars, "w_moment1_0": Var("w_moment1_0", (3,), "float32", True)})), on_executor(w=3)), ValueError,
     "bind_schedule: arrays: 'w_moment1_0': expected an array, since it has no initial value, got none")])
def test_bad_arguments(call, error, message):
    with gpu.use("executor"), pytest.raises(error, match=message):
        call()
