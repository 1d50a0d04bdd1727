"""Variants of routines that several libraries have: each has a rule, a bound and evidence, but no kernel.

A routine has two rows: the catalogue's, for what `refopt.cpu` has, and one with the choices and numbers of its
variants, for steps that take or declare one of these (`row_for`). Bounds, states and diagnoses follow from the rows
and rules, as for the catalogue's own.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from refopt import catalog
from refopt.checks.rows import Routine
from refopt.cpu.merged import merged
from refopt.oracle.variants.adagrad import ADAGRAD
from refopt.oracle.variants.adam import ADAM
from refopt.oracle.variants.adamw import ADAMW
from refopt.oracle.variants.lars_momentum import LARS_MOMENTUM
from refopt.oracle.variants.momentum import MOMENTUM
from refopt.oracle.variants.muon import MUON
from refopt.oracle.variants.novograd import NOVOGRAD
from refopt.oracle.variants.radam import RADAM
from refopt.oracle.variants.variant import Variants

EVERY = MOMENTUM, ADAM, ADAMW, ADAGRAD, RADAM, LARS_MOMENTUM, NOVOGRAD, MUON
VARIANTS: dict[str, Variants] = {of.row.name: of._replace(row=of.row._replace(rule=of.rule)) for of in EVERY}
ROUTINES: dict[str, Routine] = {
    name: VARIANTS[name].row if name in VARIANTS else row for name, row in catalog.KNOWN.items()
}

OF_DECAY = {
    "decay=l2": "weight decay added to the gradient, as in PyTorch's Adam",
    "decay=decoupled": "weight decay decoupled from the gradient, as in AdamW",
}
# By routine, and by ``"name=value"``.
ABOUT: Mapping[str, Mapping[str, str]] = {
    "adamax": {
        "epsilon_at=gradient": "epsilon added to the gradient's size, as in PyTorch and optax",
        "epsilon_at=norm": "epsilon added to the decayed norm, as in refopt and Paddle",
    },
    "rmsprop": {
        "lr_at=step": "learning rate outside of the velocity, as in PyTorch",
        "lr_at=velocity": "learning rate inside the velocity, as in Paddle",
    },
}
# The number that must differ from 0 for a choice to matter.
MATTERS = {"decay": "weight_decay"}
# What only some libraries have, by routine.
OPTIONS_OF = {"adamax": {"epsilon_at"}}
# What code without an argument of that name lacks: it belongs to another routine, or only to its library.
OPTIONS = "maximize", "decay", "dampening", "lr_at"

__all__ = [
    "ROUTINES", "VARIANTS", "Variants", "about", "added", "by_request", "defaults", "is_extended", "matters", "row_for",
    "step_of", "variants_of",
]


def is_extended(row: Routine) -> bool:
    """Whether a row has the choices and numbers of variants."""
    return row.name in VARIANTS and row == VARIANTS[row.name].row


def variants_of(row: Routine) -> Variants | None:
    """The variants whose choices and numbers a row has."""
    return VARIANTS[row.name] if is_extended(row) else None


def added(name: str) -> frozenset[str]:
    """The choices and numbers that a routine's variants have beyond the catalogue."""
    own, every = catalog.KNOWN[name], ROUTINES[name]
    numbers = {hyper.name for hyper in every.hypers} - {hyper.name for hyper in own.hypers}
    return frozenset(numbers | (every.choices.keys() - own.choices.keys()))


def options(row: Routine) -> frozenset[str]:
    """The numbers and choices of a row that are tried only if the step takes them."""
    own = {name for name in OPTIONS if name in row.choices or name in {hyper.name for hyper in row.hypers}}
    if "decay" in own:
        own |= {"weight_decay"} & {hyper.name for hyper in row.hypers}
    return frozenset(own | OPTIONS_OF.get(row.name, set()))


def by_request(name: str) -> frozenset[str]:
    """Numbers and choices that are tried only if a step takes them: those of variants, and options."""
    return added(name) | options(catalog.KNOWN[name])


def about(name: str) -> Mapping[str, str]:
    """The meaning of the choices of a routine and its variants, and who uses them, by ``"name=value"``."""
    own = OF_DECAY if "decay" in ROUTINES[name].choices else {}
    return {**own, **ABOUT.get(name, {}), **(VARIANTS[name].about if name in VARIANTS else {})}


def matters(name: str) -> Mapping[str, str]:
    """The number that must differ from 0 for a choice of a routine to matter, by choice."""
    return {**MATTERS, **(VARIANTS[name].matters if name in VARIANTS else {})}


def row_for(name: str, named: Iterable[str]) -> Routine:
    """The catalogue's row of a routine, or the one with variants if any of theirs is among the names."""
    return ROUTINES[name] if added(name) & {*named} else catalog.KNOWN[name]


def defaults(name: str, names: Iterable[str]) -> tuple[dict[str, float], dict[str, Any]]:
    """The default numbers and choices, of some names, of a routine; those of its variants give the catalogue's rule."""
    row, names = ROUTINES[name], frozenset(names)
    numbers = {hyper.name: float(hyper.default or 0) for hyper in row.hypers if hyper.name in names}
    return numbers, {choice: values[0] for choice, values in row.choices.items() if choice in names}


def initial_of(row: Routine, state: str, numbers: Mapping[str, Any]) -> float:
    """The value of a tensor's state before the first step."""
    of = variants_of(row)
    return float(numbers[of.initial[state]]) if of and state in of.initial else 0.0


def step_of(row: Routine, rule: Callable[..., tuple] | None = None) -> Callable[..., None]:
    """A merged step of a row with variants, or with a ``rule``, with the signature of those in `refopt.cpu`."""

    def step(*lists: Any, grad_factor: Any = None, found_inf: Any = None, **named: Any) -> None:
        slots = dict(zip((slot.name for slot in row.slots if not slot.optional), lists, strict=True))
        slots |= {slot.name: named.pop(slot.name, None) for slot in row.slots if slot.optional}
        numbers, own = row.parted(named)
        merged(row, rule or row.rule, slots, numbers, grad_factor, found_inf, own)

    return step
