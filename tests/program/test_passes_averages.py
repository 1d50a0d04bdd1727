"""Averages that updates form: no bit of what lives on changes, and those that stay have a reason."""

from functools import partial

import numpy as np
import program_cases as cases
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sharding_cases import step

from refopt import cpu
from refopt.checks.dtypes import SIZES
from refopt.comm.sums import rank_order
from refopt.program import Op, Var, passes, run, step_program
from refopt.program.passes import Result, fold_averages

ROUNDED = partial(fold_averages, exact=False)
MERGED = partial(passes.fuse_optimizer, form="merged")
MOSTLY_CPU = st.sampled_from(["cpu", "cpu", "cpu", "gpu"])
HALVES = "float16", "bfloat16"
BACKENDS = pytest.mark.parametrize("backend", ["cpu", "gpu"])


def with_attrs(program, *names, **attrs):
    """The program with other numbers in ops that have them: those that change one of some variables, or all."""

    def change(op):
        about = not names or set(names) & set(op.writes)
        return [op.replace(attrs={**op.attrs, **{key: x for key, x in attrs.items() if about and key in op.attrs}})]

    return cases.edited(program, change)


plain = partial(with_attrs, rescale_grad=1.0)


def is_average(op):
    return op.type == "scale" and all("@GRAD" in name for name in op.writes)


def left(program, dtypes=tuple(SIZES)):
    """Gradients of some dtypes that ops average."""
    names = [name for op in program.main if is_average(op) for name in op.writes]
    return [name for name in names if program.vars[name].dtype in dtypes]


# The laws.


def same(program, made, *options):
    """What lives from step to step has the same bits, but for factors, which the program has no use for."""
    more = [var for name, var in made.vars.items() if name.startswith("grad_factor@") and name not in program.vars]
    cases.same_bits(lambda _: Result(made, True), program.with_vars(more), *options)


def laws(program, staying=()):
    """No bit changes; of all ops, averages alone go, but for some; and the second time nothing is done."""
    made = fold_averages(program).program
    same(program, made)
    assert left(made) == list(staying), f"averages of {left(made)} are left"
    kept = [op for op in program.main if not is_average(op) or op in made.main]
    assert [(op.type, op.outputs, op.attrs) for op in made.main] == [(op.type, op.outputs, op.attrs) for op in kept]
    cases.untouched(fold_averages, program)
    cases.idempotent(fold_averages, program)


def pipeline(program, others, place, fold=fold_averages):
    """Other passes, and averages folded after so many of them."""
    return passes.pipeline(program, *others[:place], fold, *others[place:]).program


@given(program=cases.programs().map(plain), form=st.sampled_from(["auto", "flat", "merged"]), place=st.integers(0, 3),
       memory=st.sampled_from([-1.0, 0.0]), backend=MOSTLY_CPU)
@cases.few(60)
def test_folding_changes_no_bit(program, form, place, memory, backend):
    """On 1 to 8 ranks, alone, and before, between or after the other passes."""
    laws(program, left(program, HALVES))
    groups, update = partial(passes.coalesce_gradients, memory_size=memory), partial(passes.fuse_optimizer, form=form)
    made = pipeline(program, (groups, passes.fuse_all_reduce, update), place)
    same(program, made, 2, backend)
    assert sorted(left(made)) == sorted(left(program, HALVES))


def stepped(programs, backend="cpu", given=None, steps=2):
    """For each rank, what is in all variables after some steps of its program, with its own gradients."""

    def rank(world):
        k = world.rank if world else 0
        program, arrays = programs[k], cases.put(backend, cases.arrays_of(programs[k]))
        gradients = given[k] if given else cases.gradients_of(program, k)
        bound = run(program, arrays, backend=backend, comm=world, gradients=gradients, steps=steps)
        return {name: bound.read(name) for name in bound.arrays}

    return cases.on_ranks(len(programs), rank)


