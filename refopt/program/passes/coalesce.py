"""Gradients as views of buffers, so that neighbours can be reduced and updated together."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import chain
from typing import Any

from refopt.checks.arguments import collected, shown, whole
from refopt.program.model import UNKNOWN, Op, Var
from refopt.program.passes import dependencies
from refopt.program.passes.gradients import params_of
from refopt.program.passes.grouping import RULES, Grouping, early, later
from refopt.program.passes.result import Result
from refopt.program.program import Program, expect_program


def coalesce_gradients(program: Program, grouping: str | Callable[..., Grouping] = later, **flags: Any) -> Result:
    """Put the gradients that are reduced into buffers, by ``coalesce_tensor`` ops at startup.

    The ops of a step do not change: each gradient becomes a view, which `fuse_all_reduce` and `fuse_optimizer` use.
    Gradients that are sparse, empty, not reduced, or already views are left out. With one rank nothing is reduced and
    nothing is done, as in Paddle; `fuse_optimizer` makes its own buffer.

    Args:
        grouping: a rule of `refopt.program.passes.grouping`, its name, or a function with the same signature.
        flags: arguments of the rule.

    Raises:
        ValueError, TypeError: from the rule; or a buffer's name is taken.

    Source: Paddle's ``coalesce_grad_tensor_pass``, first ``alloc_continuous_space_for_grad_pass`` of PR 15497.
    """
    expect_program("coalesce_gradients", program)
    rule = _rule(grouping)
    if any("groups" in op.attrs for op in program.startup):
        return Result(program, False, ("gradients are already in buffers",))
    pairs, reasons = _gradients(program)
    if not pairs:
        return Result(program, False, (*reasons, "no reduced gradient is dense and outside of buffers"))
    params, grads = [param for param, _ in pairs], [program.vars[grad] for _, grad in pairs]
    dtypes = [grad.dtype for grad in grads]
    if rule is early and len({*dtypes}) > 1:
        other = next(grad for grad in grads if grad.dtype != dtypes[0])
        two = f"{grads[0].name!r} is {dtypes[0]}, {other.name!r} {other.dtype}"
        return Result(program, False, (*reasons, f"the rule 'early' is for one dtype; {two}"))
    answer = rule(params, [grad.shape for grad in grads], dtypes, **flags)
    grouped = _checked_grouping(answer, len(grads))
    ops, buffers = [], []
    for numbers in grouped.buffers:
        views = [grads[i] for number in numbers for i in grouped.groups[number]]
        name = grouped.name.format(views[0].name)
        buffers.append(Var(name, UNKNOWN, views[0].dtype, views[0].persistable))
        sizes = tuple(len(grouped.groups[number]) for number in numbers)
        ops.append(coalesce_op([view.name for view in views], name, copy_data=views[0].persistable, groups=sizes))
    if not ops:
        return Result(program, False, (*reasons, "the rule puts no two gradients together"))
    changed = program.with_vars(buffers)
    return Result(changed.replace(startup=(*program.startup, *ops)), True, tuple(reasons))


def _rule(grouping: Any) -> Callable[..., Grouping]:
    """A rule, given as itself or by name; raises if there is none."""
    if isinstance(grouping, str) and grouping in RULES:
        return RULES[grouping]
    if callable(grouping):
        return grouping
    expected = f"expected one of {', '.join(RULES)} or a function"
    raise ValueError(f"coalesce_gradients: grouping: {expected}, got {shown(grouping)}")


def coalesce_op(names: list[str], buffer: str, **attrs: Any) -> Op:
    """A ``coalesce_tensor`` op, with the machine's usual alignment."""
    layout = {"use_align": True, "align_size": -1, "size_of_dtype": -1}
    slots: Any = {"output": names, "fused_output": [buffer]}
    return Op("coalesce_tensor", {"input": tuple(names)}, slots, {"copy_data": False} | layout | attrs, "startup")


def _checked_grouping(grouping: Any, count: int) -> Grouping:
    """The result of a rule; raises unless it is a grouping of that many gradients."""
    where = "coalesce_gradients: grouping"
    if not isinstance(grouping, Grouping):
        raise TypeError(f"{where}: expected a Grouping from the rule, got {shown(grouping)}")
    groups, buffers = (_numbers(f"{where}: {name}", getattr(grouping, name)) for name in ("groups", "buffers"))
    if sorted(chain(*groups)) != list(range(count)):
        raise ValueError(f"{where}: expected each of {count} gradients in one group, got {shown(grouping.groups)}")
    places = sorted(chain(*buffers))
    if any(not k < len(groups) for k in places) or len(set(places)) < len(places):
        raise ValueError(f"{where}: expected each group in one buffer at most, got {shown(grouping.buffers)}")
    name = grouping.name
    if not isinstance(name, str) or name.replace("{}", "", 1).count("{") + name.count("}") > 1:
        raise ValueError(f"{where}: expected a name with one {{}} at most, got {shown(name)}")
    return Grouping(groups, buffers, name)


def _numbers(where: str, value: Any) -> tuple[tuple[int, ...], ...]:
    """Groups of numbers, none of them empty."""
    checked = []
    for j, group in enumerate(collected(where, value, "groups")):
        members = enumerate(collected(f"{where}[{j}]", group, "numbers"))
        checked.append(tuple(whole(f"{where}[{j}][{k}]", member, 0) for k, member in members))
    return tuple(checked)


def _gradients(program: Program) -> tuple[list[tuple[str, str]], list[str]]:
    """Parameters and gradients that can be put into buffers, in the order of reduction; and why others cannot."""
    made = [pair for op in program.main if op.type == "backward"
            for pair in zip(op.outputs["grads"], op.inputs["params"], strict=True)]
    params = {**dict(made), **params_of(program)}
    reasons = [f"{grad!r} is sparse and stays out" for grad, _ in made if grad in program.sparse]
    pairs, alone = [], dependencies.rooted(program)
    for grad in dependencies.singles(program, "all_reduce"):
        if grad not in params or grad in program.buffer_of or grad in program.whole_of:
            continue
        if grad in alone:
            reasons.append(f"{grad!r} {dependencies.ALONE}")
        elif math.prod(program.vars[grad].shape) == 0:
            reasons.append(f"{grad!r} has no elements and stays out")
        else:
            pairs.append((params[grad], grad))
    kept = [grad for _, grad in pairs if program.vars[grad].persistable]
    if 0 < len(kept) < len(pairs):
        reasons += [f"{grad!r} lives from step to step, unlike others, and stays out" for grad in kept]
        left = set(kept)
        pairs = [pair for pair in pairs if pair[1] not in left]
    return pairs, reasons
