"""Updates of the rows that sparse gradients name: the bits of `merged_lazy` for the rows of all ranks."""

import compositions
import numpy as np
import program_cases as cases
import pytest
from hypothesis import given
from hypothesis import strategies as st

from refopt import cpu
from refopt.checks.dtypes import arithmetic, numpy_dtype
from refopt.comm import CommError, local
from refopt.cpu.lazy import LAZY
from refopt.program import Op, Var, counts, passes, step_program
from refopt.program.passes import fuse_optimizer, update_rows

COUNTS = "global", "row"
TABLES = [("e", (5, 3)), ("f", (2, 2, 3)), ("w", (7,)), ("g", (1, 130))]
SPARSE = "efg"


def program_of(routine="adamw", ranks=2, params=TABLES, **options):
    options = {"sparse": [name for name, _ in params if name in SPARSE], **cases.numbers_of(routine), **options}
    return step_program(params, routine, world_size=ranks, **options)


def by_hand(plain, made, count, ranks, seed):
    """Tables and their states after three steps, by `refopt.cpu.merged_lazy`; rows without a gradient keep every bit.
    """
    there, left = cases.arrays_of(made, seed), {}
    for name, var in made.vars.items():
        if var.persistable and name not in there:
            there[name] = np.full(var.shape, there.get(var.initial, var.initial), numpy_dtype(var.dtype))
    for op in (op for op in plain.main if op.type in LAZY and op.inputs["params"][0] in SPARSE):
        own = {name: there[name].copy() for name in op.writes}
        slots = {slot: [own[name] for name in names] for slot, names in op.inputs.items() if slot != "grads"}
        params, *states = (slots.pop(x.name) for x in LAZY[op.type].slots if not x.optional and x.name != "grads")
        numbers = {key: x for key, x in op.attrs.items() if key not in ("seed", "rounding")}
        if ranks > 1:
            numbers["grad_factor"] = np.array([1 / ranks], arithmetic(plain.vars[op.writes[0]].dtype))
        seen = []
        for step in range(3):
            each = [cases.gradients_of(plain, rank, seed)(f"{op.writes[0]}@GRAD", step) for rank in range(ranks)]
            rows, values = (np.concatenate(x) for x in zip(*each, strict=True))
            lr = 0.25 if step == 2 else numbers["lr"]
            cpu.merged_lazy(op.type, params, [rows], [values], *states, count=count, **slots, **numbers | {"lr": lr})
            seen += rows.tolist()
        for name, x in own.items():
            kept = np.delete(np.arange(len(x)), seen) if len(x) > 1 else []  # not a scalar of the table
            assert x[kept].tobytes() == there[name][kept].tobytes(), "N22, a row without a gradient"
            left[name] = x.tobytes()
    return left


@pytest.mark.clause("N22")
@given(routine=st.sampled_from(sorted(LAZY)), count=st.sampled_from(COUNTS), ranks=st.integers(1, 3),
       params=st.lists(st.sampled_from(TABLES), min_size=1, unique=True), fused=st.booleans(),
       config=st.sampled_from(["fp32", "amp", "bf16", "fp64"]), backend=st.sampled_from(["cpu", "gpu"]),
       seed=st.integers(0, 3))
@cases.few(60)
def test_a_step_is_that_of_the_rows_of_all_ranks(routine, count, ranks, params, fused, config, backend, seed):
    """In rank order; some ranks have none, and rows repeat. One op for many tables leaves the same bits."""
    program = program_of(routine, ranks, params, config=config)
    for law in (cases.untouched, cases.idempotent):
        law(lambda x: update_rows(x, count), program)
    made = update_rows(program, count).program
    made = fuse_optimizer(made).program if fused else made
    expected = by_hand(program, made, count, ranks, seed)
    got = cases.outcome(made, 3, backend, seed)
    assert {name: got[name] for name in expected} == expected


SENT, OWNED, SHARD = ("send_to_owners", {"min_block_size": 4}), ("reduce_to_owners", {}), ("shard", {})
BEFORE = [
    [("coalesce_gradients", {}), ("fuse_all_reduce", {}), ("fuse_optimizer", {})], [("fold_averages", {})],
    [("offload", {})], [SHARD], [SHARD, ("fuse_reduces", {}), ("fuse_broadcasts", {})], [("shard_elements", {})],
    [("all_reduce_gradients", {})], [OWNED], [OWNED, ("on_device", {})]]


