"""Descriptions of the catalogue's own choices, and the options that a step need not have."""

from collections.abc import Mapping

from refopt.checks.rows import Routine

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


def options(row: Routine) -> frozenset[str]:
    """The numbers and choices of a row that are tried only if the step takes them."""
    own = {name for name in OPTIONS if name in row.choices or name in {hyper.name for hyper in row.hypers}}
    if "decay" in own:
        own |= {"weight_decay"} & {hyper.name for hyper in row.hypers}
    return frozenset(own | OPTIONS_OF.get(row.name, set()))