@BACKENDS
def test_gradients_hold_sums(backend):
    """Of any numbers: inf, NaN, subnormals and -0 are multiplied alike; and each dtype has one factor, of its own."""
    odd = [np.inf, np.nan, -np.inf, 1e-45, -1e-45, 3e-39, -0.0, 0.0, 1e38, *cases.values("float32", 40, 1)]
    dtypes, config = {"a": "float32", "b": "float64", "c": "float32"}, {"a": "fp32", "b": "fp64", "c": "fp32"}
    program = step_program([(name, (len(odd),)) for name in config], "sgd", config=config, world_size=3, lr=1.0)
    made = fold_averages(program).program
    factors = {x: Var(f"grad_factor@{1 / 3!r}@{x}", (1,), x, True, initial=1 / 3) for x in dtypes.values()}
    assert made.vars == program.vars | {var.name: var for var in factors.values()}
    assert [op.inputs["grad_factor"] for op in made.main[-3:]] == [(factors[x].name,) for x in dtypes.values()]
    given = [{f"{name}@GRAD": k * np.array(odd, dtypes[name]) for name in dtypes} for k in (1, -0.5, 0.125)]
    before, after = (stepped([each] * 3, backend, given, 1)[0] for each in (program, made))
    for name in dtypes:
        total = rank_order([each[f"{name}@GRAD"] for each in given])
        assert before[name].tobytes() == after[name].tobytes()
        assert np.array_equal(after[f"{name}@GRAD"], total, equal_nan=True)
        assert np.array_equal(before[f"{name}@GRAD"], total * total.dtype.type(1 / 3), equal_nan=True)


# Shards.


def sharded(program, rule, place, fold):
    """The program of each rank, with all other passes."""
    others = passes.fuse_reduces, partial(MERGED, per_buffer=True), passes.fuse_broadcasts, passes.batch_owners
    size = cases.ranks_of(program)
    shards = [partial(passes.shard, rank=rank, degree=size, rule=rule, order="reduced") for rank in range(size)]
    return [pipeline(program, (shard, *others), place, fold) for shard in shards]


def shards_are_as(program, made, backend):
    """Every rank has what all have without shards, of what it is to have."""
    whole = stepped([program] * len(made))[0]
    for state in stepped(made, backend):
        lasting = [name for name, var in program.vars.items() if var.persistable and name in state]
        different = [name for name in lasting if state[name].tobytes() != whole[name].tobytes()]
        assert lasting and not different, f"N11: {different} differ"


@given(program=cases.programs(ranks=4, max_tensors=4).map(plain), rule=st.sampled_from(["paddle", "greedy"]),
       place=st.integers(0, 5), backend=MOSTLY_CPU)
@cases.few(60)
def test_shards_form_averages(program, rule, place, backend):
    """Wherever they are folded; all of them, if bits may change."""
    shards_are_as(program, sharded(program, rule, place, fold_averages), backend)
    made = sharded(program, rule, place, ROUNDED)
    unused = [name for each in made for name in left(each)]
    assert all(name.endswith("@DENSE") for name in unused), "only owners have averages, but for gathered gradients"
    shards_are_as(ROUNDED(program).program, made, backend)


# Averages of 16 bits.


@BACKENDS
@pytest.mark.parametrize("ranks", [2, 3])
@pytest.mark.parametrize("config", ["amp", "bf16"])
def test_an_update_forms_the_average_in_fp32(config, ranks, backend):
    """It is that of the sum, with 1 / W for its factor."""
    program = cases.adam(cases.PARAMS[:1], config=config, world_size=ranks, rescale_grad=1.0)
    given = [{"a.w@GRAD": cases.values(program.vars["a.w"].dtype, (5, 3), rank)} for rank in range(ranks)]
    made = ROUNDED(program).program
    op, programs = made.main[-1], [made] * ranks
    start, end = stepped(programs, steps=0)[0], stepped(programs, backend, given, 1)[0]
    slots = {slot: [start[name]] for slot, (name,) in op.inputs.items()}
    slots["grads"], slots["grad_factor"] = [rank_order([x["a.w@GRAD"] for x in given])], np.full(1, 1 / ranks, "f4")
    cpu.merged_adam(**slots, **op.attrs)
    for slot, (name,) in op.outputs.items():
        assert end[name].tobytes() == slots[slot][0].tobytes(), name


@pytest.mark.parametrize("ranks", [2, 4, 8])
@pytest.mark.parametrize("config", ["amp", "bf16"])
def test_halves_are_exact(config, ranks):
    """Of normal numbers, so that nothing changes."""
    program = cases.adam(config=config, world_size=ranks, rescale_grad=1.0)
    made = ROUNDED(program).program
    same(program, made)
    assert not left(made)


