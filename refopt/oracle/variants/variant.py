"""The description of a routine's variants, and what those of several routines share."""

from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from refopt.checks.rows import Hyper, Routine, Slot
from refopt.cpu.weight_decay import prepared

NONE: Mapping[str, Any] = MappingProxyType({})

EPSILON_ROOT = Hyper("epsilon_root", 0.0)
# The number of the current step.
STEP_NUMBER = Slot("step_number", written=True, optional=True, scalar=True, signed=False, initial=1.0)


class Variants(NamedTuple):
    """The variants of a routine.

    Attributes:
        row: the catalogue's row with further choices, numbers and scalars. The first value of a choice, and the default
            of a number, give the catalogue's rule. Choices of the catalogue get no further values.
        rule: with the signature of those in `refopt.cpu`; by default it computes the same as that of `refopt.cpu`.
        about: the meaning of a choice and the libraries that use it, by ``"name=value"``.
        matters: the number that must differ from 0 for a choice to matter, by its name.
        counted: the numbers and choices that need ``step_number`` if they are not the default.
        initial: the number that a state starts from, by state.
    """

    row: Routine
    rule: Callable[..., tuple]
    about: Mapping[str, str] = NONE
    matters: Mapping[str, str] = NONE
    counted: tuple[str, ...] = ()
    initial: Mapping[str, str] = NONE


def extended(
    row: Routine, *, hypers: Iterable[Hyper] = (), choices: Mapping[str, tuple] = NONE, slots: Iterable[Slot] = ()
) -> Routine:
    """A row of the catalogue with more numbers, choices and optional slots."""
    k = [hyper.name for hyper in row.hypers].index("rescale_grad")
    numbers = *row.hypers[:k], *hypers, *row.hypers[k:]
    fields = row._asdict() | {"slots": (*row.slots[:-1], *slots, row.slots[-1]), "hypers": numbers}
    return Routine(**fields | {"choices": {**row.choices, **choices}})


def after_options(rule, p, g, *states, lr, weight_decay, decay, maximize, **numbers):
    """Apply a rule to the parameter and gradient that `refopt.cpu.weight_decay` prepares."""
    p, g = prepared(p, g, lr=lr, weight_decay=weight_decay, decay=decay, maximize=maximize)
    return rule(p, g, *states, lr=lr, **numbers)


def advanced(step_number):
    """The number of the next step."""
    return None if step_number is None else step_number + 1
