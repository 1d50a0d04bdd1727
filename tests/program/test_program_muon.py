"""Programs with Muon and NorMuon: matrices have one owner, cut where blocks are alone; no pass changes a bit."""

from dataclasses import replace

import numpy as np
import pytest
from compositions import Composition, compositions, violation
from hypothesis import given
from placement_cases import updates
from program_cases import few

from refopt.cpu import Blocks
from refopt.program import Op, Program, Var, bind, passes, step_program

pytest.importorskip("ml_dtypes")
pytestmark = pytest.mark.clause("N11", "N19")
# By parameter: shape, blocks, and where servers may cut it, in rows.
MATRICES = {"a.w": ((6, 4), Blocks(rows=(2, 4), columns=2), [2]), "a.v": ((5, 3), Blocks(), []),
            "b.e": ((4, 2, 3), Blocks(of="experts"), [1, 2, 3]),
            "c.k": ((4, 2, 2, 1), Blocks(2, of="convolution"), [2]), "c.b": ((7,), Blocks(), []),
            "d.m": ((3, 4), Blocks(of="experts"), [])}
PARAMS = [(name, shape) for name, (shape, *_) in MATRICES.items()]
ROUTINES = {"a.w": "normuon", "a.v": "muon", "b.e": "normuon", "c.k": "normuon", "c.b": "adamw", "d.m": "muon"}
NUMBERS = {"lr": 0.5, "mu": 0.75, "weight_decay": 0.125, "iterations": 1, "epsilon": 0.125,
           "blocks": {name: blocks for name, (_, blocks, _) in MATRICES.items()}}
STEPS = {make: Composition(make, PARAMS, ROUTINES, NUMBERS | options, 3) for make, options in (
    ("step_program", {}), ("amp_program", {"loss_scale": 8.0, "max_norm": 0.5, "restarts": ()}))}
SENT = "send_to_owners", {"min_block_size": 4}


def case(*chain, make="step_program", ranks=3, **options):
    return replace(STEPS[make], passes=chain, ranks=ranks, options=STEPS[make].options | options)


@given(case=compositions(of=list(STEPS.values())))
@few(20)
def test_any_passes(case):
    """Parameters on every rank, states where they are, what is saved, and runs that go on from that."""
    assert not violation(case), case


@pytest.mark.parametrize("case", [
    case(("shard", {"rule": "greedy"}), ("fuse_optimizer", {}), ranks=2), case(("shard", {}), ranks=7),
    case(("fuse_optimizer", {}), ("shard", {}), lr={name: 0.25 * k for k, name in enumerate(MATRICES)}, ranks=6),
    case(SENT), case(("fuse_optimizer", {"form": "merged"}), SENT),
    case(SENT, ("on_device", {}), ("fuse_optimizer", {})),
    case(("offload", {}), config="amp"), case(("shard", {}), config="bf16"),
    case(("optimize_cast", {}), ("fold_casts", {}), ("shard", {}), make="amp_program"),
    case(("preset", {"name": "sharded"}), make="amp_program"), case(("preset", {"name": "data_parallel"}))],
    ids=lambda case: " ".join([case.make[:4], *(name for name, _ in case.passes)]))
def test_passes_that_share_out_whole_matrices(case):
    """None of these declines; ranks may be more than matrices."""
    assert not violation(case), case
    assert all(applied for _, applied, _ in case.reasons), case.reasons


@pytest.mark.parametrize("chain", [(("shard", {}), ("fuse_optimizer", {})), pytest.param((), marks=pytest.mark.slow)],
                         ids=str)
def test_on_devices(chain):
    """By the kernels, against NumPy."""
    few = replace(case(*chain, ranks=2), params=PARAMS[1:3])
    assert not violation(few, "gpu")


@pytest.mark.parametrize("chain", [("shard", {"rule": "greedy"}), ("shard_elements", {}),
                                   ("preset", {"name": "sharded_by_element"})])
def test_owners_have_whole_matrices(chain):
    """One rank updates each, and has its momentum, also where all else is cut by element."""
    sharded = case(chain)
    programs = sharded.rewritten()
    assert chain[0] == "preset" or not sharded.reasons[0][2]
    assert not violation(sharded) and {"batch", "reduce"} & {op.type for op in programs[0].main} == {
        "batch" if chain[0] == "preset" else "reduce"}
    assert all(any(name in MATRICES for op in updates(each) for name in op.outputs["params"]) for each in programs)
    for name in MATRICES:
        owners = [k for k, each in enumerate(programs) if any(name in op.outputs["params"] for op in updates(each))]
        kept = [k for k, each in enumerate(programs) if f"{name}_velocity_0" in each.vars]
        assert len(owners) == 1 and (kept == owners or ROUTINES[name] == "adamw")


