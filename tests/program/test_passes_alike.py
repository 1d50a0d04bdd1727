"""The laws of passes on steps of tensors that are alike, where a mix-up shows in the values alone."""

from functools import partial

import pytest
from program_cases import adam, edited, idempotent, same_bits, untouched

from refopt.program import Op, Program, Var, passes, step_program

ALIKE = [("a.w", (4, 2)), ("a.b", (8,)), ("b.w", (8,)), ("b.b", (2, 4))]
LR = {"a.w": 0.5, "a.b": 0.25, "b.w": 0.5, "b.b": 0.125}


def changed(program, name, **attrs):
    """The program with other attributes in all ops of a parameter or its gradient."""
    main = [
        op.replace(attrs={**op.attrs, **{k: v for k, v in attrs.items() if k in op.attrs}})
        if name in (*op.inputs.get("params", ()), *op.inputs.get("x", ())) else op
        for op in program.main
    ]
    return program.replace(main=main)


EXAMPLES = {"plain": lambda: adam(ALIKE, world_size=2), "early": lambda: adam(ALIKE, world_size=2, early=True),
            "lr": lambda: adam(ALIKE, world_size=2, lr=LR),
            "rescale_grad": lambda: changed(adam(ALIKE, world_size=2), "b.w", rescale_grad=0.125),
            "average": lambda: changed(adam(ALIKE, world_size=2), "b.w@GRAD", scale=0.25),
            "power": lambda: changed(adam(ALIKE, early=True), "b.w_beta1_pow_acc_0", scale=0.25),
            "in use": lambda: in_use(step_program(ALIKE, "sgd", lr=0.5, world_size=2)),
            "twice": lambda: twice(step_program(ALIKE, "sgd", lr=0.5)),
            "copied": lambda: copied(step_program(ALIKE, "sgd", lr=0.5)), "some gated": lambda: gated(adam(ALIKE)),
            "some early": lambda: partly_early(), "advanced first": lambda: advanced_first(adam(ALIKE, early=True))}


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
    return program.replace(main=(*program.main, *[op for op in program.main if op.type == "sgd"][:2]))


def copied(program: Program) -> Program:
    """A copy of a new parameter, made before the other parameters are new."""
    update = next(i for i, op in enumerate(program.main) if op.type == "sgd")
    cast = Op("cast", {"x": ["a.w"]}, {"out": ["copy"]}, role="optimize")
    copy = Var("copy", (4, 2), "float16", persistable=True, initial=0.0)
    return program.with_vars([copy]).replace(main=(*program.main[: update + 1], cast, *program.main[update + 1 :]))


def gated(program: Program) -> Program:
    """Two updates are skipped."""
    flag = Var("flag", (1,), "float32", persistable=True)
    return edited(program, lambda op: [
        op.replace(inputs={**op.inputs, "found_inf": ["flag"]}) if op.outputs.get("params", "b")[0] < "b" else op
    ], flag)


def partly_early() -> Program:
    """Other ops advance the powers of two updates, two advance their own."""
    own, early = adam(ALIKE).main, adam(ALIKE, early=True)
    return early.replace(main=[*own[:6], *early.main[6:8], *early.main[12:]])


def advanced_first(program: Program) -> Program:
    """Powers before the updates that read them."""
    return program.replace(main=[*program.main[:4], *program.main[8:], *program.main[4:8]])


UPDATE = {form: partial(passes.fuse_optimizer, form=form) for form in ("auto", "flat", "merged")}
AT_ONCE = partial(passes.coalesce_gradients, memory_size=0)


@pytest.mark.parametrize("form", ["auto", pytest.param("flat", marks=pytest.mark.slow), "merged"])
@pytest.mark.parametrize("example", EXAMPLES)
def test_laws(example, form):
    """Each pass is idempotent; all together need not be, since what one does may allow an earlier one to do more."""
    for apply in ([passes.coalesce_gradients, passes.fuse_all_reduce, UPDATE[form]],
                  [AT_ONCE, UPDATE[form]], [UPDATE[form]]):
        program = EXAMPLES[example]()
        same_bits(lambda program, apply=apply: passes.pipeline(program, *apply), program)
        for one in apply:
            idempotent(one, program)
            untouched(one, program)
            program = one(program).program


def test_updates_that_advance_their_powers_are_one_and_others_another():
    assert passes.fuse_optimizer(partly_early(), form="merged").program.counts()["merged_adam"] == 2


def test_powers_are_advanced_by_an_op_for_each_update_or_by_none():
    program = adam(ALIKE, early=True)

    def fused_without(*names):
        return passes.fuse_optimizer(program.replace(main=[
            op for op in program.main if op.type != "scale" or not any(x.endswith(names) for x in op.inputs["x"])]))

    both = fused_without("beta1_pow_acc_0", "beta2_pow_acc_0")
    assert both.program.counts() == {"backward": 4, "adam": 1} and not both.reasons
    one = fused_without("b.w_beta1_pow_acc_0")
    assert "beta1_pow: expected exactly one scale op, after adam of 'b.w'" in one.reasons[0]
