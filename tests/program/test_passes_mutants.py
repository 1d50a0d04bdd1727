"""Passes that are wrong in one thing each, as they have been or easily are: some law notices every one of them."""

import dataclasses
from functools import partial

import pytest
from program_cases import PARAMS, adam, idempotent, numbers_of, outcome, same_bits, untouched

from refopt.catalog import ROUTINES
from refopt.program import Op, Program, Var, counts, passes, step_program
from refopt.program.ops import updates
from refopt.program.passes import Result, attributes, coalesce, dependencies, flat, optimizer

ALIKE = [("a.w", (4, 2)), ("a.b", (8,)), ("b.w", (8,)), ("b.b", (2, 4))]  # where a mix-up shows in the values alone
LR = {"a.w": 0.5, "a.b": 0.25, "b.w": 0.5, "b.b": 0.125}


def changed(program, name, **attrs):
    """The program with other attributes in all ops of a parameter or its gradient."""
    main = [
        op.replace(attrs={**op.attrs, **{k: v for k, v in attrs.items() if k in op.attrs}})
        if name in (*op.inputs.get("params", ()), *op.inputs.get("x", ())) else op
        for op in program.main
    ]  # fmt: skip
    return program.replace(main=main)


EXAMPLES = {
    "plain": lambda: adam(ALIKE, world_size=2),
    "early": lambda: adam(ALIKE, world_size=2, early=True),
    "one rank": lambda: adam(PARAMS[:3], early=True),
    "sgd": lambda: step_program(ALIKE, "sgd", lr=0.5, world_size=3),
    "lr": lambda: adam(ALIKE, world_size=2, lr=LR),
    "rescale_grad": lambda: changed(adam(ALIKE, world_size=2), "b.w", rescale_grad=0.125),
    "average": lambda: changed(adam(ALIKE, world_size=2), "b.w@GRAD", scale=0.25),
    "power": lambda: changed(adam(ALIKE, early=True), "b.w_beta1_pow_acc_0", scale=0.25),
    "sparse": lambda: adam(ALIKE, world_size=2, sparse=["a.w"]),
    "mixed": lambda: adam(ALIKE, world_size=2, config={n: "fp64" if n[0] == "a" else "fp32" for n, _ in ALIKE}),
    "amp": lambda: adam(ALIKE, config="amp"),
    "norms": lambda: step_program(ALIKE, "lars_momentum", world_size=2, **numbers_of("lars_momentum")),
    "in use": lambda: in_use(step_program(ALIKE, "sgd", lr=0.5, world_size=2)),
    "twice": lambda: twice(step_program(ALIKE, "sgd", lr=0.5)),
    "copied": lambda: copied(step_program(ALIKE, "sgd", lr=0.5)),
}


def in_use(program: Program) -> Program:
    """Each update as soon as its gradient is there."""
    rest = [op for op in program.main if op.role != "optimize"]
    updates = [op for op in program.main if op.role == "optimize"]
    for op in updates:
        place = max(i for i, other in enumerate(rest) if set(op.inputs["grads"]) & set(other.writes))
        rest.insert(place + 1, op)
    return program.replace(main=rest)


def twice(program: Program) -> Program:
    """A parameter that two ops update."""
    again = [op for op in program.main if op.type == "sgd"][:2]
    return program.replace(main=(*program.main, *again))


def copied(program: Program) -> Program:
    """A copy of a new parameter, made before the other parameters are new."""
    update = next(i for i, op in enumerate(program.main) if op.type == "sgd")
    cast = Op("cast", {"x": ["a.w"]}, {"out": ["copy"]}, role="optimize")
    copy = Var("copy", (4, 2), "float16", persistable=True, initial=0.0)
    return program.with_vars([copy]).replace(main=(*program.main[: update + 1], cast, *program.main[update + 1 :]))


def laws(*apply):
    """Every law on every example, for passes that are applied one after the other.

    Each is idempotent; all together they need not be, since what one does may allow an earlier one to do more.
    """
    for name, example in EXAMPLES.items():
        try:
            program = example()
            same_bits(lambda program: passes.pipeline(program, *apply), program)
            for one in apply:
                idempotent(one, program)
                untouched(one, program)
                program = one(program).program
        except (AssertionError, ValueError, TypeError) as error:
            raise AssertionError(f"{name}: {error}") from None


AT_ONCE = partial(passes.coalesce_gradients, memory_size=0)


@pytest.mark.parametrize("form", ["auto", "flat", "merged"])
def test_right_passes_keep_the_laws(form):
    update = partial(passes.fuse_optimizer, form=form)
    laws(passes.coalesce_gradients, passes.fuse_all_reduce, update)
    laws(AT_ONCE, update)
    laws(update)