def test_folding_in_two_goes():
    """First what changes no bit, then the rest, with the factors that are there."""
    config = dict(zip((name for name, _ in cases.PARAMS), ["fp32", "amp", "fp64", "bf16", "amp", "fp32"], strict=True))
    program = cases.adam(config=config, world_size=3, rescale_grad=1.0)
    first, whole = fold_averages(program).program, ROUNDED(program)
    assert left(first) == left(program, HALVES) and not left(whole.program) and not whole.reasons
    assert ROUNDED(first).program == whole.program
    cases.idempotent(ROUNDED, first)
    cases.untouched(ROUNDED, first)


# Averages that stay.


def steps_of(names="abc", optimizer="sgd", **options):
    return step_program([(name, (8,)) for name in names], optimizer, world_size=3, lr=0.5, **options)


def scale(*names):
    grads = [f"{name}@GRAD" for name in names]
    return Op("scale", {"x": grads}, {"out": grads}, {"scale": 1 / 3}, "communicate")


def also(*ops):
    """A step with further ops after the average for `b`."""
    kept = Var("kept", (8,), "float32", persistable=True, initial=0.0)
    return cases.edited(steps_of(), lambda op: [op, *ops] if is_average(op) and "b@GRAD" in op.writes else [op], kept)


def without(program, *names):
    """The program without the averages for some."""
    return cases.edited(program, lambda op: [] if is_average(op) and op.writes[0][0] in names else [op])


def chain():
    """Updates of `a`, of `b` and `c`, and of `d`; averages for `a` and `b`, and for `c` and `d`; `e` is by itself."""
    program = without(with_attrs(steps_of("abcde"), "a", rescale_grad=0.37), *"abcd")
    rest, (a, b, _, d, e) = program.main[:-5], program.main[-5:]
    both = {"params": ["b", "c"], "grads": ["b@GRAD", "c@GRAD"]}
    both = b.replace(type="merged_sgd", inputs=both, outputs={"params": both["params"]})
    return program.replace(main=[*rest, scale("a", "b"), scale("c", "d"), a, both, d, e])


def with_more():
    """An average for `b` that another variable shares, which lives from step to step."""
    kept = Var("kept@GRAD", (8,), "float32", persistable=True, initial=1.0)
    x = ("b@GRAD", "kept@GRAD")
    return cases.edited(steps_of(), lambda op: [op.replace(inputs={"x": x}, outputs={"out": x})]
                  if is_average(op) and op.writes == x[:1] else [op], kept)


def mixed():
    """One update of fp64 and fp32."""
    program = steps_of("ab", config={"a": "fp64", "b": "fp32"})
    both = {slot: [name for op in program.main[-2:] for name in op.inputs[slot]] for slot in ("params", "grads")}
    made = program.main[-1].replace(type="merged_sgd", inputs=both, outputs={"params": both["params"]})
    return program.replace(main=[*program.main[:-2], made])


def averaged_again():
    """Averages, though updates form them."""
    made = fold_averages(steps_of()).program
    return cases.edited(made, lambda op: [op, scale(op.writes[0][0])] if op.type == "all_reduce" else [op])