@pytest.mark.clause("N11")
@pytest.mark.parametrize("count", COUNTS)
@pytest.mark.parametrize("backend", ["cpu", "gpu"])
@pytest.mark.parametrize("chain", BEFORE, ids=lambda chain: " ".join(name for name, _ in chain))
def test_other_passes_may_come_before(chain, backend, count):
    """The bits and checkpoints of the pass alone, also of a run that goes on from one. Those that come after are in
    `compositions`.
    """
    case = compositions.Composition("step_program", TABLES, "adamw", {
        "sparse": [*SPARSE], **cases.numbers_of("adamw", rescale_grad=1.0)}, 3, passes=tuple(chain))
    programs = [case.program(1 if case.placed else 3)] * 3
    for name, arguments in chain:
        programs, _, _ = compositions.applied_to(programs, name, arguments)
    made = [update_rows(each, count).program for each in compositions.on_ranks(programs)]
    assert all("scatter_add" not in each.counts() for each in made)
    plain = update_rows(case.program(3), count).program
    expected, checkpoints = zip(*compositions.history([plain] * 3), strict=True)
    got, saved = zip(*compositions.history(made, backend), strict=True)
    powers = saved[0]["states"]["e"]["slots"]["beta1_pow"][0].tolist()
    assert len(powers) == len({*powers}) == 1 if count == "global" else len(powers) > len({*powers}) > 1
    assert not compositions.differing(checkpoints[0], saved[2])
    for ends in ([each[-1] for each in got], compositions.history(made, backend, checkpoints)):
        assert not compositions.missed(plain, [each[-1] for each in expected], ends)


def test_other_counts_are_refused():
    """A checkpoint of the table's count is that of a dense step, and no other is."""
    plain = program_of(ranks=1)
    dense, table, rows = (cases.stepped(cases.bound_on(x)) for x in (
        plain, update_rows(plain).program, update_rows(plain, "row").program))
    dense.load(table.state_dict())
    table.load(dense.state_dict())
    saved, given = rows.state_dict(), table.state_dict()
    where = r"^Bound.load: saved: 'states': 'e': merged_adamw: state: beta1_pow\[0\]: expected"
    bad = {**saved, "states": {**saved["states"], "e": {**saved["states"]["e"], "slots": {
        **saved["states"]["e"]["slots"], "beta1_pow": [np.array([0.5, 0.5, 1.0, 0.5, 0.5], "f4")]}}}}
    for bound, state, why in ((rows, given, r"float32 of shape \(5,\), got float32 of shape \(1,\)"),
                              (table, saved, r"one element, got shape \(5,\)"),
                              (rows, bad, r"a finite number at least 0 and below 1, got 1.0 at \(2,\)")):
        before = cases.read(bound)
        with pytest.raises(ValueError, match=f"{where} {why}"):
            bound.load(state)
        assert cases.read(bound) == before


@pytest.mark.parametrize("ranks", [1, 2])
def test_no_dense_gradient_is_kept(ranks):
    """Nor made: a table of 40 GB with rows of a few KB. Ops and bytes are counted."""
    program = program_of("sgd", ranks, [("e", (10**8, 100)), ("f", (5, 3)), ("w", (7,))])
    made = fuse_optimizer(update_rows(program).program)
    dense = {name for name in program.vars if name.endswith("@DENSE")}
    assert len(dense) == 2 and dense.isdisjoint(made.program.vars)
    sent = {"all_gather": 2, "all_reduce": 1, "scale": 1} if ranks > 1 else {}
    assert made.program.counts() == {"backward": 3, **sent, "merged_sgd": 1, "sgd": 1}
    assert counts.communicated(made.program) == counts.communicated(program)
    assert "  count=global lr=0.55 " in str(made.program)
    for count, more in (("global", 0), ("row", 2 * 4 * (5 + 2 + 1 - 3))):  # powers of beta
        adam = program_of("adam", ranks)
        assert counts.kept(update_rows(adam, count).program) == counts.kept(adam) + more + 4 * (ranks > 1)


def with_op(kind, x, **slots):
    """A step in which another op uses the dense gradient before its update."""
    look = Op(kind, {"x": x}, slots, {"scale": 0.5} if kind == "scale" else {}, "communicate")
    return cases.edited(program_of(), lambda op: [look, op] if op.outputs.get("params") == ("e",) else [op])


POWER, NO_COUNT = "f_beta2_pow_acc_0", "'f_beta2_pow_acc_0' is not of this update alone, and cannot count rows"
VARS = {x: Var(x, (1,), "float32", True, initial=first) for x, first in ((POWER, "first"), ("first", 0.5))}


