"""What is said of the catalogue's own choices, and which of its options a step need not have."""

from collections.abc import Mapping

from refopt.checks.rows import Routine

OF_DECAY = {
    "decay=l2": "weight decay added to the gradient, as Adam in PyTorch has it",
    "decay=decoupled": "weight decay apart from the gradient, as AdamW has it",
}
# By routine, and by ``"name=value"``.
ABOUT: Mapping[str, Mapping[str, str]] = {
    "adamax": {
        "epsilon_at=gradient": "epsilon on the gradient's size, as PyTorch and optax have it",
        "epsilon_at=norm": "epsilon on the norm before it fades, as refopt and Paddle have it",
    },
    "rmsprop": {
        "lr_at=step": "learning rate outside of the velocity, as PyTorch has it",
        "lr_at=velocity": "learning rate inside the velocity, as Paddle has it",
    },
}
# The number that has to be other than 0 for a choice to matter.
MATTERS = {"decay": "weight_decay"}
# Of a routine, what only some libraries have.
OPTIONS_OF = {"adamax": {"epsilon_at"}}
# What code without an argument of the name does not have: it is another routine's, or only its library's.
OPTIONS = "maximize", "decay", "dampening", "lr_at"


def options(row: Routine) -> frozenset[str]:
    """The numbers and choices of a row that a step is tried with only if it takes them."""
    own = {name for name in OPTIONS if name in row.choices or name in {hyper.name for hyper in row.hypers}}
    if "decay" in own:
        own |= {"weight_decay"} & {hyper.name for hyper in row.hypers}
    return frozenset(own | OPTIONS_OF.get(row.name, set()))