LASTING = Var("b@GRAD", (8,), "float32", persistable=True, initial=0.0)
SECOND = Op("sgd", {"params": ["b@GRAD"], "grads": ["c@GRAD"]}, {"params": ["b@GRAD"]}, steps_of().main[-1].attrs)
TOO, TWICE = "{} uses it, too", "{} already multiplies gradients by a number"
CASES = {  # a step, for which parameters averages stay, why, and whether some do if bits may change
    "fp64": (lambda: steps_of(config="fp64"), "", "", False),
    "norms": (lambda: steps_of(optimizer=dict(zip("abc", ("lamb", "lars_momentum", "novograd"), strict=True)), mu=0.5),
              "", "", False),
    "merged": (lambda: MERGED(steps_of()).program, "", "", False),
    "flat": (lambda: cases.everything(memory_size=0)(steps_of()).program, "", "", False),
    "copied": (lambda: also(Op("cast", {"x": ["b@GRAD"]}, {"out": ["kept"]})), "b", TOO.format("cast of 'kept'"), True),
    "read": (lambda: also(Op("forward", {"params": ["b@GRAD"]})), "b", TOO.format("forward of 'b@GRAD'"), True),
    "updated": (lambda: also(SECOND), "cb", TOO.format("sgd of 'b@GRAD'"), True),
    "checked": (lambda: step([("a", (8,)), ("b", (8,))], world_size=3, max_norm=0.5), "ba",
                TOO.format("check_gradients of 'sums'"), True),
    "checked for inf": (lambda: step([("a", (8,))], accumulate=2), "a", TOO.format("check_gradients of 'sums'"), True),
    "averaged twice": (lambda: also(scale("b")), "b", TOO.format("scale of 'b@GRAD'"), True),
    "not averaged": (lambda: MERGED(without(steps_of(), "b")).program, "ca",
                     "merged_sgd of 'c' also uses 'b@GRAD', which is not an average", True),
    "rescaled": (lambda: with_attrs(steps_of(), "b", rescale_grad=0.37), "b", TWICE.format("sgd of 'b'"), False),
    "a factor": (lambda: MERGED(averaged_again()).program, "cba", TWICE.format("merged_sgd of 'c'"), True),
    "too large": (lambda: with_attrs(steps_of(config="fp64"), "b@GRAD", scale=1e300), "", "", False),
    "other numbers": (lambda: MERGED(with_attrs(steps_of(), "b@GRAD", scale=0.25)).program, "cba",
                      f"scale differs: {1 / 3!r} for scale of 'c@GRAD', 0.25 for scale of 'b@GRAD'", True),
    "persistable": (lambda: steps_of().replace(vars={**steps_of().vars, "b@GRAD": LASTING}), "b",
                    "'b@GRAD' lives from step to step", True),
    "shared": (with_more, ["b", "kept"], "'kept@GRAD' lives from step to step", True),
    "mixed": (mixed, "ba", "merged_sgd of 'a' computes in float32 and float64", True),
    "fp16": (lambda: steps_of(config={"a": "fp32", "b": "amp", "c": "fp64"}), "b", "'b@GRAD' is rounded to float16",
             False),
    "bf16": (lambda: steps_of("b", config="bf16"), "b", "'b@GRAD' is rounded to bfloat16", False),
    "fp32 for fp64": (lambda: steps_of("b", config="fp64", grad_dtype="float32"), "b",
                      "'b@GRAD' is rounded to float32", False),
    "a chain": (chain, "abcd", TWICE.format("sgd of 'a'"), False)}


@pytest.mark.parametrize("case", CASES)
def test_averages_that_stay(case):
    """With the reason; all others go."""
    make, names, why, always = CASES[case]
    program = make()
    laws(program, [f"{name}@GRAD" for name in names])
    result = fold_averages(program)
    assert {reason.partition(": ")[2] for reason in result.reasons[: len(names)]} == ({why} if names else set())
    assert len(result.reasons) <= len(names) + 1
    assert bool(left(ROUNDED(program).program)) == always


def test_each_average_stays_for_a_reason_of_its_own():
    reasons = fold_averages(with_attrs(chain(), "e", rescale_grad=0.5)).reasons[:3]
    assert [reason.partition(": ")[2] for reason in reasons] == [TWICE.format(f"sgd of {name!r}") for name in "eaa"]


def test_a_factor_of_zero_has_the_sign_of_the_average():
    """An op that multiplies takes +0 for -0, which shows in a parameter of -0."""
    program = with_attrs(step_program([("a", (4,))], "sgd", world_size=2, lr=0.5), "a@GRAD", scale=-0.0)
    given = {"a@GRAD": np.array([1, -1, 0, -0.0], np.float32)}

    def rank(each, world):
        return run(each, {"a": np.full(4, -0.0, np.float32)}, comm=world, gradients=given).read("a").tobytes()

    before, after = (cases.on_ranks(2, partial(rank, each)) for each in (program, fold_averages(program).program))
    assert before == after


def test_averages_by_no_number_of_the_dtype_stay():
    result = fold_averages(with_attrs(steps_of("b"), scale=1e300))
    assert not result.applied and "scale of 'b@GRAD': 1e+300 is not a finite number of float32" in result.reasons