def edited(apply, edit):
    """A pass whose outcome is edited, if it has been applied."""

    def wrong(program):
        result = apply(program)
        return Result(edit(program, result.program), True, result.reasons) if result.applied else result

    return wrong


# Of coalesce_gradients.


def without_reduction(before, after):
    """Takes the all-reduces for done."""
    return after.replace(main=[op for op in after.main if op.type != "all_reduce"])


def group_cut_short(before, after):
    """Says that a group has a tensor less than it has."""

    def cut(op):
        return op.replace(attrs={**op.attrs, "groups": tuple(max(1, n - 1) for n in op.attrs["groups"])})

    return after.replace(startup=[cut(op) for op in after.startup])


def parameters_instead(before, after):
    """Puts parameters where it should put gradients, without copying them."""

    def of(names):
        return tuple(name.removesuffix("@GRAD") for name in names)

    return after.replace(startup=[
        op.replace(inputs={"input": of(op.inputs["input"])},
                   outputs={**op.outputs, "output": of(op.outputs["output"])}) for op in after.startup
    ])  # fmt: skip


def one_buffer_for_all(before, after):
    """Takes no notice of dtypes."""
    if len(after.startup) < 2:
        return after
    first, *others = after.startup
    names = (*first.inputs["input"], *(name for op in others for name in op.inputs["input"]))
    merged = first.replace(inputs={"input": names}, outputs={**first.outputs, "output": names},
                           attrs={**first.attrs, "groups": (len(names),)})  # fmt: skip
    return after.replace(startup=[merged])


COALESCE = [without_reduction, group_cut_short, parameters_instead, one_buffer_for_all]


@pytest.mark.parametrize("edit", COALESCE, ids=lambda edit: edit.__name__)
def test_laws_kill_mutants_of_coalesce_gradients(edit):
    wrong = edited(AT_ONCE, edit)
    if edit is group_cut_short:  # which alone changes nothing but what the next pass makes of it
        with pytest.raises(AssertionError, match="counts"):
            counts_are(EXAMPLES["plain"](), wrong, passes.fuse_all_reduce, passes.fuse_optimizer)
        return
    with pytest.raises(AssertionError):
        laws(wrong)


def counts_are(program, *apply):
    """The formula, which notices what changes no bit."""
    made = passes.pipeline(program, *apply).program.counts()
    assert made == counts.fused_step(ROUTINES["adam"], 4, world_size=2, groups=1), f"counts: {made}"


def test_coalescing_again_is_noticed():
    """A pass that does not see that it has been there."""

    def blind(program):
        hidden = [op.replace(attrs={k: v for k, v in op.attrs.items() if k != "groups"}) for op in program.startup]
        made = AT_ONCE(program.replace(startup=hidden))
        return dataclasses.replace(made, applied=True)

    with pytest.raises(AssertionError, match="not idempotent"):
        idempotent(blind, EXAMPLES["plain"]())


# Of fuse_all_reduce.


def first_place(program, moves):
    """`dependencies.rewritten`, but where the first of the ops was."""
    moves = [(list(members), list(ops)) for members, ops in moves]
    gone = {i for members, _ in moves for i in members}
    main = []
    for i, op in enumerate(program.main):
        main += [op for members, ops in moves if min(members) == i for op in ops]
        main += [] if i in gone else [op]
    return tuple(main)


def no_average(before, after):
    """Forgets to multiply by 1 / W."""
    return after.replace(main=[op for op in after.main if op.type != "scale" or len(op.inputs["x"]) == 1])


def average_before(before, after):
    """Multiplies by 1 / W before the sum, which rounds otherwise with three ranks."""
    main = list(after.main)
    for i in range(1, len(main)):
        if main[i].type == "scale" and main[i - 1].type == "all_reduce":
            main[i - 1 : i + 1] = [main[i], main[i - 1]]
    return after.replace(main=main)


def last_left_out(before, after):
    """Reduces all of a group but the last."""

    def short(op):
        many = op.type == "all_reduce" and len(op.inputs["x"]) > 1
        return op.replace(inputs={"x": op.inputs["x"][:-1]}, outputs={"out": op.outputs["out"][:-1]}) if many else op

    return after.replace(main=[short(op) for op in after.main])


def unpadded(before, after):
    """Takes tensors to lie without padding between them."""

    def tight(op):
        return op.replace(attrs={**op.attrs, "use_align": False}) if "use_align" in op.attrs else op

    return after.replace(main=[tight(op) for op in after.main])


