"""Collectives of several owners at once: no bit changes, calls are the same, and ops are fewer."""

import re
from functools import partial

import numpy as np
import pytest
from hypothesis import given
from program_cases import few, started
from sharding_cases import LIMITS, RULES, bound_on, in_buckets, steps

from refopt.comm import CommError, local
from refopt.comm.local import LocalCommunicator
from refopt.program import Op, Program, Var, passes, step_program
from refopt.program.ops import collectives

# What is made.


def test_batches_by_hand():
    """The k-th bucket of each owner together; the owner with most has one that is by itself."""
    program = sends("reduce", [0, 1, 0, 2, 0, 1])
    made = passes.batch_owners(program).program
    assert [(op.type, op.reads) for op in made.main] == [("batch", ("x0", "x1", "x3")), ("reduce", ("x4",)),
                                                         ("batch", ("x2", "x5"))]
    batch = made.main[0]
    assert dict(batch.attrs) == {"ranks": 3, "kind": "reduce", "roots": (0, 1, 2), "counts": (1, 1, 1)}
    assert collectives.calls(batch) == [program.main[k] for k in (0, 1, 3)]
    assert "batch            x0 ... x3 (3)  ranks=3 kind=reduce roots=[0 ... 2 (3)] counts=[1 ... 1 (3)]" in str(made)


def sends(kind, roots, names=None, ranks=3):
    """Collectives of one kind, each of another variable."""
    names = names or [f"x{k}" for k in range(len(roots))]
    vars = {name: Var(name, (4,), "float32", persistable=True) for name in names}
    return Program(vars, (), [
        Op(kind, {"x": [name]}, {"out": [name]}, {"ranks": ranks, "root": root}, "communicate")
        for name, root in zip(names, roots, strict=True)
    ])


def test_calls_of_a_batch_are_made_at_once(monkeypatch):
    """The communicator is handed all of them together, and counts each."""
    handed, execute = {0: [], 1: []}, LocalCommunicator._execute

    def recorded(self, calls):
        handed[self.rank].append([(call.operation, call.peer) for call in calls])
        execute(self, calls)

    monkeypatch.setattr(LocalCommunicator, "_execute", recorded)
    program = step_program([(name, (100,)) for name in "abcd"], "adam", world_size=2, lr=0.1)
    made = in_buckets(program, rule="greedy", batched=True)

    def rank(world):
        bound = started(made[world.rank], {name: np.ones(100, "f4") for name in "abcd"}, comm=world,
                        gradients={f"{name}@GRAD": np.ones(100, "f4") for name in "abcd"})
        handed[world.rank].clear()
        world.reset_counts()
        bound.step()
        return {kind: count.calls for kind, count in world.counts.items()}

    assert local.run(rank, 2) == [{"reduce": 2, "broadcast": 2}] * 2
    expected = [[("reduce", 0), ("reduce", 1)], [("broadcast", 0), ("broadcast", 1)]]
    assert handed == {0: expected, 1: expected}


def test_ranks_agree_on_batches():
    """One that makes the calls one by one is told so before anything is called; and one with other roots."""
    program = step_program([(name, (4,)) for name in "ab"], "sgd", world_size=2, lr=0.1)
    apart, made = (in_buckets(program, rule="greedy", batched=batched) for batched in (False, True))
    other = [op.replace(attrs={**op.attrs, "roots": (1, 0)}) if op.type == "batch" else op for op in made[1].main]
    batch = "main reduce root 0 of a@GRAD: float32 (4,), 1 of 2 in a batch"
    for wrong, got in ((apart[1], "main reduce root 1 of b@GRAD: float32 (4,)\n"),
                       (made[1].replace(main=other), "main reduce root 1 of a@GRAD: float32 (4,), 1 of 2 in a batch")):
        with pytest.raises(CommError, match=re.escape(f"rank 0 has {batch}, rank 1 has {got}")):
            local.run(lambda world, wrong=wrong: bound_on([made[0], wrong][world.rank], world), 2)


# The pass.


@given(program=steps(ranks=4), rule=RULES, limit=LIMITS)
@few(15)
def test_others_find_nothing_to_do_after_it(program, rule, limit):
    one = passes.batch_owners(in_buckets(program, rule, limit)[-1]).program
    one.check()
    for apply in (partial(passes.fuse_reduces, limit=limit), partial(passes.fuse_broadcasts, limit=limit / 2),
                  partial(passes.fuse_optimizer, form="merged", per_buffer=True)):
        assert apply(one).program == one or not one.counts().get("batch"), "comes after them"


def wide(program, k, **attrs):
    """An op with a second variable, and further attributes."""
    names = [*program.main[k].reads, f"y{k}"]
    main = list(program.main)
    main[k] = main[k].replace(inputs={"x": names}, outputs={"out": names}, attrs={**main[k].attrs, **attrs})
    return program.with_vars([Var(f"y{k}", (4,), "float32", persistable=True)]).replace(main=main)


def between(name, role="communicate"):
    """Two reductions, and an average of a variable in between."""
    program = sends("reduce", [0, 1], ["a", "b"])
    scale = Op("scale", {"x": [name]}, {"out": [name]}, {"scale": 0.5}, role)
    return program.replace(main=[program.main[0], scale, program.main[1]])


TWO = sends("broadcast", [0, 1])


