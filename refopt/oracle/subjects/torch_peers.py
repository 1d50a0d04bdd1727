"""The ``torch.optim`` class for each routine, with its variants: more than `refopt.state` can take over.

PyTorch's names for the numbers of variants are added to those of `refopt.state.peers`. Some numbers and choices are
tried only if an option of the class asks for them, since they fix others: Nesterov's momentum takes no dampening.
"""

from collections.abc import Mapping
from typing import Any

from refopt.cpu.muon import COEFFICIENTS
from refopt.state.peers import MUON, NONE, PEERS, Peer

ON_REQUEST = "dampening", "initial_accumulator"


# Arguments that leave the rule as it is: how a step is run.
FREE = "foreach", "fused", "capturable", "differentiable"


def _with(routine: str, more: Mapping[str, str] = NONE, choices: Mapping[str, Any] = NONE) -> Peer:
    """A row of the table with more numbers and choices, which a group then no longer has to fix."""
    peer = PEERS[routine]
    only = {name: value for name, value in peer.only.items() if name not in more.values()}
    return peer._replace(numbers={**peer.numbers, **more}, only=only, choices={**peer.choices, **choices})


TORCH = PEERS | {
    "muon": MUON._replace(
        numbers={**MUON.numbers, "iterations": "ns_steps", "adjust_lr": "adjust_lr_fn"},
        only={"ns_coefficients": COEFFICIENTS},
    ),
    "momentum": _with("momentum", choices={"dampened_from": 2}),
    "adagrad": _with("adagrad", {"lr_decay": "lr_decay", "initial_accumulator": "initial_accumulator_value"}),
}
# The class for each routine.
CLASSES = {
    "sgd": "SGD", "momentum": "SGD", "adam": "Adam", "adamw": "AdamW", "adagrad": "Adagrad", "rmsprop": "RMSprop",
    "adadelta": "Adadelta", "adamax": "Adamax", "nadam": "NAdam", "radam": "RAdam", "muon": "Muon",
}