def pieces_of(program, name):
    """The updates of a parameter, by servers."""
    return [op for op in updates(program) for x in op.inputs["params"] if x.partition(".block")[0] == name]


def test_servers_cut_between_matrices():
    """At the ends of blocks of rows, and between experts; how a piece is cut is in its update."""
    made = passes.send_to_owners(case().program(1), 4, min_block_size=1)
    for name, (shape, blocks, ends) in MATRICES.items():
        if ROUTINES[name] != "adamw":
            pieces = pieces_of(made.program, name)
            rows = [made.program.vars[op.inputs["params"][0]].shape[0] for op in pieces]
            assert np.cumsum(rows).tolist() == [*ends, shape[0]]
            cut = [op.attrs["blocks"] for op in pieces]
            if blocks.of == "experts" or not ends:
                assert cut == [blocks] * len(pieces)
            else:
                assert [sum(each.rows) for each in cut] == rows
                assert {(each.of, each.columns) for each in cut} == {(blocks.of, blocks.columns)}
    assert made.reasons == tuple(f"'{x}' is not cut: muon iterates matrices, each as a whole" for x in ("a.v", "d.m"))


@pytest.mark.parametrize(("servers", "least", "rows"), [
    (1, 1, [8]), (2, 1, [4, 4]), (3, 1, [4, 4]), (4, 1, [2, 2, 2, 2]), (9, 1, [2, 2, 2, 2]), (4, 8, [4, 4]),
    (4, 9, [8])])
def test_a_piece_is_of_as_many_matrices_as_are_worth_while(servers, least, rows):
    """As `slice_variable` has it, with a matrix of two rows of two for a row."""
    program = step_program([("w", (8, 2))], "muon", lr=0.1, blocks=Blocks(rows=4))
    made = passes.send_to_owners(program, servers, min_block_size=least).program
    assert [made.vars[op.inputs["params"][0]].shape[0] for op in pieces_of(made, "w")] == rows


REFUSED = {
    "params[0]: expected a matrix, got shape (6,), which merged_adamw takes (params[0] is 'w')": ([("w", (6,))], {}),
    "blocks: expected a list of Blocks, got int": ([("w", (4, 2))], {"blocks": 3}),
    "coefficients: expected a triple for each of 5 iterations, got 1": ([("w", (4, 2))], {"coefficients": [(1, 2, 3)]}),
    "restarts: expected one after at most 2 iterations in bfloat16": ([("w", (4, 2))], {"restarts": (3,)})}


@pytest.mark.parametrize("said", REFUSED)
def test_what_is_refused(said):
    params, named = REFUSED[said]
    with pytest.raises((TypeError, ValueError)) as caught:
        step_program(params, "muon", lr=0.1, **named)
    assert f"main[1] muon: merged_muon: {said}" in str(caught.value)


def test_a_cut_matrix_is_refused():
    """Elements of one, as `shard_elements` has them of others, are no matrix, whatever came before."""
    vars, ops = {}, []
    for name, shape in (("whole", (4, 2)), ("cut", (8,))):
        slots = {"params": (name,), "grads": (f"{name}.g",), "velocities": (f"{name}.v",)}
        vars |= {x: Var(x, shape, "float32", True, initial=None if x == name else 0.0) for (x,) in slots.values()}
        outputs = {slot: slots[slot] for slot in ("params", "velocities")}
        ops.append(Op("muon", slots, outputs, {"lr": 0.1}, "optimize"))
    Program(vars, (), tuple(ops[:1])).check()
    with pytest.raises(ValueError, match=r"main\[1\] muon: .*: expected a matrix, got shape \(8,\)"):
        Program(vars, (), tuple(ops)).check()


@pytest.mark.parametrize("backend", ["cpu", "gpu"])
def test_numbers_of_a_schedule_are_checked_before_a_step(backend):
    """Other iterations than there are triples are refused, and nothing has changed."""
    import refopt.gpu

    program = step_program([("w", (4, 2))], "muon", lr=0.1, iterations=1, coefficients=[(1.5, -0.5, 0.0)])
    ones = np.ones((4, 2), np.float32)
    put = refopt.gpu.to_device if backend == "gpu" else np.copy
    bound = bind(program, {"w": put(ones)}, backend=backend, gradients={"w@GRAD": ones})
    bound.startup()
    with pytest.raises(ValueError, match="coefficients: expected a triple for each of 2 iterations, got 1"):
        bound.step(iterations=2)
    assert (bound.read("w") == 1).all()
    bound.step()
    assert (bound.read("w") != 1).all()
