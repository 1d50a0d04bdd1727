"""How a script calls an optimizer of PyTorch or optax on a case."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from refopt.oracle.exact.cases import Case
from refopt.oracle.literals import Literals, definition, library_of, number
from refopt.oracle.script import Call
from refopt.oracle.subjects.shared import is_initial
from refopt.state.steps import BASES

WALK = '''

def walk(state, visit):
    """Visit each field of the named tuples that a state consists of; what is returned takes its place."""
    if isinstance(state, tuple) and hasattr(state, "_fields"):
        held = {name: getattr(state, name) for name in state._fields}
        new = {name: walk(x, visit) if isinstance(x, tuple) else visit(name, x) for name, x in held.items()}
        return type(state)(**{name: held[name] if x is None else x for name, x in new.items()})
    return tuple(walk(part, visit) for part in state) if isinstance(state, tuple) else state
'''


def _made(thing: Any, name: str, options: dict[str, Any]) -> tuple[str, str]:
    """The text that defines a class or function, and an expression for it."""
    path = name.partition(", ")[0]
    module, _, own = path.rpartition(".")
    if module and own.isidentifier() and "<locals>" not in path:
        return f"import {module}", path
    return definition(thing, "make_optimizer"), "make_optimizer"


def of_torch(subject: Any, case: Case) -> Call:
    """A call of a `torch.TorchOptimizer`: states are put into ``optimizer.state``, gradients into ``grad``."""
    of = library_of(subject.arrays)
    define, make = _made(subject.make, subject.name, subject.options)
    optional, rows = subject.optional(case), subject.rows(case, case.steps[0])
    groups = [subject.grouped(row, optional) for row in rows]
    first = {name: x for name, x in groups[0].items() if name in subject.accepts} | subject.options
    params = '[{"params": [p]} for p in params]' if len(groups) > 1 else "params"
    lines = [f"optimizer = {make}({params}, **numbers)", *_groups(subject, groups, first, of)]
    template = subject.states.template(case.params[0].dtype, rows[0], optional)
    steps = f"optimizer.state[p][{subject.counter!r}]"
    if template.in_group is not None:
        steps = f"optimizer.param_groups[0][{subject.counter!r}]"
    elif template.in_optimizer is not None:
        steps = f"optimizer.{subject.counter}"
    if not is_initial(case, subject.peer.states):
        for i in range(len(case)):
            entry = subject.states.entry(case, i, rows[min(i, len(rows) - 1)], optional)
            named = ", ".join(f"{name!r}: {_state(x, subject, of)}" for name, x in entry.items())
            lines.append(f"optimizer.state[params[{i}]] = {{{named}}}")
        if template.in_group is not None:
            lines += ["for group in optimizer.param_groups:", f"    group[{subject.counter!r}] = {case.count - 1}"]
        elif template.in_optimizer is not None:
            lines.append(f"{steps} = {case.count - 1}")
    lines += _gate(case, of)
    lines += ["for p, g in zip(params, grads):", "    p.grad = g", "optimizer.step()", 'got = {"params": params}']
    lines += _results(subject, case, template.entry, rows[0], steps)
    return Call(define, {"params": case.params, "grads": case.grads}, first, "\n".join(lines), of)


def _groups(subject: Any, groups: Sequence[Any], first: Mapping[str, Any], of: Literals) -> Iterator[str]:
    """Lines that set what the groups have in addition to the optimizer's arguments."""
    for k, group in enumerate(groups):
        unlike = {name: x for name, x in group.items() if name in subject.group and name not in subject.options}
        unlike = {name: x for name, x in unlike.items() if first.get(name) != x or name not in subject.accepts}
        if unlike:
            named = ", ".join(f"{name!r}: {number(x, of)}" for name, x in unlike.items())
            yield f"optimizer.param_groups[{k}].update({{{named}}})"


def _gate(case: Case, of: Literals) -> Iterator[str]:
    """Lines that set the scale and the flag for fused optimizers."""
    flag, factor = (case.steps[0].get(name) for name in ("found_inf", "grad_factor"))
    if flag is not None or factor is not None:
        scale = 1 / (np.ones(()) if factor is None else factor.astype(np.float64).reshape(()))
        yield f"optimizer.grad_scale = {of.array(np.asarray(scale, np.float32).reshape(()))}"
    if flag is not None:
        yield f"optimizer.found_inf = {of.array(flag.astype(np.float32).reshape(()))}"


def _results(subject: Any, case: Case, entry: Any, numbers: Mapping[str, Any], steps: str) -> Iterator[str]:
    """The states after the step."""
    for slot in case.routine.slots[2:-1]:
        theirs = subject.peer.states.get(slot.name)
        if theirs in entry and case.slots[slot.name] is not None:
            times = f" * {numbers['lr']!r}" if slot.name in subject.without_lr else ""
            states = f"optimizer.state[p].get({theirs!r}) for p in params"
            yield f'got["{slot.name}"] = [None if x is None else torch.as_tensor(x){times} for x in ({states})]'
        elif slot.name in BASES and subject.follows(slot.name):
            power = f"{numbers[BASES[slot.name]]!r} ** (1 + float({steps}))"
            power = f"torch.tensor({power}) if optimizer.state[p] else None"
            yield f'got["{slot.name}"] = [{power} for p in params]'


def _state(value: Any, subject: Any, of: Literals) -> str:
    """An entry of a state: a tensor, or a number."""
    return of.array(subject.arrays.back(value)) if isinstance(value, subject.torch.Tensor) else repr(value)


def _signed(subject: Any, case: Case, ours: str) -> list[Any]:
    """A slot's arrays with optax's sign and shape."""
    scalar = ours in case.routine.scalars
    return [subject._signed(ours, x.reshape(()) if scalar else x) for x in case.slots[ours] or ()]


def of_optax(subject: Any, case: Case) -> Call:
    """A call of an `optax.OptaxOptimizer`: states are put into what ``init`` returns, by field name."""
    of = library_of(subject.arrays)
    define, make = _made(subject.make, subject.name, subject.options)
    named = {name: x for name, x in subject._named(case, case.steps[0]).items() if name in subject.accepts}
    wide = len(case) and case.params[0].dtype == np.float64
    define = "import optax\n" + ('jax.config.update("jax_enable_x64", True)\n' if wide else "") + define + WALK
    lines, arrays = [f"optimizer = {make}(**numbers)", "state = optimizer.init(params)"], {"params": case.params}
    if not is_initial(case, subject.states):
        held = {theirs: ours for ours, theirs in subject.states.items() if case.slots[ours] is not None}
        arrays |= {theirs: _signed(subject, case, ours) for theirs, ours in held.items()}
        fields = ", ".join(f"{name!r}: {name}" for name in held)
        lines.append(f"held = {{{fields}}}")
        count = f"jnp.full_like(x, {case.count - 1}) if name == 'count' else "
        lines.append(f"state = walk(state, lambda name, x: {count}held.get(name))")
    lines += ["updates, state = optimizer.update(grads, state, params)"]
    lines += ["params = optax.apply_updates(params, updates)", "found = {}"]
    lines += ["walk(state, lambda name, x: found.setdefault(name, x))", 'got = {"params": params}']
    for ours, theirs in ((ours, x) for ours, x in subject.states.items() if case.slots[ours] is not None):
        lines.append(f'got["{ours}"] = [{"-" * (ours in subject.negative)}x for x in found.get({theirs!r}) or []]')
    return Call(define, arrays | {"grads": case.grads}, named | subject.options, "\n".join(lines), of)