@pytest.mark.parametrize(("program", "reason"), [
    (sends("reduce", [1, 1, 1]), "no two roots have a collective each that can be one op"),
    (between("a", "optimize"), "reduce 0 of each root: scale of 'a' in between needs 'a', which reduce of 'a' changes"),
    (sends("reduce", [0, 1], ["a", "b"]).replace(main=[sends("reduce", [0], ["a"]).main[0],
                                                       sends("reduce", [1], ["a"]).main[0]]),
     "reduce 0 of each root: reduce of 'a' changes 'a', which reduce of 'a' changes"),
    (TWO.replace(main=[TWO.main[0], TWO.main[1].replace(role="optimize")]),
     "broadcast 0 of each root: role differs: 'communicate' for broadcast of 'x0', 'optimize' for broadcast of 'x1'"),
    (wide(wide(TWO, 0, align_size=8), 1, align_size=16), "broadcast 0 of each root: align_size differs: 8 for")])
def test_calls_that_stay_apart(program, reason):
    result = passes.batch_owners(program)
    assert result.program is program and any(why.startswith(reason) for why in result.reasons), result.reasons


def test_calls_that_come_together():
    """With work of others in between, and averages before and after; with a layout that one of them has no use for;
    each kind by itself."""
    free = between("c", "optimize").with_vars([Var("c", (4,), "float32", persistable=True)])
    for program, expected in ((free, ["scale", "batch"]), (between("b"), ["scale", "batch"]),
                              (between("a"), ["batch", "scale"])):
        made = passes.batch_owners(program).program.main
        assert [op.type for op in made] == expected and program.main[1] in made
    for k in (0, 1):
        program = wide(TWO.replace(main=[op.replace(layer=op.reads[0]) for op in TWO.main]), k, align_size=8)
        (made,) = passes.batch_owners(program).program.main
        assert made.layer is None, "that of neither"
        assert made.attrs["align_size"] == 8
        assert collectives.calls(made)[k] == program.main[k].replace(layer=None)
    both = sends("reduce", [0, 1], ["a", "b"])
    both = both.replace(vars={**both.vars, **TWO.vars}, main=[both.main[0], *TWO.main, both.main[1]])
    assert [op.attrs["kind"] for op in passes.batch_owners(both).program.main] == ["broadcast", "reduce"]


# Ops that make no sense.

GOOD = passes.batch_owners(TWO).program
NAMES = {"inputs": {"x": ["x0", "buffer"]}, "outputs": {"out": ["x0", "buffer"]}}
VIEWS = [Op("coalesce_tensor", {"input": ["x0"]}, {"output": ["x0"], "fused_output": ["buffer"]}, {"copy_data": True})]


def odd(startup=(), dtype="float32", **changes):
    """A batch with other attributes, or other fields."""
    fields = {key: changes.pop(key) for key in ("inputs", "outputs") if key in changes}
    made = GOOD.with_vars([Var("buffer", (-1,), dtype), Var("s", (4,), dtype, persistable=True, sparse=True),
                           Var("h", (4,), "float16", persistable=True)])
    return made.replace(startup=startup, main=[GOOD.main[0].replace(attrs={**GOOD.main[0].attrs, **changes}, **fields)])


@pytest.mark.parametrize(("program", "error", "message"), [
    (odd(kind="all_reduce"), ValueError, "kind: expected one of reduce, broadcast, got 'all_reduce'"),
    (odd(ranks=None), TypeError, "ranks: expected an integer from 1 to 1048576, got None"),
    (odd(roots=[0, 1]), TypeError, "roots: expected a tuple of at least one integer, got [0, 1]"),
    (odd(roots=(0, True)), TypeError, "roots: expected a tuple of at least one integer, got (0, True)"),
    (odd(roots=(0, 0)), ValueError, "roots[1]: expected each root once, got 0 again"),
    (odd(roots=(0, 3)), ValueError, "roots[1]: expected a rank from 0 to 2, got 3"),
    (odd(roots=(-1, 0)), ValueError, "roots[0]: expected a rank from 0 to 2, got -1"),
    (odd(counts=(2,)), ValueError, "counts: expected one for each of 2 roots, got 1"),
    (odd(counts=(0, 2)), ValueError, "counts[0]: expected at least one variable, got 0"),
    (odd(counts=(1, 2)), ValueError, "counts: expected numbers that add up to 2 variables, got 3"),
    (odd(inputs={}), TypeError, "x: expected variables, got none"),
    (odd(outputs={}), TypeError, "out: expected variables, got none"),
    (odd(outputs={"out": ["x1", "x0"]}), ValueError, "out: expected the variables of x, got x1, x0"),
    (odd(startup=VIEWS, **NAMES), ValueError, "x[1]: expected variables that do not overlap, got 'buffer' again"),
    (odd(inputs={"x": ["x0", "s"]}, outputs={"out": ["x0", "s"]}), TypeError, "x[1]: expected a dense variable, got"),
    (odd(inputs={"x": ["x0", "h"]}, outputs={"out": ["x0", "h"]}, roots=(0,), counts=(2,)), TypeError,
     "x: expected one dtype, got float16, float32")])
def test_check_says_what_is_wrong(program, error, message):
    with pytest.raises(error, match=re.escape(f"batch: {message}")):
        program.check()
    GOOD.check()
