"""One step of an optimizer in PyTorch's format, held to refopt's bound (numerics, N13) from what it started from.

`before` reads parameters, states, gradients and groups; `hold` compares what a step has made of them with the routine's
rule in twice the precision. So each step is judged by itself, and errors do not add up. Nothing of `refopt.torch` is
used: PyTorch's own classes are held to the same.
"""

from typing import NamedTuple

import numpy as np
import pytest

from refopt.checks.dtypes import arithmetic
from refopt.oracle.broken import Broken
from refopt.oracle.cases import scalar_after
from refopt.oracle.exact.cases import Case
from refopt.oracle.subjects.arrays import Torch
from refopt.oracle.subjects.torch_peers import TORCH
from refopt.oracle.trial import Trial
from refopt.oracle.variants import ROUTINES
from refopt.state.peers import OWN, SWITCHED

torch = pytest.importorskip("torch")
NAMES = {"Adam": "adam", "AdamW": "adamw", "Adamax": "adamax", "Adagrad": "adagrad", "Adadelta": "adadelta",
         "RMSprop": "rmsprop", "NAdam": "nadam", "RAdam": "radam", "LARS": "lars_momentum", "LAMB": "lamb",
         "Lion": "lion", "NovoGrad": "novograd"}
PEERS = TORCH | OWN


class Before(NamedTuple):
    """A parameter before a step: itself, and what the step is given."""

    param: object
    routine: str
    case: Case | None  # None where there is no gradient
    bits: bytes


class Read:
    """What a subject of a `Trial` needs to be, where what it has made is known."""

    name = "the step"

    @staticmethod
    def takes(what):
        return True


def routine_of(optimizer, group):
    """The routine that a group of an optimizer is a step of."""
    for kind in type(optimizer).__mro__:
        if kind.__name__ == "SGD":
            return "momentum" if group["momentum"] else "sgd"
        if kind.__name__ in NAMES:
            return NAMES[kind.__name__]
    raise AssertionError(f"no routine for {type(optimizer)}")


def numbers_of(routine, group, first):
    """Numbers and choices by refopt's names."""
    row, peer = ROUTINES[routine], PEERS[routine]
    flat = {name: float(x) if isinstance(x, torch.Tensor) else x for name, x in group.items() if name != "params"}
    if "betas" in flat:
        flat["beta1"], flat["beta2"] = map(float, flat.pop("betas"))
    given = dict(peer.choices) | ({"lr_at": "step"} if routine == "rmsprop" else {})
    for ours, theirs in peer.numbers.items():
        value = flat[theirs]
        if ours in SWITCHED:
            value = next(choice for choice, switch in SWITCHED[ours].items() if switch == value)
        given[ours] = 0.96**value if ours == "decay_base" else value
    if first and "dampening" in given:
        given["dampening"] = 0.0  # the first velocity is the gradient
    plain = dict.fromkeys(("rescale_grad", "lr_ratio"), 1.0)
    numbers = {h.name: given.get(h.name, plain.get(h.name, h.default)) for h in row.hypers}
    choices = {name: given.get(name, values[0]) for name, values in row.choices.items()}
    return {name: 0 if name == "seed" else float(x) for name, x in numbers.items()}, choices


def before(optimizer):
    """What the next step of an optimizer starts from."""
    return [_of(optimizer, group, p) for group in optimizer.param_groups for p in group["params"]]


def _of(optimizer, group, p):
    entry, routine = optimizer.state.get(p, {}), routine_of(optimizer, group)
    bits = b"" if p.grad is not None else _back(p).tobytes() + _back_all(entry)
    if p.grad is None:
        return Before(p, routine, None, bits)
    row, count = ROUTINES[routine], _count(entry)
    numbers, choices = numbers_of(routine, group, first=entry.get("momentum_buffer") is None)
    slots = {slot.name: None for slot in row.slots} | _slots(routine, group, p, entry)
    slots["grads"] = [_back(p.grad)]
    real = arithmetic(slots["params"][0].dtype.name)
    for slot in row.slots:
        if slot.scalar and slots[slot.name] is None:
            slots[slot.name] = [scalar_after(slot.name, numbers, count - 1, real)]
    return Before(p, routine, Case(row, slots, [numbers], choices, count), bits)


def _count(entry):
    """The number of the step that is to be taken; of momentum, which does not count, whether it is the first."""
    return int(entry["step"]) + 1 if "step" in entry else 1 + (entry.get("momentum_buffer") is not None)


def _slots(routine, group, p, entry):
    """The parameter and its states; those that there are not yet are as they are at first."""
    row, peer = ROUTINES[routine], PEERS[routine]
    values = {"params": [_back(p)]}
    for slot in row.slots[2:-1]:
        theirs = peer.states.get(slot.name)
        if theirs is None or (slot.optional and not group[peer.switches[slot.name]]):
            continue
        if slot.scalar:
            first = slot.initial if not isinstance(slot.initial, str) else 1.0
            values[slot.name] = [np.full(1, float(entry.get(theirs, first)), arithmetic(_back(p).dtype.name))]
        else:
            state = entry.get(theirs)
            values[slot.name] = [np.zeros_like(_back(p)) if state is None else _back(state)]
    if "master_param" in entry:
        values["master_params"] = [_back(entry["master_param"])]
    return values


def _back(x):
    return np.array(Torch().back(x), order="C")


def _back_all(entry):
    return b"".join(_back(x).tobytes() for _, x in sorted(entry.items()) if isinstance(x, torch.Tensor))


def hold(optimizer, known):
    """Raise AssertionError unless a step of an optimizer has left what is within the bound of what was ``known``.

    Returns the largest error over its bound.
    """
    groups = {id(p): group for group in optimizer.param_groups for p in group["params"]}
    worst = 0.0
    for i, one in enumerate(known):
        p, entry = one.param, optimizer.state.get(one.param, {})
        if one.case is None:
            assert _back(p).tobytes() + _back_all(entry) == one.bits, f"parameter {i}, without a gradient, has changed"
            continue
        assert PEERS[one.routine].counts == ("step" in entry)
        assert not PEERS[one.routine].counts or _count(entry) == one.case.count + 1
        got = _slots(one.routine, groups[id(p)], p, entry)
        if not groups[id(p)].get("momentum", True):
            got.pop("velocity", None)  # which PyTorch does not keep then
        trial = Trial(ROUTINES[one.routine], Read(), got["params"][0].dtype.name, 0, {})
        try:
            trial.hold(one.case, got)
        except Broken as broken:
            raise AssertionError(f"{type(optimizer).__name__}, parameter {i}: {broken}") from None
        worst = max([worst, *trial.largest.values()])
    return worst