@pytest.mark.parametrize(("program", "reason"), [
    (program_of(sparse=[]), "no sparse gradient is made dense for an update"),
    (program_of("lamb"), "expected one of adagrad, adam, adamw, momentum, sgd, got 'lamb'"),
    (program_of(early=True), "outputs: expected beta1_pow, beta2_pow, since a lazy step advances them, got none"),
    (with_op("scale", [POWER], out=[POWER]), NO_COUNT),
    (program_of().with_vars([Var("copy", (1,), "float32", True, initial=POWER)]), NO_COUNT),
    (program_of().replace(vars={**program_of().vars, **VARS}), NO_COUNT),
    (program_of(state_dtype="uint8"), "moment1[0]: expected float32 or bfloat16, got uint8"),
    (program_of(config="bf16", rounding="stochastic"),
     "rounding: expected nearest, since a lazy step has no other, got 'stochastic'"),
    (with_op("scale", ["e@GRAD@DENSE"], out=["e@GRAD@DENSE"]),
     "scatter_add of 'e@GRAD@DENSE': scale of 'e@GRAD@DENSE' needs 'e@GRAD@DENSE', too"),
    (with_op("look", ["e@GRAD@DENSE"]), "look of 'e@GRAD@DENSE' needs 'e@GRAD@DENSE', too"),
    (with_op("move", ["e"], out=["e@GRAD@GATHERED"]),
     "move of 'e@GRAD@GATHERED' in between changes 'e@GRAD@GATHERED', which scatter_add of 'e@GRAD@DENSE' reads"),
    (cases.edited(program_of(ranks=1), lambda op: [op] if op.role != "optimize" else []),
     "expected one gradient, made in each step and read by an update")])
def test_what_is_declined(program, reason):
    """By one count or both; what is left is valid."""
    results = [update_rows(program, count) for count in COUNTS]
    assert any(why.endswith(reason) for each in results for why in each.reasons), results
    for each in results:
        kept = [name for name in each.program.vars if name.endswith("@DENSE")]
        assert kept == [name for name in program.vars if any(f"{name!r}: " in why for why in each.reasons)]
        each.program.check()


MADE = update_rows(program_of(), "row").program
E, F = (next(op for op in MADE.main if op.outputs.get("params") == (x,)) for x in "ef")


@pytest.mark.parametrize(("of", "change", "error", "message"), [
    (E, {"attrs": {**E.attrs, "count": "rows"}}, ValueError, "merged_lazy_adamw: count: expected one of global, row"),
    (E, {"attrs": {k: x for k, x in E.attrs.items() if k != "count"}}, TypeError,
     r"grads\[0\]: expected a dense variable, got 'e@GRAD@GATHERED', which is sparse"),
    (E, {"inputs": {**E.inputs, "grads": ("f@GRAD@GATHERED",)}}, TypeError,
     r"grads\[0\]: expected a sparse variable of shape \(5, 3\), got f@GRAD@GATHERED: sparse float32 \(2, 2, 3\)"),
    (E, {"inputs": {**E.inputs, "grads": ("e",)}}, TypeError, r"grads\[0\]: expected a sparse variable of shape \(5"),
    (F, {side: {**getattr(F, side), **{x: E.inputs[x] for x in ("beta1_pow", "beta2_pow")}}
         for side in ("inputs", "outputs")}, ValueError,
     r"merged_lazy_adamw: beta1_pow\[0\]: expected shape \(2,\), one for each row, got \(5,\)")])
def test_what_an_update_of_rows_needs(of, change, error, message):
    program = MADE.replace(main=[op.replace(**change) if op == of else op for op in MADE.main])
    with pytest.raises(error, match=rf"^program: main\[\d+\] adamw: {message}"):
        program.check()


def test_passes_that_come_after():
    """Tables stay on all ranks, which have their rows and agree on what is counted; a seed for others is no error."""
    made = passes.shard(MADE, 0, 2)
    assert made.reasons[0] == "'e' is left to all ranks, which have the rows of its gradient"
    assert [root.writes for root in made.program.main if root.type == "broadcast"] == [("w",)]
    plain = update_rows(program_of(ranks=1)).program
    assert passes.reduce_to_owners(plain, 2).reasons == ("adamw of 'e' updates rows; apply update_rows afterwards",)
    cases.stepped(cases.bound_on(plain), 1, 0, seed=3)
    both = MADE, update_rows(program_of()).program
    with pytest.raises(CommError, match="e: count"):
        local.run(lambda world: cases.bound_on(both[world.rank], world), 2)


@pytest.mark.parametrize("backend", ["cpu", "gpu"])
def test_a_step_is_skipped(backend):
    """Counters of rows included; the flag is that of any update."""
    flag = Var("flag", (1,), "float32", True)
    made = cases.edited(program_of(), lambda op: [op.replace(inputs={**op.inputs, "found_inf": ["flag"]})
                                                  if op.type == "adamw" else op], flag)
    made = fuse_optimizer(update_rows(made, "row").program).program
    arrays = {**cases.arrays_of(made), "flag": np.ones(1, np.float32)}

    def rank(world):
        bound = cases.bound_on(made, world, backend, arrays)
        before = cases.read(bound)
        return cases.read(cases.stepped(bound)) == before

    assert cases.on_ranks(2, rank) == [True] * 2
