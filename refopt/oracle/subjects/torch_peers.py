"""Which optimizer of ``torch.optim`` a routine is, with its variants: more than `refopt.state` can take over.

What PyTorch calls the choices and numbers of variants is beside what `refopt.state.peers` has. Some are tried only if
an option of the class asks for them, since they leave others no choice: Nesterov's momentum takes no dampening.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from refopt.state.peers import NONE, PEERS, Peer

# A choice whose values are PyTorch's switch.
SWITCHED: Mapping[str, Mapping[Any, bool]] = MappingProxyType({"decay": {"l2": False, "decoupled": True}})
ON_REQUEST = "maximize", "dampening", "initial_accumulator"


# Arguments that leave the rule as it is: how a step is run.
FREE = "foreach", "fused", "capturable", "differentiable"


def _with(routine: str, more: Mapping[str, str] = NONE, *without: str, choices: Mapping[str, Any] = NONE) -> Peer:
    """A row of the table with more numbers and choices, and without some of what a group has to have."""
    peer = PEERS[routine]
    numbers = {**peer.numbers, **more, "maximize": "maximize"}
    only = {name: value for name, value in peer.only.items() if name not in {*more.values(), "maximize", *without}}
    return peer._replace(numbers=numbers, only=only, choices={**peer.choices, **choices})


DECAY = {"weight_decay": "weight_decay"}
EITHER_DECAY = DECAY | {"decay": "decoupled_weight_decay"}
TORCH = {
    "sgd": _with("sgd"),
    "momentum": _with("momentum", {"dampening": "dampening"}),
    "adam": _with("adam", EITHER_DECAY),
    "adamw": _with("adamw"),
    "adagrad": _with(
        "adagrad", DECAY | {"lr_decay": "lr_decay", "initial_accumulator": "initial_accumulator_value"}
    ),
    "rmsprop": _with("rmsprop", DECAY),
    "adadelta": _with("adadelta", DECAY),
    "adamax": _with("adamax", DECAY, "eps", choices={"epsilon_at": "gradient"}),
    "nadam": _with("nadam", EITHER_DECAY),
    "radam": _with("radam", EITHER_DECAY),
}  # fmt: skip
# The class that a routine is.
CLASSES = {
    "sgd": "SGD", "momentum": "SGD", "adam": "Adam", "adamw": "AdamW", "adagrad": "Adagrad", "rmsprop": "RMSprop",
    "adadelta": "Adadelta", "adamax": "Adamax", "nadam": "NAdam", "radam": "RAdam",
}  # fmt: skip