@pytest.mark.parametrize("edit", [no_average, average_before, last_left_out, unpadded], ids=lambda edit: edit.__name__)
def test_laws_kill_mutants_of_fuse_all_reduce(edit):
    with pytest.raises(AssertionError):
        laws(AT_ONCE, edited(passes.fuse_all_reduce, edit))


@pytest.mark.parametrize(("where", "name", "wrong"), [
    (dependencies, "rewritten", first_place),
    (dependencies, "between", lambda program, members: ""),
    (attributes, "differing", lambda *_: ""),
], ids=lambda x: x if isinstance(x, str) else None)  # fmt: skip
def test_laws_kill_what_fuse_all_reduce_does_not_look_at(monkeypatch, where, name, wrong):
    monkeypatch.setattr(where, name, wrong)
    with pytest.raises(AssertionError):
        laws(AT_ONCE, passes.fuse_all_reduce)


# Of fuse_optimizer.


_unit, _candidates, _advances = optimizer._unit, optimizer._candidates, optimizer._advances


def numbers_of_the_first(*given):
    """Learning rate, decay and the like of the first tensor for all, as Paddle."""
    unit, why = _unit(*given)
    return unit._replace(uneven={}), why


def blind_to(*names):
    """Attributes that are not compared, as Paddle's regularization and rescale_grad."""
    real = optimizer.differences
    return lambda first, second: [key for key in real(first, second) if key not in names]


def all_dtypes(program, routine, form, reasons):
    """One op for all signatures of dtypes."""
    places = [i for some in _candidates(program, routine, form, reasons) for i in some]
    return [tuple(places)] if places else []


def backwards(program):
    """The order of tensors, turned round for parameters and states alone."""
    return {}


def only_elementwise(program, unit):
    """Takes every routine for elementwise."""
    return "" if not unit.uneven and not unit.routine.elementwise else _not_flat(program, unit)


_not_flat = optimizer._not_flat
FUSE = {
    "numbers of the first": (optimizer, "_unit", numbers_of_the_first),
    "rescale_grad not compared": (optimizer, "differences", blind_to("rescale_grad")),
    "powers forgotten": (optimizer, "_advances", lambda *_: []),
    "power of the first": (optimizer, "_find_powers", None),
    "one dtype for all": (optimizer, "_candidates", all_dtypes),
    "order of the ops": (optimizer, "_order", backwards),
    "norms of a buffer": (optimizer, "_not_flat", only_elementwise),
    "where the first was": (dependencies, "rewritten", first_place),
    "dependencies among": (dependencies, "among", lambda program, ops: ""),
    "in between": (dependencies, "between", lambda program, members: ""),
    "layout of each dtype": (flat, "coalesce_op", None),
    "powers go stale": (updates.Update, "_spread", lambda self, slots: lambda: None),
}


def powers_of_the_first(program, unit):
    """Advances all by what the first is advanced by."""
    scales = {op.inputs["x"][0]: i for i, op in enumerate(program.main) if op.type == "scale"}
    for slot in unit.routine.scalars:
        unit.powers[slot] = tuple(scales[op.inputs[slot][0]] for op in unit.ops(program))
    return ""


def own_layout(names, buffer, **attrs):
    """Aligns each buffer by its own dtype."""
    return coalesce.coalesce_op(names, buffer, **attrs | {"size_of_dtype": -1})


@pytest.mark.parametrize("mutant", FUSE)
def test_laws_kill_mutants_of_fuse_optimizer(monkeypatch, mutant):
    where, name, wrong = FUSE[mutant]
    wrong = wrong or {"_find_powers": powers_of_the_first, "coalesce_op": own_layout}[name]
    monkeypatch.setattr(where, name, wrong)
    with pytest.raises(AssertionError):
        laws(passes.fuse_optimizer)
        laws(AT_ONCE, passes.fuse_optimizer)


def test_a_pass_that_says_nothing_is_noticed():
    """Declining takes a reason; and the same program again is none that was applied."""
    program = EXAMPLES["plain"]()
    with pytest.raises(AssertionError, match="without a reason"):
        untouched(lambda p: Result(p, False), program)
    with pytest.raises(AssertionError):
        untouched(lambda p: Result(p, True), program)


def test_bits_of_the_examples_differ():
    """What the mutants mix up would show: no two examples end in the same place."""
    ends = [tuple(sorted(outcome(EXAMPLES[name]()).items())) for name in ("plain", "lr", "rescale_grad", "average")]
    assert len(set(ends)) == len(ends)
