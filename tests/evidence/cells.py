"""Cells: everything that evidence is asked for, derived from the catalogue.

A cell is a routine, a variant and a precision. Variants are all combinations of a routine's named choices and optional
states, but for some choices that stand alone, and the features that a step may have beside them. A label names what is
not by default: ``default``, ``epsilon_at=uncorrected, with moment2_max``, ``grad_factor``.
"""

import itertools
from typing import NamedTuple

import numpy as np

from refopt.catalog import ROUTINES, Routine

# What the parameter is stored as, and what holds the exact parameter.
PRECISIONS = {"fp32": ("float32", None), "fp64": ("float64", None), "fp16": ("float16", None),
              "bf16": ("bfloat16", None), "fp16+master": ("float16", "float32"), "bf16+master": ("bfloat16", "float32"),
              "bf16+remainder": ("bfloat16", "uint16")}
DECAYS = ("l2_decay", "coeff", "weight_decay", "lars_weight_decay")
NO_DECAY, RESCALE_GRAD, GRAD_FACTOR, FOUND_INF = "no decay", "rescale_grad", "grad_factor", "found_inf"
STOCHASTIC = "rounding=stochastic"
# Choices about what comes before a rule, or goes on in one place of it, which are not combined with others.
ALONE = "decay", "maximize", "lr_at"


class Variant(NamedTuple):
    """Choices that are not by default, the optional states that tensors have, and a feature of the step, if any."""

    choices: tuple[tuple[str, object], ...] = ()
    optional: tuple[str, ...] = ()
    feature: str = ""

    @property
    def label(self) -> str:
        named = [f"{name}={value}" for name, value in self.choices]
        parts = [*named, *(f"with {name}" for name in self.optional)] + [self.feature] * bool(self.feature)
        return ", ".join(parts) or "default"

    def precisions(self) -> list[str]:
        """Those in which the variant is another than one with fewer choices."""
        if dict(self.choices).get("norm_of") == "master":
            return [name for name, (_, master) in PRECISIONS.items() if master]
        if self.feature == STOCHASTIC:
            return [name for name in PRECISIONS if name.startswith("bf16")]
        return list(PRECISIONS)


class Cell(NamedTuple):
    """A routine's name, a variant's label and a precision's name."""

    routine: str
    variant: str
    precision: str

    def __str__(self) -> str:
        return ": ".join(self)


def optional_states(routine: Routine) -> list[str]:
    return [slot.name for slot in routine.slots if slot.optional and slot.name != "master_params"]


def variant_of(routine: Routine, choices: dict, optional: tuple[str, ...] = ()) -> Variant:
    """The variant of some choices, those by default left out."""
    named = {name: value for name, value in choices.items() if value != routine.choices[name][0] and name != "rounding"}
    return Variant(tuple(named.items()), optional)


def variants(routine: Routine) -> dict[str, Variant]:
    """Every variant of a routine, by its label."""
    choices = {name: values for name, values in routine.choices.items() if name not in ("rounding", *ALONE)}
    optional = optional_states(routine)
    rows = []
    for values in itertools.product(*choices.values()):
        for given in itertools.product((False, True), repeat=len(optional)):
            states = tuple(itertools.compress(optional, given))
            rows.append(variant_of(routine, dict(zip(choices, values, strict=True)), states))
    for name in ALONE:
        rows += [variant_of(routine, {name: value}) for value in routine.choices.get(name, ())[1:]]
    features = [NO_DECAY] * any(hyper.name in DECAYS for hyper in routine.hypers)
    features += [RESCALE_GRAD, GRAD_FACTOR, FOUND_INF] + [STOCHASTIC] * ("rounding" in routine.choices)
    rows += [Variant(feature=feature) for feature in features]
    return {row.label: row for row in rows}


def cell_of(
    routine: Routine, precision: str, choices: dict, numbers: dict, optional: tuple[str, ...] = (),
) -> list[Cell]:
    """The cell, if it is one, that a case of other code's belongs to."""
    decays = [numbers.get(hyper.name, hyper.default) for hyper in routine.hypers if hyper.name in DECAYS]
    variant = variant_of(routine, choices, optional)
    if decays and not np.any(decays[0]):
        variant = variant._replace(feature=NO_DECAY)
    return [Cell(routine.name, variant.label, precision)] if variant.label in variants(routine) else []


def cells() -> list[Cell]:
    """All cells, in the order of the catalogue."""
    return [Cell(routine.name, label, precision) for routine in ROUTINES.values()
            for label, variant in variants(routine).items() for precision in variant.precisions()]
